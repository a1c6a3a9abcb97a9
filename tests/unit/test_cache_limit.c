// cache_limit: the folder stays below its limit, by its own process and by several at once that are
// killed at any moment; what is used stays, leftovers go, and what is no entry is left alone.

#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "compiler/cache.h"
#include "base/image.h"
#include "base/log.h"
#include "base/mem.h"
#include "unit/own_folder.h"

enum { PAYLOAD = 1000, ENTRY = 1200 }; // at most

static uint64_t seen_bytes;
static int seen_files;

static int setup(void **state)
{
    log_init("test", LOG_LEVEL_ERROR);
    return make_folder(state);
}

static struct cache_key key_of(int number)
{
    struct cache_key key;
    snprintf(key.hex, sizeof key.hex, "%02x%030x", (unsigned)number % 256, (unsigned)number);
    return key;
}

static void put(int number)
{
    char payload[PAYLOAD];
    memset(payload, number & 0xff, sizeof payload);
    struct buf image = { 0 };
    struct cache_key key = key_of(number);
    image_write(&image, "kernel", payload, sizeof payload);
    assert_true(image.size <= ENTRY);
    cache_put(folder, &key, &image);
    buf_finish(&image);
}

static bool get(int number)
{
    struct cache_key key = key_of(number);
    int fd = cache_get(folder, &key);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

// Sets its last use, in seconds before now.
static void age(int number, int seconds)
{
    struct cache_key key = key_of(number);
    char *path = mem_printf("%s/%.2s/%s.opd", folder, key.hex, key.hex + 2);
    struct timespec times[2] = { { .tv_sec = time(NULL) - seconds },
                                 { .tv_sec = time(NULL) - seconds } };
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    free(path);
}

static int see(const char *path, const struct stat *st, int type)
{
    (void)path;
    if (type == FTW_F) {
        seen_bytes += (uint64_t)st->st_size;
        seen_files++;
    }
    return 0;
}

static uint64_t measure(void)
{
    seen_bytes = 0;
    seen_files = 0;
    ftw(folder, see, 8);
    return seen_bytes;
}

// What a process does, in a child: its account is its own. Returns its status.
static int in_child(void (*act)(void))
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        act();
        _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return status;
}

static void check_lru(void)
{
    for (int i = 0; i < 100; i++) {
        put(i);
        age(i, 1000 - i);
    }
    if (!get(3)) // a use
        _exit(1);
    cache_trim(folder, 200 * ENTRY);
    if (cache_bytes() != measure() || seen_files != 100)
        _exit(2);
    const uint64_t limit = 50 * seen_bytes / 100;
    cache_trim(folder, limit); // over it by what is known
    if (measure() > limit * 9 / 10 || measure() < limit * 8 / 10 || cache_bytes() != seen_bytes)
        _exit(3);
    if (!get(3) || !get(99) || get(0) || get(20))
        _exit(4);
}

static void test_least_recently_used(void **state)
{
    (void)state;
    assert_int_equal(in_child(check_lru), 0);
}

static void check_seldom(void)
{
    const uint64_t limit = 100 * ENTRY;
    int n_above = 0;
    for (int i = 0; i < 1000; i++) {
        put(i);
        cache_trim(folder, limit);
        n_above += measure() > limit + limit / 20;
    }
    _exit(n_above ? 1 : cache_bytes() > limit + limit / 20 ? 2 : 0);
}

static void test_stays_below(void **state)
{
    (void)state;
    assert_int_equal(in_child(check_seldom), 0);
}

static void touch(const char *name, int seconds)
{
    char *path = mem_printf("%s/%s", folder, name);
    struct timespec times[2] = { { .tv_sec = time(NULL) - seconds },
                                 { .tv_sec = time(NULL) - seconds } };
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "text", 4), 4);
    futimens(fd, times);
    close(fd);
    free(path);
}

static void check_trim_all(void)
{
    cache_trim(folder, 1);
}

static void test_leftovers(void **state)
{
    (void)state;
    char *sub = mem_printf("%s/ab", folder);
    mkdir(sub, 0700);
    free(sub);
    touch("ab/0123.opd.Xy12Zz", 3000);
    touch("ab/0123.opd.Xy12Za", 3);
    touch("ab/0123.pch.Xy12Zz", 3000);
    touch("ab/README", 100000);
    touch("notes", 100000);
    touch("ab/0123.opd", 100000);
    assert_int_equal(in_child(check_trim_all), 0);
    assert_false(exists("ab/0123.opd.Xy12Zz"));
    assert_false(exists("ab/0123.pch.Xy12Zz"));
    assert_true(exists("ab/0123.opd.Xy12Za"));
    assert_true(exists("ab/README"));
    assert_true(exists("notes"));
    assert_false(exists("ab/0123.opd"));
}

