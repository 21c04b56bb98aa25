"""What the parent, the server of the `host` device and its children tell each other: no pickles."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum

MESSAGE_BYTES = 1024
# Of a child, which is not trusted: it echoes the server's random token, and is of one size.
TOKEN_BYTES = 16
COMMAND = struct.Struct(f"={TOKEN_BYTES}sI")
ANSWER = struct.Struct(f"={TOKEN_BYTES}sII{MESSAGE_BYTES}s")
_LENGTH = struct.Struct("=I")
_MOST_DESCRIPTORS = 4


class Code(IntEnum):
    """How a launch ended; equal to `Code` in headers/on_host/launch.h."""

    DONE = 0
    REFUSED = 1
    STUCK = 2
    TIMEOUT = 3
    FAULT = 4
    SANITIZER = 5


@dataclass(frozen=True, slots=True)
class Attach:
    """Map the memory whose descriptor comes along; `outputs` are ranges to spoil before timing.

    `parameters` lists the kernel's: an offset into the memory, or a scalar's bytes in hex.
    `compared` are the ranges whose bits no run may leave otherwise than the one before.
    """

    total_bytes: int
    parameters: Sequence[int | str]
    guards: Sequence[Sequence[int]]
    outputs: Sequence[Sequence[int]]
    compared: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Detach:
    """Unmap the memory and end every child."""


@dataclass(frozen=True, slots=True)
class Call:
    """One launch: the library's function, grid, block and dynamic shared memory."""

    function: str
    grid: Sequence[int]
    block: Sequence[int]
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Load:
    """Start a child for the library whose descriptor comes along."""

    program: int
    calls: Sequence[Call]
    launch_timeout_s: float
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """Run a loaded program; `spoil` is a byte for the outputs before."""

    program: int
    order: int
    timeout_s: float
    spoil: int | None = None


@dataclass(frozen=True, slots=True)
class Unload:
    """End a program's child."""

    program: int


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run, or a load, ended: the server's time for it, a checksum of the compared ranges.

    `log` is what the child wrote to its output and error streams until its end; `killed` says that
    SIGKILL ended it, and not by us.
    """

    code: int
    message: str = ""
    wall_us: float = 0.0
    digest: int = 0
    log: str = ""
    killed: bool = False


@dataclass(frozen=True, slots=True)
class Hello:
    """What holds in the children, and the least time that a command to one takes.

    `fault` says why no child can be started, where none can.
    """

    limits: Sequence[str]
    handshake_us: float
    fault: str = ""


Message = Attach | Detach | Load | Run | Unload | Ran | Hello
_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Attach, Detach, Load, Run, Unload, Ran, Hello)
}


def send(connection: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send one message and open files."""
    content = json.dumps([type(message).__name__, asdict(message)]).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(content))], descriptors)
    connection.sendall(content)


def receive(connection: socket.socket) -> tuple[Message, list[int]]:
    """Wait for a message; raise `EOFError` where the other side is gone."""
    header, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST_DESCRIPTORS)
    header += _exactly(connection, _LENGTH.size - len(header)) if header else b""
    if not header:
        raise EOFError
    kind, fields = json.loads(_exactly(connection, *_LENGTH.unpack(header)))
    if kind == "Load":
        fields["calls"] = [Call(**call) for call in fields["calls"]]
    return _KINDS[kind](**fields), descriptors


def _exactly(connection: socket.socket, count: int) -> bytes:
    pieces = []
    while count:
        piece = connection.recv(count)
        if not piece:
            raise EOFError
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
