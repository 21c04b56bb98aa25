"""Take a process's access to files and the network away with Linux's Landlock."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

# The same numbers on every machine.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_READ_FILE = 1 << 2
# How many of the file rights, and which others, each version of the interface knows.
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
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def restrict_files(readable: Sequence[str]) -> bool:
    """Leave only reading the files under these folders; False where Landlock is not available.

    Takes TCP, and signals to processes outside, away as well where the kernel is new enough. The
    process must have given up new privileges.
    """
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    version = call(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), _ASK_VERSION)
    if version < 1:
        return False
    rules = _Ruleset(
        (1 << _FILE_RIGHTS.get(version, _NEWEST_FILE_RIGHTS)) - 1,
        _TCP_BIND_AND_CONNECT if version >= 4 else 0,
        _ABSTRACT_SOCKETS_AND_SIGNALS if version >= 6 else 0,
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = call(ctypes.c_long(_CREATE_RULESET), ctypes.byref(rules), ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    try:
        for folder in readable:
            _allow_reading(call, ruleset, folder)
        return bool(call(ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(ruleset), 0) == 0)
    finally:
        os.close(ruleset)


def _allow_reading(call: ctypes._NamedFuncPointer, ruleset: int, folder: str) -> None:
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # there is no such folder here
    try:
        rule = _PathBeneath(_READ_FILE, descriptor)
        call(ctypes.c_long(_ADD_RULE), ctypes.c_int(ruleset), _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(descriptor)
