#pragma once

// For tests that need a folder of their own: `folder`, from make_folder() to remove_folder(), a
// test's setup and teardown. Include after cmocka.h.

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/opd-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[160];
    snprintf(command, sizeof command, "chmod -R u+rwx %s && rm -rf %s", folder, folder);
    return system(command);
}

__attribute__((unused)) static bool exists(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}
