#include "kernels/watch.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/turn.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "kernels/reload.h"

// A burst is over when nothing has changed for QUIET_MS, or it has lasted BURST_MS. A file that is
// gone, or empty, is looked at again after AGAIN_MS, a folder that is not there every FOLDER_MS.
enum { QUIET_MS = 2, BURST_MS = 40, AGAIN_MS = 310, FOLDER_MS = 250 };

static void timer_cb(uv_timer_t *timer)
{
    reload_look(timer->data);
}

void watch_look_soon(struct reload *r)
{
    if (r->started && !r->burst_since)
        uv_timer_start(&r->timer, timer_cb, r->sources.folder_missing ? FOLDER_MS : AGAIN_MS, 0);
}

static void changed_cb(uv_fs_event_t *handle, const char *name, int events, int status)
{
    (void)events, (void)status, (void)name;
    struct reload *r = handle->data;
    uint64_t now = clock_ns();
    if (!r->burst_since)
        r->burst_since = now;
    uint64_t lasted = (now - r->burst_since) / 1000000;
    uv_timer_start(&r->timer, timer_cb, lasted >= BURST_MS ? 0 : QUIET_MS, 0);
}

static void start_watch(struct watch *w)
{
    struct stat st = { 0 };
    bool there = stat(w->folder, &st) == 0;
    if (w->active && there && w->device == st.st_dev && w->inode == st.st_ino)
        return;
    if (w->active)
        uv_fs_event_stop(&w->handle); // it watches what was there before
    bool told = w->device == st.st_dev && w->inode == st.st_ino;
    int failed = there ? uv_fs_event_start(&w->handle, changed_cb, w->folder, 0) : 0;
    w->active = there && !failed;
    w->device = st.st_dev;
    w->inode = st.st_ino;
    if (failed && !told)
        log_warn("%s is not watched (%s): edits are seen by 'opctl reload' alone", w->folder,
                 uv_strerror(failed));
}

static void watch_folder(struct reload *r, const char *folder)
{
    struct watch *free_one = NULL;
    for (int i = 0; i < RELOAD_MAX_WATCHES; i++) {
        struct watch *w = &r->watches[i];
        if (w->folder && strcmp(w->folder, folder) == 0)
            return;
        if (!w->folder && !free_one)
            free_one = w;
    }
    if (!free_one) {
        if (!r->watches_are_out)
            log_warn("%s and what comes after it are not watched: more than %d folders", folder,
                     RELOAD_MAX_WATCHES);
        r->watches_are_out = true;
        return;
    }
    uv_fs_event_init(&r->turn->loop, &free_one->handle);
    free_one->handle.data = r;
    free_one->folder = mem_strdup(folder);
    start_watch(free_one);
}

// The folder of what a path leads to, where that is another: a symbolic link's target is edited
// there. Of a header that is not there, the folder where it would be. False: that is not there.
static bool watch_target(struct reload *r, const char *path, const char *folder)
{
    char real[PATH_MAX];
    char *parent = mem_strndup(path, (size_t)(strrchr(path, '/') - path));
    bool there = realpath(path, real);
    if (there)
        *strrchr(real, '/') = '\0';
    else
        there = realpath(parent, real);
    free(parent);
    if (there && strcmp(real, folder) != 0)
        watch_folder(r, real);
    return there;
}

static bool watch_targets(struct reload *r, const struct source *s)
{
    bool all = watch_target(r, s->path, s->folder);
    for (int i = 0; i < s->n_includes; i++)
        all = watch_target(r, s->includes[i].path, s->folder) && all;
    return all;
}

void watch_update(struct reload *r)
{
    const struct sources *ss = &r->sources;
    if (!r->started)
        return;
    for (int i = 0; i < RELOAD_MAX_WATCHES; i++)
        if (r->watches[i].folder)
            start_watch(&r->watches[i]);
    for (int i = 0; i < ss->n_folders; i++)
        watch_folder(r, ss->folders[i]);
    for (size_t i = 0; i < ss->n; i++)
        if (!ss->at[i]->watched)
            ss->at[i]->watched = watch_targets(r, ss->at[i]);
}
