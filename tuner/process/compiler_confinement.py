"""What a compiler's process may use: bounds by the system, and files only from named folders."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Iterable
from pathlib import Path

MAX_DATA_BYTES = 6 << 30
# cub's precompiled header takes 310 MB.
MAX_FILE_BYTES = 1 << 30
# NVRTC needs none of them; the dynamic loader may.
KEPT_VARIABLES = ("LD_LIBRARY_PATH", "PATH")

# linux/landlock.h; the calls have the same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_READ = 1 << 2 | 1 << 3
_WRITE = 1 << 1 | sum(1 << bit for bit in range(4, 13))
_NEWER = {2: 1 << 13, 3: 1 << 14}
_TCP = 0b11
_FIRST_WITH_TCP = 4
_NO_NEW_PRIVILEGES = 38


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def limit() -> None:
    """Bound this process's memory and files, so that a bomb ends as one failed compile."""
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_DATA, MAX_DATA_BYTES)
    _lower(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)


def forget_environment(scratch: Path) -> None:
    """Drop the environment's variables, which may hold keys, from this process and its children."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    os.environ.clear()
    os.environ.update(kept, TMPDIR=str(scratch), LC_ALL="C", CUDA_CACHE_DISABLE="1")


def confine(readable: Iterable[Path], writable: Iterable[Path]) -> bool:
    """Keep the calling thread, and threads that it starts, from all other files and from TCP.

    Return False where the system (Linux before 5.13, or without Landlock) cannot do so. It cannot
    be undone, and metadata of other files (their existence, their size) stays visible.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    if version < 1:
        return False
    handled = _READ | _WRITE | 1 | sum(bit for first, bit in _NEWER.items() if version >= first)
    rules = _Ruleset(handled, _TCP if version >= _FIRST_WITH_TCP else 0)
    size = ctypes.c_size_t(16 if version >= _FIRST_WITH_TCP else 8)
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(rules), size, 0)
    if ruleset < 0:
        return False
    try:
        for path in readable:
            _allow(libc, ruleset, path, _READ)
        for path in writable:
            _allow(libc, ruleset, path, handled & ~1)
        if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            return False
        return bool(libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def system_folders() -> list[Path]:
    """List what any program reads: libraries, Python's own files, and harmless devices."""
    places = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/cuda"]
    places += ["/etc/ld.so.cache", "/dev/null", "/dev/urandom", "/proc/self", "/proc/meminfo"]
    places += ["/proc/cpuinfo", "/sys/devices/system/cpu", sys.prefix, f"{sys.base_prefix}/lib"]
    return [*map(Path, places), Path(__file__).resolve().parents[1]]


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, access: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not path.is_dir():
            access &= 1 << 1 | 1 << 2 | _NEWER[3]
        rule = _PathBeneath(access, parent)
        libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (bound, bound))
