#include "trial/trial_print.h"

#include <stdio.h>

#include "op/bundle.h"

static void put_string(const char *s)
{
    putchar('"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if ((unsigned char)*s < ' ')
            printf("\\u%04x", *s);
        else
            putchar(*s);
    }
    putchar('"');
}

static void put_pair(const char *key, const char *value, const char *after)
{
    printf("\"%s\": ", key);
    put_string(value);
    fputs(after, stdout);
}

void trial_print_head(struct trial_print *p, const struct op *op, const char *file,
                      const char *seed, int n_cases, const struct opd_err *err)
{
    if (p->json) {
        putchar('{');
        put_pair("file", file, ", ");
        put_pair("op", op ? op->name : "", ", ");
        put_pair("message", err->msg, ", ");
        put_pair("warnings", op ? op->warnings : "", ", ");
        printf("\"seed\": %s, \"cases\": %d, \"stages\": [", seed, n_cases);
    } else if (op && !p->lines) {
        if (op->warnings[0])
            printf("%s\n", op->warnings);
        printf("%s: %d case%s, seed %s\n", op->name, n_cases, PLURAL_S(n_cases), seed);
    } else if (p->lines && !op) {
        printf("failed\t%s\n", err->msg);
    } else if (!op) {
        fprintf(stderr, "opctl: %s\n%s", err->msg, err->log ? err->log : "");
    }
}

void trial_print_fault(const struct bundle *b, int number, int n)
{
    printf("%s{\"number\": %d, \"time\": %.3f, \"version\": %d, \"bytes\": %llu, ", n ? ", " : "",
           number, b->time, b->version, (unsigned long long)b->size);
    put_pair("device", b->device, ", ");
    put_pair("op", b->op, ", ");
    put_pair("file", b->file, ", ");
    put_pair("message", b->message, "}");
}

void trial_print_begin(struct trial_print *p, const char *stage)
{
    if (!p->json && !p->lines)
        printf("%-10s ", stage);
    fflush(stdout);
}

static void print_stage_json(struct trial_print *p, const struct trial_result *r)
{
    static const char *const states[] = { "ok", "findings", "failed", "unfinished", "skipped" };
    const struct trial_findings *f = &r->findings;
    fputs(p->n_stages++ ? ", {" : "{", stdout);
    put_pair("stage", r->name, ", ");
    put_pair("state", states[r->state], ", ");
    put_pair("message", r->message, ", ");
    put_pair("log", r->log ? r->log : "", ", ");
    printf("\"launches\": %d, \"seconds\": %.3f, \"findings\": [", f->n_launches, r->seconds);
    for (int i = 0; i < f->n; i++) {
        fputs(i ? ", {" : "{", stdout);
        put_pair("message", f->list[i].what, ", ");
        put_pair("where", f->list[i].where, ", ");
        put_pair("other", f->list[i].other, ", ");
        put_pair("kernel", f->list[i].kernel, ", ");
        put_pair("context", f->list[i].context, "}");
    }
    fputs("]}", stdout);
}

static void print_stage_lines(const struct trial_result *r)
{
    for (int i = 0; i < r->findings.n; i++)
        printf("wrong\t%s: %s (%s)\n", r->findings.list[i].where, r->findings.list[i].what,
               r->findings.list[i].context);
    if (r->state == TRIAL_FAILED)
        printf("failed\t%s\n%s", r->message, r->log ? r->log : "");
}

void trial_print_stage(struct trial_print *p, const struct trial_result *r)
{
    const struct trial_findings *f = &r->findings;
    p->broken = p->broken || (r->state == TRIAL_FAILED && p->n_stages == 0 && r->log);
    if (p->json) {
        print_stage_json(p, r);
        return;
    }
    p->n_stages++;
    if (p->lines) {
        print_stage_lines(r);
        return;
    }
    if (r->state == TRIAL_OK)
        printf("ok, %d launch%s, %.1f s\n", f->n_launches, f->n_launches == 1 ? "" : "es",
               r->seconds);
    else if (r->state == TRIAL_FOUND)
        printf("%d finding%s\n", f->n, PLURAL_S(f->n));
    else
        printf("%s: %s\n%s",
               r->state == TRIAL_SKIPPED      ? "skipped"
               : r->state == TRIAL_UNFINISHED ? "not finished"
                                              : "failed",
               r->message, r->log ? r->log : "");
    for (int i = 0; i < f->n; i++) {
        const struct trial_finding *t = &f->list[i];
        printf("  %s%s%s\n      (%s; %s)\n", t->where, t->where[0] ? ": " : "", t->what, t->kernel,
               t->context);
    }
    fflush(stdout);
}

void trial_print_end(struct trial_print *p, bool ok)
{
    if (p->json)
        printf("], \"ok\": %s}\n", ok ? "true" : "false");
    fflush(stdout);
}
