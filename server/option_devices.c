#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "base/mem.h"

void options_clear_devices(struct options *o)
{
    while (o->n_devices > 0)
        free(o->devices[--o->n_devices]);
    o->auto_devices = false;
}

static bool add_device(struct options *o, const char *word, struct opd_err *err)
{
    const char *name = strcmp(word, "cuda") == 0 ? "cuda:0" : word;
    int end = 0;
    sscanf(name, "cuda:%*3[0-9]%n", &end);
    if (strcmp(name, "cpu") != 0 && (end == 0 || name[end]))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "--device: '%s' is none; expected auto, cpu, cuda or cuda:N", word);
    for (int i = 0; i < o->n_devices; i++)
        if (strcmp(o->devices[i], name) == 0)
            return true;
    if (o->n_devices == DEV_MAX_DEVICES)
        return opd_err_set(err, OPD_E_invalid_argument, "--device: more than %d devices",
                           DEV_MAX_DEVICES);
    o->devices[o->n_devices++] = mem_strdup(name);
    return true;
}

// How many GPUs "auto" tries, without asking CUDA, which this process never loads: those that the
// driver has made files for, as far as CUDA_VISIBLE_DEVICES lets them be seen. At least one, so
// that the log says what is missing.
static int count_gpus(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    glob_t found = { 0 };
    glob("/dev/nvidia[0-9]*", GLOB_NOSORT, NULL, &found);
    int files = (int)found.gl_pathc, seen = visible && visible[0];
    globfree(&found);
    for (const char *c = visible ? visible : ""; *c; c++)
        seen += *c == ',';
    int n = visible && seen < files ? seen : files;
    return n < 1 ? 1 : n < DEV_MAX_DEVICES ? n : DEV_MAX_DEVICES - 1;
}

static bool add_all_devices(struct options *o, struct opd_err *err)
{
    int n = count_gpus();
    bool ok = true;
    for (int i = 0; i < n && ok; i++) {
        char name[16];
        snprintf(name, sizeof name, "cuda:%d", i);
        ok = add_device(o, name, err);
    }
    o->auto_devices = true;
    return ok && add_device(o, "cpu", err);
}

bool options_set_devices(struct options *o, const char *text, struct opd_err *err)
{
    options_clear_devices(o);
    char *list = mem_strdup(text);
    char *rest = NULL;
    bool ok = true, any = false;
    for (char *word = strtok_r(list, ",", &rest); word && ok; word = strtok_r(NULL, ",", &rest)) {
        any = true;
        ok = strcmp(word, "auto") == 0 ? add_all_devices(o, err) : add_device(o, word, err);
    }
    free(list);
    if (ok && !any)
        return opd_err_set(err, OPD_E_invalid_argument, "--device: the list is empty");
    return ok;
}
