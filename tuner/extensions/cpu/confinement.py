"""What a kernel's process on the CPU gives up before it runs a stranger's code.

It reads libraries and nothing else, and makes no system calls but those of computing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tuner.process.confinement import (
    LIBRARY_FOLDERS,
    NO_NEW_PRIVILEGES,
    READ_FILE,
    limit,
    prctl,
    restrict_files,
)

_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWIPC = 0x10000000, 0x40000000, 0x08000000
_CAPABILITY_VERSION = 0x20080522
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_KILL, _ALLOW, _REFUSE = 0x80000000, 0x7FFF0000, 0x00050000 | errno.EPERM
# Classic BPF: load a word of `seccomp_data`, and with a constant, compare, answer.
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16
_INSTRUCTION = struct.Struct("=HBBI")
# Writing, creating, truncating, appending, and O_TMPFILE's own bit.
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | 0x400000
_X32 = 0x40000000


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine's system calls by name: always allowed, allowed on a condition, and deadly.

    `code` is AUDIT_ARCH_*; numbers are those of asm/unistd_64.h and asm-generic/unistd.h.
    """

    code: int
    allowed: Mapping[str, int]
    deadly: Mapping[str, int]
    opening: Mapping[str, tuple[int, int]]  # the number, and which argument holds the flags
    signalling: Mapping[str, int]
    prlimit64: int
    foreign_from: int | None = None


MACHINES = {
    "x86_64": Machine(
        code=0xC000003E,
        allowed={
            "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "lseek": 8,
            "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13,
            "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17, "readv": 19, "writev": 20,
            "access": 21, "pipe": 22, "sched_yield": 24, "mincore": 27, "madvise": 28,
            "nanosleep": 35, "getitimer": 36, "setitimer": 38, "getpid": 39,
            "exit": 60, "uname": 63, "getcwd": 79, "readlink": 89, "gettimeofday": 96,
            "getrlimit": 97, "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102,
            "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "sigaltstack": 131,
            "gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204,
            "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229,
            "clock_nanosleep": 230, "exit_group": 231, "newfstatat": 262, "readlinkat": 267,
            "faccessat": 269, "pipe2": 293, "getcpu": 309, "getrandom": 318, "membarrier": 324,
            "faccessat2": 439,
        },
        deadly={
            "socket": 41, "connect": 42, "accept": 43, "sendto": 44, "sendmsg": 46, "bind": 49,
            "listen": 50, "socketpair": 53, "clone": 56, "fork": 57, "vfork": 58, "execve": 59,
            "truncate": 76, "ftruncate": 77, "rename": 82, "mkdir": 83, "creat": 85, "link": 86,
            "unlink": 87, "symlink": 88, "chmod": 90, "fchmod": 91, "ptrace": 101, "setsid": 112,
            "rt_sigqueueinfo": 129, "mknod": 133, "mount": 165, "add_key": 248, "keyctl": 250,
            "mkdirat": 258, "unlinkat": 263, "unshare": 272, "accept4": 288,
            "rt_tgsigqueueinfo": 297, "perf_event_open": 298, "setns": 308,
            "process_vm_readv": 310, "process_vm_writev": 311, "bpf": 321, "execveat": 322,
            "userfaultfd": 323, "pidfd_send_signal": 424, "io_uring_setup": 425, "clone3": 435,
            "pidfd_getfd": 438,
        },
        opening={"open": (2, 1), "openat": (257, 2)},
        signalling={"kill": 62, "tkill": 200, "tgkill": 234},
        prlimit64=302,
        foreign_from=_X32,
    ),
    "aarch64": Machine(
        code=0xC00000B7,
        allowed={
            "getcwd": 17, "faccessat": 48, "close": 57, "pipe2": 59, "lseek": 62, "read": 63,
            "write": 64, "readv": 65, "writev": 66, "pread64": 67, "readlinkat": 78,
            "newfstatat": 79, "fstat": 80, "exit": 93, "exit_group": 94, "futex": 98,
            "nanosleep": 101, "getitimer": 102, "setitimer": 103, "clock_gettime": 113,
            "clock_getres": 114, "clock_nanosleep": 115, "sched_getaffinity": 123,
            "sched_yield": 124, "restart_syscall": 128, "sigaltstack": 132, "rt_sigaction": 134,
            "rt_sigprocmask": 135, "rt_sigreturn": 139, "times": 153, "uname": 160,
            "getrlimit": 163, "getrusage": 165, "getcpu": 168, "gettimeofday": 169,
            "getpid": 172, "getppid": 173, "getuid": 174, "geteuid": 175, "getgid": 176,
            "getegid": 177, "gettid": 178, "sysinfo": 179, "brk": 214, "munmap": 215,
            "mmap": 222, "mprotect": 226, "mincore": 232, "madvise": 233,
            "getrandom": 278, "membarrier": 283, "faccessat2": 439,
        },
        deadly={
            "mkdirat": 34, "unlinkat": 35, "mount": 40, "truncate": 45, "ftruncate": 46,
            "fchmod": 52, "unshare": 97, "ptrace": 117, "rt_sigqueueinfo": 138, "setsid": 157,
            "socket": 198, "socketpair": 199, "bind": 200, "listen": 201, "accept": 202,
            "connect": 203, "sendto": 206, "sendmsg": 211, "add_key": 217, "keyctl": 219,
            "clone": 220, "execve": 221, "rt_tgsigqueueinfo": 240, "perf_event_open": 241,
            "accept4": 242, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271,
            "bpf": 280, "execveat": 281, "userfaultfd": 282, "pidfd_send_signal": 424,
            "io_uring_setup": 425, "clone3": 435, "pidfd_getfd": 438,
        },
        opening={"openat": (56, 2)},
        signalling={"kill": 129, "tkill": 130, "tgkill": 131},
        prlimit64=261,
    ),
}  # fmt: skip


