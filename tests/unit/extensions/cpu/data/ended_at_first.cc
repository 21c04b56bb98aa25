// In a library that the server is started with: its first children end before they begin.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
extern "C" int setpgid(pid_t pid, pid_t group) {
  const int file = open(STARTS, O_WRONLY | O_CREAT | O_APPEND, 0600);
  const bool ended = lseek(file, 0, SEEK_END) < TIMES && write(file, "x", 1) == 1;
  close(file);
  if (ended) END;
  return static_cast<int>(syscall(SYS_setpgid, pid, group));
}
