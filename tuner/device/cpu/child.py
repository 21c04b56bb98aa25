"""The process in which a stranger's library is loaded and launched; forked, then confined.

Whatever happens here, its server takes nothing from it but answers of one form, and judges them by
its own clock: code that was loaded can write into every byte of this process.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from tuner.device.cpu.wire import ANSWER, COMMAND, MESSAGE_BYTES, Attach, Call, Code, Load
from tuner.process.confinement import Limits, confine, end_with_parent


class LaunchRecord(ctypes.Structure):
    """What a compiled kernel is launched with."""

    # As `Launch` in headers/on_host/launch.h.
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("arguments", ctypes.c_uint),
        ("order", ctypes.c_uint),
        ("timeout_s", ctypes.c_double),
        ("values", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("message", ctypes.c_void_p),
        ("message_bytes", ctypes.c_size_t),
        ("guards", ctypes.c_void_p),
        ("guard_count", ctypes.c_uint),
    )


class Range(ctypes.Structure):
    """Memory that a kernel may not touch: it lies around the arrays."""

    # As `Range` in headers/on_host/launch.h.
    _fields_ = (("start", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


@dataclass(frozen=True, slots=True)
class Work:
    """What a child does: load a library and launch its functions on memory mapped at `base`."""

    library: int
    load: Load
    attach: Attach
    base: int


@dataclass(frozen=True, slots=True)
class Place:
    """What a child is given: a channel for commands, a pipe for its words, its limits."""

    channel: int
    log: int
    limits: Limits
    separated: bool
    server: int


def live(place: Place, work: Work | None) -> NoReturn:
    """Confine this forked process, load, then answer commands until the channel ends.

    The first answer's message lists the limits in force where there is no work, for the server to
    know them.
    """
    status = 1
    try:
        _keep_only(place, work)
        end_with_parent(place.server)
        in_force = confine(place.limits, separated=place.separated)
        token, _ = COMMAND.unpack(os.read(place.channel, COMMAND.size))
        program = None
        if work is None:
            _answer(place.channel, token, Code.DONE, ", ".join(in_force))
        else:
            program = _loaded(place.channel, token, work)
        while command := os.read(place.channel, COMMAND.size):
            token, order = COMMAND.unpack(command)
            code, message = (Code.DONE, "") if program is None else program.run(order)
            _answer(place.channel, token, code, message)
        status = 0
    except Exception as error:  # noqa: BLE001 - the server hands it on, whatever it is
        os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(status)


def _keep_only(place: Place, work: Work | None) -> None:
    """Close all that is open but the channel, the log as every stream, and the library."""
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(place.log, 1)
    os.dup2(place.log, 2)
    kept = {0, 1, 2, place.channel}
    if work is not None:
        kept.add(work.library)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are enough
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))


def _answer(channel: int, token: bytes, code: int, message: str) -> None:
    content = message.encode(errors="replace")[:MESSAGE_BYTES]
    os.write(channel, ANSWER.pack(token, code, len(content), content))


def _loaded(channel: int, token: bytes, work: Work) -> _Program:
    try:
        program = _Program(work)
    except (OSError, AttributeError) as error:
        _answer(channel, token, Code.REFUSED, f"the compiled kernel cannot be loaded: {error}")
        os._exit(0)
    _answer(channel, token, Code.DONE, "")
    return program


def _exit_at_once() -> None:
    """Let `exit` in a kernel skip what its library does then, which frees the kernel's stack."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)


class _Program:
    """A library in this process and the records that its functions are launched with."""

    def __init__(self, work: Work) -> None:
        # Its constructors run here, which is candidates' code already.
        library = ctypes.CDLL(f"/proc/self/fd/{work.library}")
        _exit_at_once()
        self._message = ctypes.create_string_buffer(MESSAGE_BYTES)
        self._arguments = _Arguments(work.attach.parameters, work.base)
        guards = [Range(work.base + start, end - start) for start, end in work.attach.guards]
        self._guards = (Range * len(guards))(*guards)
        self._launches = [
            (library[call.function], self._record(call, work.load.launch_timeout_s))
            for call in work.load.calls
        ]

    def run(self, order: int) -> tuple[int, str]:
        """Launch everything in turn until something fails; return how it ended."""
        for function, record in self._launches:
            record.order = order
            code = function(ctypes.byref(record))
            if code != Code.DONE:
                return code & 0xFFFFFFFF, self._message.value.decode(errors="replace")
        return Code.DONE, ""

    def _record(self, call: Call, timeout_s: float) -> LaunchRecord:
        return LaunchRecord(
            grid=tuple(call.grid),
            block=tuple(call.block),
            shared_bytes=call.shared_bytes,
            arguments=len(self._arguments.values),
            timeout_s=timeout_s,
            values=ctypes.addressof(self._arguments.pointers),
            sizes=ctypes.addressof(self._arguments.sizes),
            message=ctypes.addressof(self._message),
            message_bytes=MESSAGE_BYTES,
            guards=ctypes.addressof(self._guards),
            guard_count=len(self._guards),
        )


class _Arguments:
    """A kernel's parameters: an array of pointers to them, and their sizes."""

    def __init__(self, parameters: Sequence[int | str], base: int) -> None:
        self.values = [
            ctypes.c_void_p(base + item) if isinstance(item, int) else _scalar(bytes.fromhex(item))
            for item in parameters
        ]
        count = len(self.values)
        self.pointers = (ctypes.c_void_p * count)(*map(ctypes.addressof, self.values))
        self.sizes = (ctypes.c_uint * count)(*map(ctypes.sizeof, self.values))


def _scalar(content: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(content, len(content))


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
