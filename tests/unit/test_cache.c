// cache: what was put is got back by the same key only; anything that can change a kernel changes
// the key; damaged entries and folders that cannot be written are misses.

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "compiler/cache.h"
#include "base/image.h"
#include "base/log.h"
#include "base/mem.h"
#include "unit/own_folder.h"

static struct compile_input input(void)
{
    return (struct compile_input){ .target = "sm_90",
                                   .common = "common",
                                   .prelude = "using scalar_t = float;\n",
                                   .file = "gelu.cu",
                                   .folder = folder,
                                   .source = "#include \"a.h\"\n",
                                   .expr = "k<1>" };
}

static struct cache_key key_of(const struct compile_input *in)
{
    struct cache_key key;
    cache_make_key(&key, in, "NVRTC 13.0");
    assert_int_equal(strlen(key.hex), 32);
    return key;
}

static bool same(struct cache_key a, struct cache_key b)
{
    return strcmp(a.hex, b.hex) == 0;
}

static void write_file(const char *name, const void *bytes, size_t size)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fwrite(bytes, 1, size, f);
    fclose(f);
}

static void put(const struct cache_key *key, const char *payload)
{
    struct buf image = { 0 };
    image_write(&image, "kernel", payload, strlen(payload));
    cache_put(folder, key, &image);
    buf_finish(&image);
}

// Whether the entry is there, and whole.
static bool get(const struct cache_key *key, const char *payload)
{
    int fd = cache_get(folder, key);
    if (fd < 0)
        return false;
    struct image image;
    struct opd_err err = { 0 };
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_true(image_open(&image, fd, &err));
    assert_int_equal(image.payload_size, strlen(payload));
    assert_memory_equal(image.payload, payload, strlen(payload));
    image_close(&image);
    close(fd);
    return true;
}

static void test_put_and_get(void **state)
{
    (void)state;
    struct compile_input in = input();
    struct cache_key key = key_of(&in), other;
    in.expr = "k<2>";
    other = key_of(&in);
    assert_false(get(&key, ""));
    put(&key, "machine code");
    assert_true(get(&key, "machine code"));
    assert_false(get(&other, ""));
    put(&key, "newer machine code");
    assert_true(get(&key, "newer machine code"));
}

static void test_every_part_counts(void **state)
{
    (void)state;
    struct compile_input in = input();
    struct cache_key base = key_of(&in), key;
    assert_true(same(base, key_of(&in)));
    const char **parts[] = { &in.target, &in.common, &in.prelude, &in.file, &in.source, &in.expr };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *old = *parts[i];
        *parts[i] = "other";
        assert_false(same(base, key_of(&in)));
        *parts[i] = old;
    }
    cache_make_key(&key, &in, "NVRTC 13.1");
    assert_false(same(base, key));
    in.common = "com"; // the same text, cut elsewhere
    in.prelude = "monusing scalar_t = float;\n";
    assert_false(same(base, key_of(&in)));
}

static void test_includes_count(void **state)
{
    (void)state;
    struct compile_input in = input();
    struct cache_key absent = key_of(&in);
    write_file("a.h", "# include\t\"b.h\"\n", 16);
    struct cache_key without_b = key_of(&in);
    write_file("b.h", "#include \"a.h\"\n#define N 1\n", 27); // and back: it must end
    struct cache_key one = key_of(&in);
    write_file("b.h", "#include \"a.h\"\n#define N 2\n", 27);
    struct cache_key two = key_of(&in);
    assert_false(same(absent, without_b) || same(without_b, one) || same(one, two) ||
                 same(absent, two));
    in.source = "#include <b.h>\n"; // which NVRTC finds there, too
    struct cache_key three = key_of(&in);
    write_file("b.h", "#define N 3\n", 12);
    assert_false(same(three, key_of(&in)));
    in.source = "#include <cub/cub.cuh>\n"; // but not this one
    three = key_of(&in);
    in.folder = "/another";
    assert_true(same(three, key_of(&in)));
    in = input();
    write_file("b.h", "#include \"a.h\"\n#define N 2\n", 27);
    write_file("unrelated.h", "x", 1);
    assert_true(same(two, key_of(&in)));
    in.folder = NULL;
    assert_false(same(two, key_of(&in)));
    in.folder = folder;
    in.source = "#include \"no end\n#include\n include \"\"\ninclude";
    key_of(&in);
}