static void put_pch(int number, int seconds)
{
    struct cache_key key = key_of(number);
    char *temporary = cache_temporary(folder, &key, CACHE_PCH), text[10 * ENTRY] = "";
    int fd = mkostemp(temporary, O_CLOEXEC);
    struct timespec times[2] = { { .tv_sec = time(NULL) - seconds },
                                 { .tv_sec = time(NULL) - seconds } };
    assert_int_equal(write(fd, text, sizeof text), sizeof text);
    futimens(fd, times);
    close(fd);
    assert_true(cache_rename(folder, &key, CACHE_PCH, temporary, sizeof text));
    free(temporary);
}

static bool pch_is_there(int number)
{
    struct cache_key key = key_of(number);
    int fd = cache_open(folder, &key, CACHE_PCH);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static void check_half(void)
{
    for (int i = 0; i < 40; i++)
        put(i);
    for (int i = 0; i < 9; i++)
        put_pch(i, 100 - i);
    cache_trim(folder, 100 * ENTRY);
    for (int i = 0; i < 40; i++)
        if (!get(i))
            _exit(1);
    for (int i = 0; i < 9; i++)
        if (pch_is_there(i) != (i >= 4))
            _exit(2);
    if (cache_bytes() != measure())
        _exit(3);
}

// Large as they are, precompiled headers leave half of the cache to the images.
static void test_precompiled_headers_take_half(void **state)
{
    (void)state;
    assert_int_equal(in_child(check_half), 0);
}

static void work_for_ever(void)
{
    srand((unsigned)getpid());
    for (;;) {
        int number = rand() % 500;
        if (!get(number))
            put(number);
        cache_trim(folder, 100 * ENTRY);
    }
}

static void test_several_killed(void **state)
{
    (void)state;
    for (int round = 0; round < 10; round++) {
        pid_t pids[4];
        fflush(NULL);
        for (int i = 0; i < 4; i++)
            if ((pids[i] = fork()) == 0)
                work_for_ever();
        usleep(60000);
        for (int i = 0; i < 4; i++)
            kill(pids[i], SIGKILL);
        for (int i = 0; i < 4; i++) {
            int status;
            waitpid(pids[i], &status, 0);
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        }
    }
    assert_in_range(measure(), 1, 100 * ENTRY * 5 / 4 + 40 * ENTRY);
    int n = 0;
    for (int i = 0; i < 500; i++)
        n += get(i); // each whole, or none
    assert_true(n > 20);
}

static void check_read_only(void)
{
    put(1);
    cache_trim(folder, 1);
    if (geteuid() != 0 && exists("01"))
        _exit(1);
}

static void test_read_only_and_absent(void **state)
{
    (void)state;
    chmod(folder, 0500);
    assert_int_equal(in_child(check_read_only), 0);
    chmod(folder, 0700);
    strcat(folder, "/absent");
    assert_int_equal(in_child(check_read_only), 0);
    *strrchr(folder, '/') = '\0';
}

static void check_full(void)
{
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = { 100, 100 }; // of a file: the disk is full in the middle of it
    setrlimit(RLIMIT_FSIZE, &limit);
    put(7);
    _exit(get(7) ? 1 : 0);
}

static void test_full_disk(void **state)
{
    (void)state;
    assert_int_equal(in_child(check_full), 0);
    measure();
    assert_int_equal(seen_files, 0);
}

static void test_altered(void **state)
{
    (void)state;
    struct cache_key key = key_of(5);
    char *path = mem_printf("%s/%.2s/%s.opd", folder, key.hex, key.hex + 2);
    put(5);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    for (off_t size = 0; size < st.st_size; size += 37) {
        put(5);
        assert_int_equal(truncate(path, size), 0);
        assert_false(get(5));
    }
    for (off_t at = 0; at < st.st_size; at += 11) {
        put(5);
        int fd = open(path, O_RDWR);
        char byte;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        close(fd);
        assert_false(get(5));
    }
    unlink(path);
    mkfifo(path, 0600); // must not wait
    assert_false(get(5));
    put(5);
    assert_true(get(5));
    unlink(path);
    mkdir(path, 0700);
    assert_false(get(5));
    put(5); // not kept
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_least_recently_used, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_stays_below, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_precompiled_headers_take_half, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_leftovers, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_several_killed, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_read_only_and_absent, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_full_disk, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_altered, setup, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
