#include "memory/import.h"

#include <stdlib.h>

#include "base/mem.h"

struct import *import_new(struct space *space, uint64_t size)
{
    struct import *m = mem_zalloc(1, sizeof *m);
    *m = (struct import){ .refs = 1, .space = space, .region = IMPORT_UNMAPPED, .size = size };
    m->fate = mem_zalloc(1, sizeof *m->fate);
    m->fate->refs = 1;
    return m;
}

struct import *import_ref(struct import *m)
{
    m->refs++;
    return m;
}

void import_unref(struct import *m)
{
    if (!m || --m->refs > 0)
        return;
    if (m->region != IMPORT_UNMAPPED)
        m->space->ops->unmap(m->space, m->region);
    fate_unref(m->fate);
    free(m);
}
