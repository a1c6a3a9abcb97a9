#include "wire/trust.h"

#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"

enum { MAX_GROUPS = 1024, NAMES_SIZE = 1 << 16 };

static struct {
    bool has_group;
    gid_t group;
} trusted;

static bool find_group(const char *name, gid_t *out, bool *out_alone)
{
    char *names = mem_alloc(NAMES_SIZE);
    struct group group, *found = NULL;
    bool ok = getgrnam_r(name, &group, names, NAMES_SIZE, &found) == 0 && found;
    if (ok)
        *out = group.gr_gid;
    if (ok && out_alone)
        *out_alone = !group.gr_mem[0] || (strcmp(group.gr_mem[0], name) == 0 && !group.gr_mem[1]);
    free(names);
    return ok;
}

bool trust_init(const char *group, struct opd_err *err)
{
    trusted.has_group = group[0] != '\0';
    if (!trusted.has_group || find_group(group, &trusted.group, NULL))
        return true;
    return opd_err_set(err, OPD_E_invalid_argument, "--group: there is no group '%s'", group);
}

bool trust_group(gid_t *out)
{
    *out = trusted.group;
    return trusted.has_group;
}

static bool trust_owner(uid_t uid)
{
    struct stat exe;
    return uid == 0 || uid == geteuid() || (stat("/proc/self/exe", &exe) == 0 && uid == exe.st_uid);
}

// The name of a user; false: it has none.
static bool find_user(uid_t uid, char *name, size_t size, gid_t *out_group)
{
    char *names = mem_alloc(NAMES_SIZE);
    struct passwd user, *found = NULL;
    bool ok = getpwuid_r(uid, &user, names, NAMES_SIZE, &found) == 0 && found &&
              strlen(user.pw_name) < size;
    if (ok) {
        strcpy(name, user.pw_name);
        *out_group = user.pw_gid;
    }
    free(names);
    return ok;
}

// Many systems give each user a group of the same name, with nobody else in it, and make files that
// it can write.
static bool is_private(gid_t group, uid_t owner)
{
    char name[256];
    gid_t first, named;
    bool alone = false;
    return find_user(owner, name, sizeof name, &first) && first == group &&
           find_group(name, &named, &alone) && named == group && alone;
}

bool trust_check(const char *path, const struct stat *st, struct opd_err *err)
{
    if (!trust_owner(st->st_uid))
        return opd_err_set(
            err, OPD_E_invalid_argument,
            "%s belongs to another user (uid %u), whose code would run as yours; copy "
            "it to a folder of your own",
            path, (unsigned)st->st_uid);
    if (st->st_mode & S_IWOTH)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s can be written by everyone (mode %04o), whose code would run as "
                           "yours: chmod go-w %s",
                           path, (unsigned)(st->st_mode & 07777), path);
    bool group_is_good = st->st_gid == 0 || (trusted.has_group && st->st_gid == trusted.group) ||
                         is_private(st->st_gid, st->st_uid);
    if ((st->st_mode & S_IWGRP) && !group_is_good)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s can be written by its group (mode %04o, gid %u), whose code would "
                           "run as yours: chmod g-w %s, or let the group in with --group",
                           path, (unsigned)(st->st_mode & 07777), (unsigned)st->st_gid, path);
    return true;
}

bool trust_folder(const char *path, struct opd_err *err)
{
    struct stat st;
    return stat(path, &st) < 0 || trust_check(path, &st, err);
}

bool trust_peer(int sock)
{
    struct ucred peer;
    gid_t groups[MAX_GROUPS];
    socklen_t size = sizeof peer, groups_size = sizeof groups;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return false;
    if (peer.uid == geteuid() || peer.uid == 0)
        return true;
    if (!trusted.has_group)
        return false;
    if (peer.gid == trusted.group)
        return true;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, groups, &groups_size) < 0)
        return false;
    for (size_t i = 0; i < groups_size / sizeof groups[0]; i++)
        if (groups[i] == trusted.group)
            return true;
    return false;
}
