// Operators that a program brings along.

#include "c/opd.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c/client.h"
#include "c/error.h"

enum { MAX_SIZE = 1 << 20 };         // of a text
static const double COMPILING = 600; // seconds that the daemon may take for kernels

// Terminated; freed by the caller. NULL with an error.
static char *read_file(const char *path, size_t *size, struct opd_error *err)
{
    FILE *file = fopen(path, "re");
    char *text = file ? malloc(MAX_SIZE + 2) : NULL;
    *size = text ? fread(text, 1, MAX_SIZE + 1, file) : 0;
    if (!file || (text && ferror(file)))
        error_set_errno(err, OPD_INVALID_ARGUMENT, "%s", path);
    else if (!text)
        error_set(err, OPD_OUT_OF_MEMORY, "no host memory for the text of %s", path);
    else if (*size > MAX_SIZE)
        error_set(err, OPD_INVALID_ARGUMENT, "%s: longer than %d bytes", path, MAX_SIZE);
    bool good = text && !ferror(file) && *size <= MAX_SIZE;
    if (file)
        fclose(file);
    if (good)
        return text;
    free(text);
    return NULL;
}

// Of the file's name and folder, without what links they lead through.
static bool find_folder(const char *path, char folder[PATH_MAX], struct opd_error *err)
{
    const char *slash = strrchr(path, '/');
    char *name = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    bool good = name && realpath(name, folder);
    if (!good)
        error_set_errno(err, OPD_INVALID_ARGUMENT, "the folder of %s", path);
    free(name);
    return good;
}

static void pack_source(struct pack *p, const char *text, size_t size, int line)
{
    char head[32] = "";
    size_t n = line > 1 ? (size_t)snprintf(head, sizeof head, "#line %d\n", line) : 0;
    msgpack_pack_str(&p->mp, n + size);
    msgpack_pack_str_body(&p->mp, head, n);
    msgpack_pack_str_body(&p->mp, text, size);
}

static bool load(struct opd_client *c, struct opd_load_params *params, const char *text,
                 size_t size, const char *folder, struct opd_error *err)
{
    struct pack p;
    struct opd_reply reply = { 0 };
    const char *name = params->name ? params->name : params->path ? params->path : "<string>";
    const char *slash = strrchr(name, '/');
    pack_init(&p, 2);
    pack_source(&p, text, size, params->line);
    pack_map(&p, 3);
    pack_str(&p, "name");
    pack_str(&p, slash ? slash + 1 : name);
    pack_str(&p, "folder");
    pack_str(&p, folder);
    pack_str(&p, "shared");
    pack_bool(&p, params->shared);
    bool good = client_call_with(c, "load", &p, (struct iovec){ 0 }, COMPILING, &reply, err);
    if (good) {
        opd_map_str(&reply.result, "op", params->op, sizeof params->op);
        opd_map_int(&reply.result, "version", &params->version);
    }
    opd_reply_clear(&reply);
    return good;
}

bool opd_load(struct opd_client *c, struct opd_load_params *params, struct opd_error *err)
{
    char folder[PATH_MAX] = "";
    size_t size = 0;
    if (!params->source == !params->path)
        return error_set(err, OPD_INVALID_ARGUMENT,
                         "opd_load() takes the text of an operator or the path of a file");
    if (params->source)
        return load(c, params, params->source, strlen(params->source), folder, err);
    char *text = read_file(params->path, &size, err);
    bool good = text && find_folder(params->path, folder, err) &&
                load(c, params, text, size, folder, err);
    free(text);
    return good;
}

bool opd_unload(struct opd_client *c, const char *op, struct opd_error *err)
{
    struct pack p;
    pack_init(&p, 1);
    pack_str(&p, op);
    return client_call(c, "unload", &p, NULL, err);
}
