/* A disk that fails at one operation: loaded before libc (LD_PRELOAD), it counts what this process does to the files
   below one folder, and makes the N-th of these operations, or the N-th and all after it, fail with an error number.

   disk_fails(folder, at, number, stays)   begins to count at 0; `at` 0 only counts
   disk_works()                            ends it
   disk_operations()                       returns how many operations there were so far */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static size_t folder_length;
static long failing_at;
static int error_number, error_stays;
static atomic_long count;
static atomic_int armed;

void disk_fails(const char *of, long at, int number, int stays) {
    snprintf(folder, sizeof folder, "%s", of);
    folder_length = strlen(folder);
    failing_at = at;
    error_number = number;
    error_stays = stays;
    count = 0;
    armed = 1;
}

void disk_works(void) { armed = 0; }

long disk_operations(void) { return count; }

static int fails(const char *path) {
    if (strncmp(path, folder, folder_length) || (path[folder_length] && path[folder_length] != '/')) return 0;
    long number = ++count;
    if (!failing_at || (error_stays ? number < failing_at : number != failing_at)) return 0;
    errno = error_number;
    return 1;
}

static int descriptor_fails(int descriptor) {
    if (!armed) return 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    int before = errno;
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    if (length < 0) return 0;
    path[length] = 0;
    return fails(path);
}

static int path_fails(int at, const char *name) {
    if (!armed) return 0;
    if (name[0] == '/') return fails(name);
    char link[64], path[2 * PATH_MAX];
    if (at == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    int before = errno;
    ssize_t length = readlink(link, path, PATH_MAX);
    errno = before;
    if (length < 0) return 0;
    snprintf(path + length, sizeof path - (size_t)length, "/%s", name);
    return fails(path);
}

/* No room keeps nobody from removing; a broken disk does. */
static int removal_fails(int at, const char *name) {
    return armed && error_number != ENOSPC && path_fails(at, name);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OF_DESCRIPTOR(kind, name, parameters, descriptor, ...)  \
    kind name parameters {                                      \
        static __typeof__(&name) real;                          \
        if (!real) real = REAL(name);                           \
        return descriptor_fails(descriptor) ? -1 : real(__VA_ARGS__); \
    }
#define OF_PATH(name, parameters, failure, ...)                 \
    int name parameters {                                       \
        static __typeof__(&name) real;                          \
        if (!real) real = REAL(name);                           \
        return failure ? -1 : real(__VA_ARGS__);                \
    }

OF_DESCRIPTOR(ssize_t, write, (int fd, const void *from, size_t size), fd, fd, from, size)
OF_DESCRIPTOR(ssize_t, pwrite, (int fd, const void *from, size_t size, off_t at), fd, fd, from, size, at)
OF_DESCRIPTOR(ssize_t, pwrite64, (int fd, const void *from, size_t size, off64_t at), fd, fd, from, size, at)
OF_DESCRIPTOR(ssize_t, writev, (int fd, const struct iovec *from, int parts), fd, fd, from, parts)
OF_DESCRIPTOR(ssize_t, pwritev, (int fd, const struct iovec *from, int parts, off_t at), fd, fd, from, parts, at)
OF_DESCRIPTOR(ssize_t, pwritev64, (int fd, const struct iovec *from, int parts, off64_t at), fd, fd, from, parts, at)
OF_DESCRIPTOR(int, fsync, (int fd), fd, fd)
OF_DESCRIPTOR(int, fdatasync, (int fd), fd, fd)
OF_DESCRIPTOR(int, ftruncate, (int fd, off_t size), fd, fd, size)
OF_DESCRIPTOR(int, ftruncate64, (int fd, off64_t size), fd, fd, size)
OF_PATH(rename, (const char *from, const char *to), path_fails(AT_FDCWD, to), from, to)
OF_PATH(renameat, (int at, const char *from, int to_at, const char *to), path_fails(to_at, to), at, from, to_at, to)
OF_PATH(mkdir, (const char *name, mode_t mode), path_fails(AT_FDCWD, name), name, mode)
OF_PATH(mkdirat, (int at, const char *name, mode_t mode), path_fails(at, name), at, name, mode)
OF_PATH(unlink, (const char *name), removal_fails(AT_FDCWD, name), name)
OF_PATH(unlinkat, (int at, const char *name, int flags), removal_fails(at, name), at, name, flags)
OF_PATH(rmdir, (const char *name), removal_fails(AT_FDCWD, name), name)

static int opening_fails(int at, const char *name, int flags) {
    return (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) && path_fails(at, name);
}

#define OPENS(name, parameters, at, ...)                        \
    int name parameters {                                       \
        static __typeof__(&name) real;                          \
        if (!real) real = REAL(name);                           \
        va_list more;                                           \
        va_start(more, flags);                                  \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                           \
        return opening_fails(at, path, flags) ? -1 : real(__VA_ARGS__, flags, mode); \
    }

OPENS(open, (const char *path, int flags, ...), AT_FDCWD, path)
OPENS(open64, (const char *path, int flags, ...), AT_FDCWD, path)
OPENS(openat, (int at, const char *path, int flags, ...), at, at, path)
OPENS(openat64, (int at, const char *path, int flags, ...), at, at, path)

#define OPENS_STREAM(name)                                      \
    FILE *name(const char *path, const char *mode) {            \
        static __typeof__(&name) real;                          \
        if (!real) real = REAL(name);                           \
        return strpbrk(mode, "wa+") && path_fails(AT_FDCWD, path) ? NULL : real(path, mode); \
    }

OPENS_STREAM(fopen)
OPENS_STREAM(fopen64)
