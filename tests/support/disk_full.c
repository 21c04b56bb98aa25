// Lets writes to DISK_FULL_FOLDER fail, as on a full disk, once DISK_FULL_AFTER bytes are written. It may be
// one file, and then stands for those named after it with a dot, too.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_llong written;

static int is_there(int file) {
  const char* folder = getenv("DISK_FULL_FOLDER");
  char link[64], path[PATH_MAX];
  if (!folder) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  size_t prefix = strlen(folder);
  const char after = path[prefix];
  return strncmp(path, folder, prefix) == 0 && (after == '/' || after == '.' || !after);
}

static int full(int file, size_t bytes) {
  const int before = errno;
  const char* after = getenv("DISK_FULL_AFTER");
  const int refused = is_there(file) && (written += bytes) > (after ? atoll(after) : 0);
  errno = refused ? ENOSPC : before;
  return refused;
}

#define REAL(result, name, ...)                                         \
  static result (*real)(__VA_ARGS__);                                   \
  if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

ssize_t write(int file, const void* data, size_t bytes) {
  REAL(ssize_t, write, int, const void*, size_t);
  return full(file, bytes) ? -1 : real(file, data, bytes);
}

ssize_t pwrite(int file, const void* data, size_t bytes, off_t at) {
  REAL(ssize_t, pwrite, int, const void*, size_t, off_t);
  return full(file, bytes) ? -1 : real(file, data, bytes, at);
}

ssize_t pwrite64(int file, const void* data, size_t bytes, off64_t at) {
  REAL(ssize_t, pwrite64, int, const void*, size_t, off64_t);
  return full(file, bytes) ? -1 : real(file, data, bytes, at);
}

ssize_t writev(int file, const struct iovec* pieces, int count) {
  REAL(ssize_t, writev, int, const struct iovec*, int);
  size_t bytes = 0;
  for (int k = 0; k < count; ++k) bytes += pieces[k].iov_len;
  return full(file, bytes) ? -1 : real(file, pieces, count);
}

int fsync(int file) {
  REAL(int, fsync, int);
  return full(file, 0) ? -1 : real(file);
}

int fdatasync(int file) {
  REAL(int, fdatasync, int);
  return full(file, 0) ? -1 : real(file);
}