static void entry_name(char *name, size_t size, const struct cache_key *key)
{
    snprintf(name, size, "%.2s/%s.opd", key->hex, key->hex + 2);
}

// Three names of itself in comments, and a FIFO that nobody writes to: each is looked at once.
static void test_includes_of_themselves(void **state)
{
    (void)state;
    static const char again[] = "// #include \"a.h\" #include \"a.h\" #include \"b.h\"\n";
    char fifo[128];
    snprintf(fifo, sizeof fifo, "%s/pipe.h", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    struct compile_input in = input();
    in.source = "#include \"a.h\"\n// #include \"pipe.h\"\n";
    alarm(60); // 3^16 readings take longer, the FIFO for ever
    write_file("a.h", again, strlen(again));
    write_file("b.h", again, strlen(again));
    struct cache_key first = key_of(&in);
    write_file("b.h", "int b;\n", 7);
    assert_false(same(key_of(&in), first));
    write_file("b.h", again, strlen(again));
    assert_true(same(key_of(&in), first));
    alarm(0);
}

// An entry that others may have written is compiled anew.
static void test_untrusted_entries(void **state)
{
    (void)state;
    struct compile_input in = input();
    struct cache_key key = key_of(&in);
    put(&key, "payload");
    char path[256], sub[128];
    snprintf(sub, sizeof sub, "%s/%.2s", folder, key.hex);
    snprintf(path, sizeof path, "%s/%s.opd", sub, key.hex + 2);
    const struct {
        const char *path;
        mode_t bad, good;
    } cases[] = { { path, 0666, 0600 }, { sub, 0777, 0700 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(chmod(cases[i].path, cases[i].bad), 0);
        assert_int_equal(cache_get(folder, &key), -1);
        assert_int_equal(chmod(cases[i].path, cases[i].good), 0);
        int fd = cache_get(folder, &key);
        assert_true(fd >= 0);
        close(fd);
    }
    assert_int_equal(chmod(sub, 0777), 0); // there nothing is made, either
    assert_null(cache_temporary(folder, &key, CACHE_PCH));
    assert_int_equal(chmod(sub, 0700), 0);
    if (geteuid() != 0)
        return; // only root can give a file away
    assert_int_equal(chown(path, 12345, 12345), 0);
    assert_int_equal(cache_get(folder, &key), -1);
    put(&key, "payload");
    int fd = cache_get(folder, &key);
    assert_true(fd >= 0);
    close(fd);
}

static void test_damaged_entries(void **state)
{
    (void)state;
    struct compile_input in = input();
    struct cache_key key = key_of(&in);
    put(&key, "machine code");
    char name[64], path[128];
    entry_name(name, sizeof name, &key);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    for (off_t size = 0; size < st.st_size; size++) {
        put(&key, "machine code");
        assert_int_equal(truncate(path, size), 0);
        assert_false(get(&key, ""));
    }
    write_file(name, "opdimag\0 and something else", 27);
    assert_false(get(&key, ""));
    put(&key, "machine code"); // a damaged one is replaced
    assert_true(get(&key, "machine code"));
}

static void test_folders_that_do_not_do(void **state)
{
    (void)state;
    struct compile_input in = input();
    struct cache_key key = key_of(&in);
    struct buf image = { 0 };
    image_write(&image, "kernel", "x", 1);
    write_file("file", "", 0);
    char path[128];
    snprintf(path, sizeof path, "%s/file", folder);
    const char *const folders[] = { "", path, "/proc/self", "/nowhere/at/all" };
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        cache_put(folders[i], &key, &image);
        assert_int_equal(cache_get(folders[i], &key), -1);
    }
    // A folder where the entry should be: not replaced, and nothing half made is left.
    entry_name(path, 64, &key);
    char command[256];
    snprintf(command, sizeof command, "mkdir -p %s/%s/x", folder, path);
    assert_int_equal(system(command), 0);
    cache_put(folder, &key, &image);
    assert_int_equal(cache_get(folder, &key), -1);
    snprintf(command, sizeof command, "test -z \"$(find %s -type f -name '*.opd.*')\"", folder);
    assert_int_equal(system(command), 0);
    buf_finish(&image);
}

int main(void)
{
    log_init("test", LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_put_and_get, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_every_part_counts, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_includes_count, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_includes_of_themselves, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_untrusted_entries, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_damaged_entries, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_folders_that_do_not_do, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
