"""The child process that loads and launches a stranger's library, and its commands.

It is forked, then confined. Whatever happens here, its server takes nothing from it but answers of
one form, and judges them by its own clock: code that was loaded can read and write every byte of
this process, which is forked from one that knows no inputs, no variant of them and no verdict.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, NoReturn, get_args

from tuner.extensions.cpu.confinement import confine_kernel
from tuner.process.confinement import end_with_parent

MESSAGE_BYTES = 1024
# A child is not trusted: its answer is one packet of one size, so that nobody waits for the rest or
# reads what it made up, and has the random token of the server's command.
TOKEN_BYTES = 16
COMMAND = struct.Struct(f"={TOKEN_BYTES}sI")
ANSWER = struct.Struct(f"={TOKEN_BYTES}sII{MESSAGE_BYTES}s")

# Of `TensorMap` in headers/on_host/asynchronous.h.
MAP_ALIGNMENT, MAP_ADDRESS_AT = 64, 8


class LaunchEnd(IntEnum):
    """How a launch ended; equal to `Code` in headers/on_host/launch.h."""

    DONE = 0
    REFUSED = 1
    STUCK = 2
    TIMEOUT = 3
    FAULT = 4
    SANITIZER = 5


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """Take the memory; two descriptors come along: what kernels write, and what they only read.

    Both files are `total_bytes` long. A child maps the pages `written` of the one and `readable` of
    the other, and can touch nothing else there. `parameters` lists the kernel's: an offset into the
    memory, or a scalar's bytes in hex.
    """

    total_bytes: int
    parameters: Sequence[int | str]
    guards: Sequence[Sequence[int]]
    written: Sequence[Sequence[int]]
    readable: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class DetachRequest:
    """Let go of the memory and end every child."""


@dataclass(frozen=True, slots=True)
class LaunchCall:
    """One launch: its kernel's name in the library, grid, block, cluster, shared memory, arguments.

    `arguments` are places in `AttachRequest.parameters`; `named` says that they are the launch's
    own. After them come `maps`: each an offset into the memory and the `TensorMap` of
    headers/on_host/asynchronous.h in hex, without the address.
    """

    function: str
    grid: Sequence[int]
    block: Sequence[int]
    cluster: Sequence[int]
    shared_bytes: int
    arguments: Sequence[int]
    named: bool = False
    maps: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Start a child for the library whose descriptor comes along."""

    program: int
    calls: Sequence[LaunchCall]
    launch_timeout_s: float
    timeout_s: float


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Run a loaded program on what the memory holds."""

    program: int
    order: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class UnloadRequest:
    """End a program's child."""

    program: int


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """How a run, or a load, ended, and the server's times for it: until the answer, and computing.

    `log` is what the child wrote to its output and error streams until its end; `killed` says that
    SIGKILL ended it, and not by us.
    """

    code: int
    message: str = ""
    wall_us: float = 0.0
    computing_us: float = 0.0
    log: str = ""
    killed: bool = False


@dataclass(frozen=True, slots=True)
class ServerHello:
    """What holds in the children, what an empty command takes, and how much that varies.

    `fault` says why no child can be started, where none can.
    """

    limits: Sequence[str]
    handshake_us: float = 0.0
    computing_us: float = 0.0
    noise_us: float = 0.0
    fault: str = ""


Request = AttachRequest | DetachRequest | LoadRequest | RunRequest | UnloadRequest
_REQUESTS: dict[str, type[Request]] = {kind.__name__: kind for kind in get_args(Request)}


def encode_request(request: Request) -> dict[str, Any]:
    return {"kind": type(request).__name__, **asdict(request)}


def decode_request(header: dict[str, Any]) -> Request:
    kind = _REQUESTS[header.pop("kind")]
    if kind is LoadRequest:
        header["calls"] = [LaunchCall(**call) for call in header["calls"]]
    return kind(**header)


class LaunchRecord(ctypes.Structure):
    """What a compiled kernel is launched with."""

    # As `Launch` in headers/on_host/launch.h.
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("cluster", ctypes.c_uint * 3),
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


class KernelEntry(ctypes.Structure):
    """What a library says of a kernel: how to call it, and with how many parameters."""

    # As `Kernel` in headers/on_host/launch.h.
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("function", "thread", "sizes")),
        ("count", ctypes.c_uint),
    )


