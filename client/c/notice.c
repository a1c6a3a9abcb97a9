#include "c/notice.h"

#include <stdlib.h>

#include "c/error.h"

struct notice {
    struct message message;
    struct notice *next;
};

// Drops the notice that follows `before` (NULL: the first).
static void drop_after(struct notices *list, struct notice *before)
{
    struct notice *n = before ? before->next : list->first;
    *(before ? &before->next : &list->first) = n->next;
    if (list->last == n)
        list->last = before;
    list->count--;
    message_clear(&n->message);
    free(n);
}

bool notices_add(struct notices *list, struct message *message, struct opd_error *err)
{
    struct notice *n = calloc(1, sizeof *n);
    if (!n) {
        message_clear(message);
        return error_set(err, OPD_CONNECTION_LOST, "no host memory for a notification");
    }
    n->message = *message;
    *(list->last ? &list->last->next : &list->first) = n;
    list->last = n;
    if (++list->count > OPD_MAX_NOTIFICATIONS)
        drop_after(list, NULL);
    return true;
}

bool notices_has(const struct notices *list, const char *method)
{
    for (const struct notice *n = list->first; n; n = n->next)
        if (message_is(&n->message, method))
            return true;
    return false;
}

bool notices_take(struct notices *list, const char *method, struct opd_reply *params)
{
    struct notice *before = NULL, *n = list->first;
    for (; n && !message_is(&n->message, method); n = n->next)
        before = n;
    if (!n)
        return false;
    if (params) {
        opd_reply_clear(params);
        *params = n->message.reply;
        n->message.reply = (struct opd_reply){ 0 };
    }
    drop_after(list, before);
    return true;
}

void notices_finish(struct notices *list)
{
    while (list->first)
        drop_after(list, NULL);
}
