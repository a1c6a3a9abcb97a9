// options: every one, on the command line and in a file, with values that are right and wrong.

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

#include "base/log.h"
#include "options.h"

static char folder[64], file[80]; // of the test; the configuration file in it

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/opd-options-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/opd.conf", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(file);
    return rmdir(folder);
}

static void write_file(const char *text)
{
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

// The arguments are words; "%f" is the configuration file, "%d" the folder, "%e" an empty word.
static bool parse(struct options *o, const char *words, struct opd_err *err)
{
    char *argv[40] = { "opd" }, text[512], expanded[40][200];
    int argc = 1;
    snprintf(text, sizeof text, "%s", words);
    char *rest = NULL;
    for (char *w = strtok_r(text, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) {
        char *percent = strchr(w, '%');
        char what = percent ? percent[1] : '\0';
        if (percent)
            *percent = '\0';
        snprintf(expanded[argc], sizeof expanded[0], "%s%s%s", w,
                 what == 'f'   ? file
                 : what == 'd' ? folder
                               : "",
                 percent ? percent + 2 : "");
        argv[argc] = expanded[argc];
        argc++;
    }
    return options_parse(o, argc, argv, err);
}

static void accept(struct options *o, const char *words)
{
    struct opd_err err = { 0 };
    if (!parse(o, words, &err))
        fail_msg("%s: %s", words, err.msg);
}

// The message must name the option, or say what is named.
static void refuse(const char *words, const char *part)
{
    struct options o;
    struct opd_err err = { 0 };
    if (parse(&o, words, &err))
        fail_msg("%s was taken", words);
    assert_int_equal(err.code, OPD_E_invalid_argument);
    if (!strstr(err.msg, part))
        fail_msg("%s: \"%s\" does not say \"%s\"", words, err.msg, part);
    options_finish(&o);
    opd_err_clear(&err);
}

static void test_defaults(void **state)
{
    (void)state;
    struct options o;
    unsetenv("OPD_SOCKET");
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    setenv("XDG_CACHE_HOME", "/h/me/.c", 1);
    accept(&o, "");
    assert_string_equal(o.socket, "/run/user/7/opd/opd.sock");
    assert_string_equal(o.cache, "/h/me/.c/opd");
    assert_true(o.auto_devices);
    assert_int_equal(o.n_devices, 2);
    assert_true(o.compilers >= 1 && o.deadline > 0 && o.compile_deadline > 0 &&
                o.max_connections > 0);
    assert_false(o.warm || o.own_blas);
    options_finish(&o);
    unsetenv("XDG_RUNTIME_DIR");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "/h/me", 1);
    accept(&o, "");
    assert_non_null(strstr(o.socket, "/tmp/opd-"));
    assert_string_equal(o.cache, "/h/me/.cache/opd");
    options_finish(&o);
    setenv("OPD_SOCKET", "/a/b", 1);
    accept(&o, "");
    assert_string_equal(o.socket, "/a/b");
    options_finish(&o);
    unsetenv("OPD_SOCKET");
}

static void check_all(const struct options *o)
{
    assert_string_equal(o->socket, "/s");
    assert_int_equal(o->n_devices, 2);
    assert_string_equal(o->devices[0], "cuda:1");
    assert_string_equal(o->devices[1], "cpu");
    assert_false(o->auto_devices);
    assert_string_equal(o->kernels[o->n_kernels - 1], folder);
    assert_string_equal(o->cache, "/c");
    assert_int_equal(o->log_level, LOG_LEVEL_DEBUG);
    assert_int_equal(o->compilers, 3);
    assert_int_equal(o->memory_limit, (uint64_t)1536 << 20);
    assert_true(o->deadline == 0.25);
    assert_true(o->compile_deadline == 7);
    assert_int_equal(o->max_connections, 9);
    assert_true(o->warm && o->own_blas);
}

static void test_every_option(void **state)
{
    (void)state;
    struct options o;
    accept(
        &o,
        "--socket /s --device cuda:1,cpu --kernels %d --cache /c --log-level debug --compilers 3 "
        "--memory-limit 1.5G --deadline 0.25 --compile-deadline 7 --max-connections 9 --blas own "
        "--warm");
    check_all(&o);
    options_finish(&o);
}

static void test_file(void **state)
{
    (void)state;
    struct options o;
    char text[512];
    snprintf(
        text, sizeof text,
        "# ours\n\n  socket = /s \nkernels=%s\ndevice = cuda:1,cpu\ncache =/c\nlog-level= debug\n"
        "compilers = 3\nmemory-limit = 1536M\ndeadline = 0.25\ncompile-deadline = 7\n"
        "max-connections = 9\nblas = own\nwarm = true",
        folder);
    write_file(text);
    accept(&o, "--config %f");
    check_all(&o);
    options_finish(&o);
    accept(&o, "--compilers 5 --socket=/t --config=%f"); // arguments win, wherever they stand
    assert_int_equal(o.compilers, 5);
    assert_string_equal(o.socket, "/t");
    assert_int_equal(o.max_connections, 9);
    options_finish(&o);
    accept(&o, "--conf %f"); // as every option, short for it
    check_all(&o);
    options_finish(&o);
    accept(&o, "--socket --config"); // the value of another one
    assert_string_equal(o.socket, "--config");
    options_finish(&o);
}

static void test_bad_file(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        { "socket", "name = value" },      { "sockets = /s", "unknown option 'sockets'" },
        { "config = /etc/x", "'config'" }, { "compilers = 0", "--compilers" },
        { "warm = maybe", "warm" },        { "warm =", "warm" },
        { "socket =", "--socket" },        { "= 3", "unknown option ''" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[128];
        snprintf(text, sizeof text, "# a comment\n%s\n", bad[i][0]);
        write_file(text);
        refuse("--config %f", bad[i][1]);
        refuse("--config %f", "opd.conf:2: ");
    }
    refuse("--config %d/none", "No such file");
    refuse("--config", "--config");
}

static void test_bad_values(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        { "--socket=", "--socket" },
        { "--device=", "--device" },
        { "--device tpu", "'tpu'" },
        { "--device cpu,cuda:", "'cuda:'" },
        { "--device cuda:1x", "'cuda:1x'" },
        { "--device cuda:1234", "'cuda:1234'" },
        { "--device cuda:-1", "'cuda:-1'" },
        { "--device ,", "empty" },
        { "--kernels %d/none", "No such file" },
        { "--log-level loud", "'loud'" },
        { "--compilers 0", "--compilers" },
        { "--compilers 65", "1 to 64" },
        { "--compilers 3x", "'3x'" },
        { "--compilers=", "--compilers" },
        { "--compilers 99999999999999999999", "--compilers" },
        { "--max-connections -1", "--max-connections" },
        { "--memory-limit 0", "--memory-limit" },
        { "--memory-limit -5G", "--memory-limit" },
        { "--memory-limit 5X", "'5X'" },
        { "--memory-limit 5GG", "--memory-limit" },
        { "--memory-limit nan", "--memory-limit" },
        { "--memory-limit inf", "--memory-limit" },
        { "--memory-limit 1e300", "--memory-limit" },
        { "--memory-limit 9999999T", "--memory-limit" },
        { "--deadline 0", "--deadline" },
        { "--deadline nan", "--deadline" },
        { "--deadline inf", "--deadline" },
        { "--deadline -1", "--deadline" },
        { "--compile-deadline 1s", "--compile-deadline" },
        { "--warm=yes", "--warm" },
        { "--blas mine", "expected vendor or own" },
        { "--blas=", "--blas" },
        { "--first-run often", "expected checked or plain" },
        { "--bogus", "--bogus" },
        { "--socket", "--socket" },
        { "extra", "'extra'" },
        { "--warm -- --warm", "'--warm'" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuse(bad[i][0], bad[i][1]);
}

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = { { "1", 1 },
                  { "4096", 4096 },
                  { "2k", 2048 },
                  { "3M", 3 << 20 },
                  { "8GiB", (uint64_t)8 << 30 },
                  { "8GB", (uint64_t)8 << 30 },
                  { "0.5K", 512 },
                  { "2T", (uint64_t)2 << 40 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct options o;
        char words[64];
        snprintf(words, sizeof words, "--memory-limit %s", sizes[i].text);
        accept(&o, words);
        assert_int_equal(o.memory_limit, sizes[i].bytes);
        options_finish(&o);
    }
}

static void test_devices(void **state)
{
    (void)state;
    struct options o;
    accept(&o, "--device cuda,cpu,cuda:0,cpu --device cpu,cuda"); // the last one counts, each once
    assert_int_equal(o.n_devices, 2);
    assert_string_equal(o.devices[0], "cpu");
    assert_string_equal(o.devices[1], "cuda:0");
    options_finish(&o);
    refuse("--device "
           "cuda:0,cuda:1,cuda:2,cuda:3,cuda:4,cuda:5,cuda:6,cuda:7,cuda:8,cuda:9,cuda:10,cuda:11,"
           "cuda:12,cuda:13,cuda:14,cuda:15,cuda:16",
           "more than 16");
}

static void test_too_many_folders(void **state)
{
    (void)state;
    struct options o;
    struct opd_err err = { 0 };
    char *argv[100] = { "opd" }, folders[49][80];
    for (int i = 0; i < 49; i++) {
        snprintf(folders[i], sizeof folders[i], "%s/%d", folder, i);
        mkdir(folders[i], 0700);
        argv[2 * i + 1] = "--kernels";
        argv[2 * i + 2] = folders[i];
    }
    assert_false(options_parse(&o, 99, argv, &err));
    assert_non_null(strstr(err.msg, "--kernels: more than 32"));
    options_finish(&o);
    for (int i = 0; i < 49; i++)
        rmdir(folders[i]);
}

int main(void)
{
    setenv("XDG_CONFIG_HOME", "/nonexistent", 1); // nothing of who runs the tests
    unsetenv("OPD_KERNELS");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_defaults, setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_option, setup, teardown),
        cmocka_unit_test_setup_teardown(test_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_values, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sizes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_devices, setup, teardown),
        cmocka_unit_test_setup_teardown(test_too_many_folders, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
