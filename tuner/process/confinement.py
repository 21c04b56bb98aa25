"""What a process that handles a stranger's code gives up first, as far as the system lets it.

Three policies use one Landlock: NVRTC's processes read named folders and write their own, and so
do the programs that a thread starts; a kernel's process on the CPU reads libraries and nothing
else.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tuner.process.seccomp import prctl, restrict_system_calls

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
# Where programs lie, and what they need to start.
SYSTEM_PROGRAMS = (*LIBRARY_FOLDERS, "/bin", "/usr/bin", "/usr/local/bin")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWIPC = 0x10000000, 0x40000000, 0x08000000
_CAPABILITY_VERSION = 0x20080522

# linux/landlock.h; the calls have the same numbers on every machine.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER, TRUNCATE = (1 << bit for bit in (0, 1, 2, 3, 14))
# Rights that a single file can have; the others are a folder's.
_OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
# How many of the rights to files each version of the interface knows.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_NEWEST_FILE_RIGHTS = 16
_TCP_BIND_AND_CONNECT, _ABSTRACT_SOCKETS_AND_SIGNALS = 0b11, 0b11


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scope", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def restrict_files(allowed: Iterable[tuple[Path, int]], *, scoped: bool = False) -> bool:
    """Leave the calling thread, and those that it starts, only these rights below these paths.

    Takes TCP away as well where the kernel is new enough and, where `scoped`, signals to processes
    outside. Returns False where the system (Linux before 5.13, or without Landlock) cannot do so.
    It cannot be undone, and metadata of other files (their existence, their size) stays visible.
    """
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    version = call(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), _ASK_VERSION)
    if version < 1:
        return False
    handled = (1 << _FILE_RIGHTS.get(version, _NEWEST_FILE_RIGHTS)) - 1
    rules = _Ruleset(
        handled,
        _TCP_BIND_AND_CONNECT if version >= 4 else 0,
        _ABSTRACT_SOCKETS_AND_SIGNALS if scoped and version >= 6 else 0,
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = call(ctypes.c_long(_CREATE_RULESET), ctypes.byref(rules), ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    try:
        for path, rights in allowed:
            with suppress(OSError):  # there is no such path here
                known = rights & handled & (0xFFFF if path.is_dir() else _OF_A_FILE)
                parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
                rule = ctypes.byref(_PathBeneath(known, parent))
                call(ctypes.c_long(_ADD_RULE), ctypes.c_int(ruleset), _PATH_BENEATH, rule, 0)
                os.close(parent)
        if not prctl(_PR_SET_NO_NEW_PRIVS, 1):
            return False
        return bool(call(ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(ruleset), 0) == 0)
    finally:
        os.close(ruleset)


def _limit(kind: int, most: int) -> bool:
    try:
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(kind, (most, most))
    except (OSError, ValueError):
        return False
    return True


# A compiler's process.
MAX_DATA_BYTES = 6 << 30
# cub's precompiled header takes 310 MB.
MAX_FILE_BYTES = 1 << 30


def limit_compiler() -> None:
    """Bound this process's memory and files, so that a bomb ends as one failed compile."""
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_DATA, MAX_DATA_BYTES)
    _limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)


def be_quiet() -> None:
    """Print nothing from here on, whatever a kernel or a driver writes, and leave no core file."""
    _limit(resource.RLIMIT_CORE, 0)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


def forget_environment(scratch: Path) -> None:
    """Drop the environment's variables, which may hold keys, from this process and its children."""
    # NVRTC needs none of them; the dynamic loader may.
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ}
    os.environ.clear()
    os.environ.update(kept, TMPDIR=str(scratch), LC_ALL="C", CUDA_CACHE_DISABLE="1")


def confine_compiler(
    readable: Iterable[Path], writable: Iterable[Path], programs: Iterable[str] = ()
) -> bool:
    """Keep the calling thread from all files but these, and what any program reads.

    It may start what lies in `programs`, which the same holds for.
    """
    places = [*LIBRARY_FOLDERS, "/usr/local/cuda", "/dev/null", "/dev/urandom", "/proc/self"]
    places += ["/proc/meminfo", "/proc/cpuinfo", "/sys/devices/system/cpu"]
    places += [sys.prefix, f"{sys.base_prefix}/lib", str(Path(__file__).resolve().parents[1])]
    reading = [*map(Path, places), *readable]
    allowed = [(path, READ_FILE | READ_FOLDER) for path in reading]
    allowed += [(Path(path), READ_FILE | READ_FOLDER | EXECUTE) for path in programs]
    return restrict_files([*allowed, *((path, 0xFFFF & ~EXECUTE) for path in writable)])


def confine_program(programs: Iterable[Path], readable: Iterable[Path], scratch: Path) -> bool:
    """Keep what the calling thread starts to `programs` and the system's, their headers and these.

    It writes to `scratch` alone.
    """
    rights = READ_FILE | READ_FOLDER
    allowed = [(path, rights | EXECUTE) for path in (*map(Path, SYSTEM_PROGRAMS), *programs)]
    headers = (Path("/usr/include"), Path("/usr/local/include"))
    allowed += [(path, rights) for path in (*headers, *readable)]
    return restrict_files([*allowed, (Path("/dev/null"), rights | WRITE_FILE), (scratch, 0xFFFF)])


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


def end_with_parent(parent: int) -> None:
    """Be killed when the thread of the process `parent` that started this one ends."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def confine_kernel(readable: Iterable[str], *, separated: bool) -> tuple[str, ...]:
    """Give up what a kernel does not need; return what is limited from now on.

    `readable` are files and folders beside the libraries', `separated` says whether an ancestor
    has left the network already.
    """
    # The limit is on the sum of what is mapped, of which a sanitizer's shadow is terabytes.
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    memory = _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY_BYTES)
    cpu_time = _limit(resource.RLIMIT_CPU, _CPU_S)
    file_size = _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NPROC, 0)  # which does not hold for root
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    # What root, or the first process of a new user namespace, may do beyond a user.
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    privileges = prctl(_PR_SET_NO_NEW_PRIVS, 1) and ctypes.CDLL(None).capset(header, none) == 0
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
