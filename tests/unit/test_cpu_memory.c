// cpu_memory: what control groups allow, of both versions, as containers and services show them.

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/mem.h"
#include "executor/cpu_memory.h"
#include "unit/own_folder.h"

enum { MIB = 1 << 20 };

// A file below the folder, with the folders that it lies in.
static void put(const char *name, const char *text)
{
    char *path = mem_printf("%s/%s", folder, name);
    for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    free(path);
}

// `root`: what of the tree is mounted at FOLDER/groups.
static struct cpu_memory read_groups(const char *type, const char *root, const char *own)
{
    struct cpu_memory m = { .total = UINT64_MAX, .free = UINT64_MAX };
    char *line = mem_printf("22 1 8:1 / / rw - ext4 /dev/sda rw\n"
                            "30 22 0:26 %s %s/groups rw,nosuid shared:4 - %s\n",
                            root, folder, type);
    char *groups = mem_printf("%s/own", folder), *mounts = mem_printf("%s/mounts", folder);
    put("own", own);
    put("mounts", line);
    cpu_memory_read_groups(groups, mounts, &m);
    free(line);
    free(groups);
    free(mounts);
    return m;
}

static void test_second_version(void **state)
{
    (void)state;
    put("groups/a/b/memory.max", "1073741824\n");
    put("groups/a/b/memory.high", "max\n");
    put("groups/a/b/memory.current", "314572800\n"); // 300 MiB, 100 of them cache
    put("groups/a/b/memory.stat", "anon 1\nactive_file 41943040\ninactive_file 62914560\n");
    struct cpu_memory m = read_groups("cgroup2 cgroup rw", "/", "0::/a/b\n");
    assert_true(m.limited);
    assert_int_equal(m.total / MIB, 1024);
    assert_int_equal(m.free / MIB, 1024 - 200 - 256);
}

static void test_high_and_above(void **state)
{
    (void)state;
    put("groups/a/b/memory.max", "max\n");
    put("groups/a/b/memory.high", "536870912\n");
    put("groups/a/b/memory.current", "0\n");
    put("groups/a/memory.max", "805306368\n"); // more, but most of it is taken
    put("groups/a/memory.current", "576716800\n");
    struct cpu_memory m = read_groups("cgroup2 cgroup rw", "/", "0::/a/b\n");
    assert_int_equal(m.total / MIB, 512);
    assert_int_equal(m.free / MIB, 768 - 550 - 192);
}

static void test_first_version(void **state)
{
    (void)state;
    put("groups/a/memory.limit_in_bytes", "629145600\n");
    put("groups/a/memory.usage_in_bytes", "209715200\n");
    put("groups/a/memory.stat", "active_file 1\ntotal_active_file 104857600\n");
    put("groups/memory.limit_in_bytes", "9223372036854771712\n");
    const char *own = "12:pids:/\n9:cpu,memory:/a\n0::/elsewhere\n";
    struct cpu_memory m = read_groups("cgroup cgroup rw,memory", "/", own);
    assert_int_equal(m.total / MIB, 600);
    assert_int_equal(m.free / MIB, 600 - 100 - 150);
    m = read_groups("cgroup cgroup rw,pids", "/", own);
    assert_false(m.limited);
}

// What is mounted in a container is its own group, whatever the path says that the host knows.
static void test_a_part_of_the_tree(void **state)
{
    (void)state;
    put("groups/memory.max", "268435456\n");
    put("groups/memory.current", "0\n");
    assert_int_equal(read_groups("cgroup2 c rw", "/docker/x", "0::/docker/x\n").total / MIB, 256);
    assert_int_equal(read_groups("cgroup2 c rw", "/docker/x", "0::/\n").total / MIB, 256);
    assert_int_equal(read_groups("cgroup2 c rw", "/", "0::/../other\n").total / MIB, 256);
    put("groups/in/memory.max", "134217728\n");
    put("groups/in/memory.current", "1000000000\n");
    struct cpu_memory m = read_groups("cgroup2 c rw", "/docker/x", "0::/docker/x/in\n");
    assert_int_equal(m.total / MIB, 128);
    assert_int_equal(m.free, 0);
}

static void test_none(void **state)
{
    (void)state;
    struct cpu_memory m = { .total = 5, .free = 4 };
    cpu_memory_read_groups("/nonexistent", "/nonexistent", &m);
    assert_false(m.limited);
    assert_int_equal(m.total, 5);
    put("groups/memory.max", "nonsense\n");
    assert_false(read_groups("cgroup2 c rw", "/", "0::/\n").limited);
    cpu_memory_read(&m);
    assert_true(m.total > 0 && m.free <= m.total);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_second_version, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_high_and_above, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_first_version, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_a_part_of_the_tree, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_none, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