def restrict_system_calls() -> bool:
    """Keep only the calls that computing, loading a library and ending take; False if impossible.

    Reading files stays allowed, which is Landlock's to limit. Network, processes, threads,
    signals to others and writing files kill the process with SIGSYS; the rest fails with EPERM.
    """
    machine = MACHINES.get(platform.machine())
    if machine is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    program = b"".join(_INSTRUCTION.pack(*i) for i in _instructions(machine, os.getpid()))
    code = ctypes.create_string_buffer(program, len(program))
    header = FilterProgram(len(program) // _INSTRUCTION.size, ctypes.addressof(code))
    return prctl(NO_NEW_PRIVILEGES, 1) and prctl(
        _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(header)
    )


class FilterProgram(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def _instructions(machine: Machine, pid: int) -> Iterator[tuple[int, int, int, int]]:
    yield _LOAD, 0, 0, _MACHINE_AT
    yield _EQUAL, 1, 0, machine.code
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, _NUMBER_AT
    if machine.foreign_from is not None:
        yield _AT_LEAST, 0, 1, machine.foreign_from
        yield _RETURN, 0, 0, _KILL
    for numbers, answer in ((machine.allowed, _ALLOW), (machine.deadly, _KILL)):
        for number in numbers.values():
            yield _EQUAL, 0, 1, number
            yield _RETURN, 0, 0, answer
    for number, flags in machine.opening.values():
        yield _EQUAL, 0, 5, number
        yield _LOAD, 0, 0, _ARGUMENTS_AT + 8 * flags
        yield _AND, 0, 0, _WRITING
        yield _EQUAL, 0, 1, 0
        yield _RETURN, 0, 0, _ALLOW
        yield _RETURN, 0, 0, _KILL
    for number in machine.signalling.values():
        yield _EQUAL, 0, 4, number
        yield _LOAD, 0, 0, _ARGUMENTS_AT
        yield _EQUAL, 0, 1, pid
        yield _RETURN, 0, 0, _ALLOW
        yield _RETURN, 0, 0, _KILL
    # prlimit64 may read: where its third argument, the new limit, is a null pointer.
    new_limit = _ARGUMENTS_AT + 8 * 2
    yield _EQUAL, 0, 5, machine.prlimit64
    yield _LOAD, 0, 0, new_limit
    yield _EQUAL, 0, 3, 0
    yield _LOAD, 0, 0, new_limit + 4
    yield _EQUAL, 0, 1, 0
    yield _RETURN, 0, 0, _ALLOW
    yield _RETURN, 0, 0, _REFUSE


# A kernel's process, beyond what it starts with.
MEMORY_BYTES = 4 << 30
_CPU_S = 900
_OPEN_FILES = 64


def separate() -> bool:
    """Leave the system's network; False where an ordinary user may not, or with threads."""
    left = ctypes.CDLL(None).unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC)
    return bool(left == 0)


def adopt_orphans() -> bool:
    """Become the parent of descendants whose parent ends, so that they can be found and ended."""
    return prctl(_PR_SET_CHILD_SUBREAPER, 1)


def confine_kernel(readable: Iterable[str], *, separated: bool) -> tuple[str, ...]:
    """Give up what a kernel does not need; return what is limited from now on.

    `readable` are files and folders beside the libraries', `separated` says whether an ancestor
    has left the network already.
    """
    # The limit is on the sum of what is mapped, of which a sanitizer's shadow is terabytes.
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    memory = limit(resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY_BYTES)
    cpu_time = limit(resource.RLIMIT_CPU, _CPU_S)
    file_size = limit(resource.RLIMIT_FSIZE, 0)
    limit(resource.RLIMIT_NPROC, 0)  # which does not hold for root
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    # What root, or the first process of a new user namespace, may do beyond a user.
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    privileges = prctl(NO_NEW_PRIVILEGES, 1) and ctypes.CDLL(None).capset(header, none) == 0
    paths = (*LIBRARY_FOLDERS, *readable)
    files = restrict_files([(Path(path), READ_FILE) for path in paths], scoped=True)
    calls = restrict_system_calls()
    in_force = {
        "memory": memory,
        "cpu time": cpu_time,
        "file size": file_size,
        "processes": calls,
        "privileges": privileges,
        "network": separated or calls,
        "files": files,
        "system calls": calls,
    }
    return tuple(name for name, holds in in_force.items() if holds)


def end_strays(known: set[int]) -> None:
    """Kill the children that are not `known`: what a kernel started and left behind."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    while True:
        try:
            strays = {int(word) for word in path.read_text(encoding="ascii").split()} - known
        except OSError:  # this Linux does not list children
            return
        if not strays:
            return
        for pid in strays:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
