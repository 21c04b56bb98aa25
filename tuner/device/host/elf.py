"""Look at a compiled library before the loader does, whose words for what is wrong are few."""

from __future__ import annotations

import platform
import struct

_HEADER = struct.Struct("<4sBBBB8xHHIQQQIHHHHHH")
_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 190: "CUDA", 243: "riscv64"}
_SHARED = 3


def elf_fault(library: bytes) -> str:
    """Say why these bytes are no shared library for this machine; empty if they may be one."""
    if len(library) < _HEADER.size:
        return f"is no library: it has {len(library)} bytes"
    magic, wide, _, _, _, kind, machine, *rest = _HEADER.unpack_from(library)
    sections, section_bytes, section_count = rest[3], rest[8], rest[9]
    if magic != b"\x7fELF":
        return "is no library: it does not begin as an ELF file"
    name = _MACHINES.get(machine, f"machine {machine}")
    if name != platform.machine() and platform.machine() in _MACHINES.values():
        return f"is for {name}, and this machine is {platform.machine()}"
    if wide != 2 or kind != _SHARED:
        return "is no shared library of 64 bits"
    # The table of sections is the last thing in a library.
    expected = sections + section_bytes * section_count
    if len(library) < expected:
        return f"is cut short: {len(library)} of {expected} bytes"
    return ""
