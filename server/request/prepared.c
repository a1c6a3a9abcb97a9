#include "request/prepared.h"

#include <stdlib.h>

#include "request/conn.h"
#include "request/method.h"
#include "wire/msg.h"

void prepared_free(struct prepared *p, struct conn *c)
{
    if (!p)
        return;
    if (c)
        c->prepared_size -= p->message.size;
    bound_plan_unref(p->forward);
    bound_plan_unref(p->backward);
    operator_unref(p->of);
    buf_finish(&p->message);
    free(p);
}

bool prepared_check(const struct buf *message, struct opd_err *err)
{
    const struct method *m = &methods[METHOD_prepare];
    struct msg msg;
    bool good = msg_decode(&msg, message->bytes, message->size, err) &&
                msg_check_params(m->name, m->params, msg.params, err);
    msg_finish(&msg);
    return good;
}
