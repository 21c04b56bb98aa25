"""What a process that handles a stranger's code gives up first, as far as the system lets it.

Policies use one Landlock: NVRTC's processes read named folders and write their own.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

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
_PR_SET_PDEATHSIG, NO_NEW_PRIVILEGES = 1, 38

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


def prctl(option: int, first: int, second: int = 0) -> bool:
    """Ask the system to change something about this process; False where it refuses."""
    call = ctypes.CDLL(None).prctl
    call.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    return bool(call(option, first, second, 0, 0) == 0)


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
    # struct landlock_ruleset_attr: files, network, scope
    scope = _ABSTRACT_SOCKETS_AND_SIGNALS if scoped else 0
    rules = struct.pack("=QQQ", handled, _TCP_BIND_AND_CONNECT, scope)
    rules = rules[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = call(ctypes.c_long(_CREATE_RULESET), rules, ctypes.c_size_t(len(rules)), 0)
    if ruleset < 0:
        return False
    try:
        for path, rights in allowed:
            with suppress(OSError):  # there is no such path here
                usable = rights & handled & (0xFFFF if path.is_dir() else _OF_A_FILE)
                parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
                rule = struct.pack("=Qi", usable, parent)  # struct landlock_path_beneath_attr
                call(ctypes.c_long(_ADD_RULE), ctypes.c_int(ruleset), _PATH_BENEATH, rule, 0)
                os.close(parent)
        if not prctl(NO_NEW_PRIVILEGES, 1):
            return False
        return bool(call(ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(ruleset), 0) == 0)
    finally:
        os.close(ruleset)


def limit(kind: int, most: int) -> bool:
    """Bound one of this process's resources; False where that cannot be done."""
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


def limit_process(data_bytes: int = MAX_DATA_BYTES) -> None:
    """Bound this process's memory and files, so that a bomb ends as one failure."""
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_DATA, data_bytes)
    limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)


def be_quiet() -> None:
    """Print nothing from here on, whatever a kernel or a driver writes, and leave no core file."""
    limit(resource.RLIMIT_CORE, 0)
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


def end_with_parent(parent: int) -> None:
    """Be killed when the thread of the process `parent` that started this one ends."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
