"""What a process that runs a stranger's code gives up first, as far as the system lets it."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tuner.process.landlock import restrict_files
from tuner.process.seccomp import restrict_system_calls

# Where libraries and the list of their places lie.
LIBRARY_FOLDERS = (
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWIPC = 0x10000000, 0x40000000, 0x08000000
_CAPABILITY_VERSION = 0x20080522
_OPEN_FILES = 64
MEMORY_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a kernel's process may use: memory beyond what it starts with, and CPU time."""

    memory_bytes: int = MEMORY_BYTES
    cpu_s: int = 900
    readable: tuple[str, ...] = LIBRARY_FOLDERS


def separate() -> bool:
    """Leave the system's network; False where an ordinary user may not, or with threads."""
    return _succeeded(ctypes.CDLL(None).unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC))


def adopt_orphans() -> bool:
    """Become the parent of descendants whose parent ends, so that they can be found and ended."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """Be killed when the process `parent`, which must be single-threaded, ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def confine(limits: Limits, *, separated: bool) -> tuple[str, ...]:
    """Give up what a kernel does not need; return what is limited from now on.

    `separated` says whether an ancestor has left the network already.
    """
    memory = _limit(resource.RLIMIT_AS, _mapped_bytes() + limits.memory_bytes)
    cpu_time = _limit(resource.RLIMIT_CPU, limits.cpu_s)
    file_size = _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NPROC, 0)  # which does not hold for root
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    privileges = _prctl(_PR_SET_NO_NEW_PRIVS, 1) and _drop_capabilities()
    files = restrict_files(limits.readable)
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
            found = {int(word) for word in path.read_text(encoding="ascii").split()} - known
        except OSError:  # this Linux does not list children
            return
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _mapped_bytes() -> int:
    """Count what is mapped: the limit is on the sum, of which a sanitizer's shadow is terabytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


def _limit(kind: int, most: int) -> bool:
    try:
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(kind, (most, most))
    except (OSError, ValueError):
        return False
    return True


def _drop_capabilities() -> bool:
    """Give up what root, or the first process of a new user namespace, may do beyond a user."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    return _succeeded(ctypes.CDLL(None).capset(header, none))


def _prctl(option: int, value: int) -> bool:
    call = ctypes.CDLL(None).prctl
    call.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    return _succeeded(call(option, value, 0, 0, 0))


def _succeeded(status: int) -> bool:
    return status == 0