class ByteRange(ctypes.Structure):
    """Memory that a kernel may not touch: it lies around the arrays."""

    # As `Range` in headers/on_host/launch.h.
    _fields_ = (("start", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


@dataclass(frozen=True, slots=True)
class Work:
    """What a child does: load a library and launch its functions on the memory of two files.

    The descriptor of what is only read allows no writing.
    """

    library: int
    load: LoadRequest
    attach: AttachRequest
    files: tuple[int, int]


def live(
    work: Work | None,
    channel: int,
    log: int,
    server: int,
    readable: Sequence[str],
    *,
    separated: bool,
) -> NoReturn:
    """Confine this forked process, load, then answer commands until the channel ends.

    `channel` is for commands, `log` a pipe for its words. The first answer's message lists the
    limits in force where there is no work, for the server to know them.
    """
    status = 1
    try:
        base = 0 if work is None else _map(work)
        _keep_only(log, {channel} if work is None else {channel, work.library})
        end_with_parent(server)
        in_force = confine_kernel(readable, separated=separated)
        token, _ = COMMAND.unpack(os.read(channel, COMMAND.size))
        program = None
        if work is not None:
            try:
                program = _LoadedLibrary(work, base)
            except (OSError, AttributeError, ValueError) as error:
                message = f"the compiled kernel cannot be loaded: {error}"
                _answer(channel, token, LaunchEnd.REFUSED, message)
                os._exit(0)
        _answer(channel, token, LaunchEnd.DONE, "" if program else ", ".join(in_force))
        while command := os.read(channel, COMMAND.size):
            token, order = COMMAND.unpack(command)
            code, message = (LaunchEnd.DONE, "") if program is None else program.run(order)
            _answer(channel, token, code, message)
        status = 0
    except Exception as error:  # noqa: BLE001 - the server hands it on, whatever it is
        os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(status)


_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 1, 2, 0x10, 0x20


def _map(work: Work) -> int:
    """Map the arrays, among closed pages; return where the memory begins.

    Each file has holes where it has no arrays: a mapping that is grown finds nothing of others.
    What was opened for reading only this process cannot map otherwise.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_long,
    )
    nowhere = _MAP_PRIVATE | _MAP_ANONYMOUS
    base = libc.mmap(None, work.attach.total_bytes, _PROT_NONE, nowhere, -1, 0)
    found = [base != ctypes.c_void_p(-1).value]
    for pages, file, protection in (
        (work.attach.written, work.files[0], _PROT_READ | _PROT_WRITE),
        (work.attach.readable, work.files[1], _PROT_READ),
    ):
        for start, end in pages if all(found) else ():
            place, flags = base + start, _MAP_SHARED | _MAP_FIXED
            found.append(libc.mmap(place, end - start, protection, flags, file, start) == place)
    if not all(found):
        raise OSError(ctypes.get_errno(), "the kernel's arrays cannot be mapped")
    return int(base)


def _keep_only(log: int, kept: set[int]) -> None:
    """Close all that is open but these and the log, which becomes every stream."""
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for stream, source in enumerate((nothing, log, log)):
        os.dup2(source, stream)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are enough
        if int(name) not in {0, 1, 2, *kept}:
            with suppress(OSError):
                os.close(int(name))


def _answer(channel: int, token: bytes, code: int, message: str) -> None:
    content = message.encode(errors="replace")[:MESSAGE_BYTES]
    os.write(channel, ANSWER.pack(token, code, len(content), content))


class _LoadedLibrary:
    """A library in this process and the records that its functions are launched with."""

    def __init__(self, work: Work, base: int) -> None:
        # Its constructors run here, which is candidates' code already.
        library = ctypes.CDLL(f"/proc/self/fd/{work.library}")
        libc = ctypes.CDLL(None)
        # `exit` in a kernel skips what its library does then, which frees the kernel's stack.
        if hasattr(libc, "on_exit"):
            libc.on_exit(libc._exit, None)
        self._message = ctypes.create_string_buffer(MESSAGE_BYTES)
        self._base = base
        self._values: list[Any] = [
            ctypes.c_void_p(base + item) if isinstance(item, int) else _scalar(item)
            for item in work.attach.parameters
        ]
        # What records point to.
        self._kept: list[object] = []
        guards = [ByteRange(base + start, end - start) for start, end in work.attach.guards]
        self._guards = (ByteRange * len(guards))(*guards)
        self._run = library["cuda_on_host_run"]
        self._launches = [
            (
                KernelEntry.in_dll(library, call.function),
                self._record(call, work.load.launch_timeout_s),
            )
            for call in work.load.calls
        ]
        self._calls = work.load.calls

    def run(self, order: int) -> tuple[int, str]:
        for number, (kernel, record) in enumerate(self._launches):
            record.order = order
            code = self._run(ctypes.byref(record), ctypes.byref(kernel))
            if code != LaunchEnd.DONE:
                # A parameter's number means little where every launch has parameters of its own.
                where = f", in launch {number + 1}" if self._calls[number].named else ""
                message = self._message.value.decode(errors="replace")
                return code & 0xFFFFFFFF, f"{message}{where}"
        return LaunchEnd.DONE, ""

    def _record(self, call: LaunchCall, timeout_s: float) -> LaunchRecord:
        values = [self._values[place] for place in call.arguments]
        values += (_tensor_map(self._base + offset, text) for offset, text in call.maps)
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        sizes = (ctypes.c_uint * len(values))(*map(ctypes.sizeof, values))
        self._kept += [values, pointers, sizes]
        return LaunchRecord(
            grid=tuple(call.grid),
            block=tuple(call.block),
            cluster=tuple(call.cluster),
            shared_bytes=call.shared_bytes,
            arguments=len(values),
            timeout_s=timeout_s,
            values=ctypes.addressof(pointers),
            sizes=ctypes.addressof(sizes),
            message=ctypes.addressof(self._message),
            message_bytes=MESSAGE_BYTES,
            guards=ctypes.addressof(self._guards),
            guard_count=len(self._guards),
        )


def _scalar(hexadecimal: str) -> ctypes.Array[ctypes.c_char]:
    content = bytes.fromhex(hexadecimal)
    return ctypes.create_string_buffer(content, len(content))


def _tensor_map(address: int, hexadecimal: str) -> ctypes.Array[ctypes.c_char]:
    content = bytes.fromhex(hexadecimal)
    room = ctypes.create_string_buffer(len(content) + MAP_ALIGNMENT)
    first = -ctypes.addressof(room) % MAP_ALIGNMENT
    made = (ctypes.c_char * len(content)).from_buffer(room, first)
    made.raw = content
    ctypes.c_uint64.from_buffer(made, MAP_ADDRESS_AT).value = address
    return made
