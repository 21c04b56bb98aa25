"""The server of the `host` device: forks a confined child for every program and times its runs.

It runs no candidate's code, has an empty environment and one thread, and imports no NumPy, which
starts more. It ends with its parent, and its children with it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress

from tuner.device.cpu.child import Work
from tuner.device.cpu.forked import Forked, ParentGoneError
from tuner.device.cpu.wire import (
    Attach,
    Code,
    Detach,
    Hello,
    Load,
    Message,
    Ran,
    Run,
    Unload,
    receive,
    send,
)
from tuner.process import confinement

# Loaded before the fork, so that a child need not find them.
_COMMON_LIBRARIES = ("libm.so.6", "libgcc_s.so.1", "libstdc++.so.6")
_START_S = 10.0
# The shortest counts, and on a busy machine most are long.
_HANDSHAKES = 300
_HANDSHAKES_S = 0.5
_MOST_STARTS = 3  # of the first child, where SIGKILL ends it: memory may be short for a moment


def serve(descriptor: int, memory_bytes: int, readable: Sequence[str]) -> None:
    """Answer the parent at the other end of the socket until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    os.environ.clear()
    for name in _COMMON_LIBRARIES:
        with suppress(OSError):  # a kernel that needs it will say so
            ctypes.CDLL(name)
    folders = (*confinement.LIBRARY_FOLDERS, *readable)
    limits = confinement.Limits(memory_bytes=memory_bytes, readable=folders)
    with socket.socket(fileno=descriptor) as parent:
        server = Server(parent, limits)
        with suppress(ParentGoneError, EOFError, BrokenPipeError, ConnectionResetError):
            send(parent, server.hello())
            while True:
                server.answer_one()
        server.end_all()


class Server:
    """Hold the verifier's memory and one child for each loaded program."""

    def __init__(self, parent: socket.socket, limits: confinement.Limits) -> None:
        self._parent, self._limits = parent, limits
        self._separated = confinement.separate()
        confinement.adopt_orphans()
        self._memory: mmap.mmap | None = None
        self._attach: Attach | None = None
        self._children: dict[int, Forked] = {}

    def hello(self) -> Hello:
        """Learn from a child without a program what is limited, and how long a command takes."""
        starts = 1
        hello, killed = self._introduced()
        while killed and starts < _MOST_STARTS:
            starts += 1
            hello, killed = self._introduced()
        return hello

    def answer_one(self) -> None:
        """Serve one request."""
        request, descriptors = receive(self._parent)
        try:
            answer = self._served(request, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        send(self._parent, answer)

    def end_all(self) -> None:
        """Kill every child and what it left behind."""
        for program in list(self._children):
            self._end(program)

    def _introduced(self) -> tuple[Hello, bool]:
        """Ask one child without a program; say also whether SIGKILL ended it."""
        child = self._fork(None)
        times_us: list[float] = []
        try:
            ran = child.command(0, _START_S)
            limits = ran.message
            enough_s = time.perf_counter() + _HANDSHAKES_S
            while ran.code == Code.DONE and len(times_us) < _HANDSHAKES:
                if times_us and time.perf_counter() > enough_s:
                    break
                ran = child.command(0, _START_S) if child.pause() else _gone(child)
                times_us.append(ran.wall_us)
        finally:
            child.end()
        if ran.code != Code.DONE:
            return Hello([], 0.0, f"{ran.message} {child.log}".strip()), ran.killed
        return Hello(limits.split(", ") if limits else [], min(times_us)), False

    def _served(self, request: Message, descriptors: Sequence[int]) -> Ran:
        match request:
            case Attach():
                self._unmap()
                self._memory = mmap.mmap(descriptors[0], request.total_bytes)
                self._attach = request
            case Detach():
                self._unmap()
            case Load():
                return self._load(request, descriptors[0])
            case Run():
                return self._run(request)
            case Unload():
                self._end(request.program)
        return Ran(Code.DONE)

    def _unmap(self) -> None:
        self.end_all()
        if self._memory is not None:
            self._memory.close()
        self._memory = self._attach = None

    def _load(self, request: Load, library: int) -> Ran:
        self._end(request.program)
        assert self._attach is not None
        child = self._fork(Work(library, request, self._attach, self._base))
        self._children[request.program] = child
        return self._ended_unless_done(request.program, child.command(0, request.timeout_s))

    def _run(self, request: Run) -> Ran:
        assert self._attach is not None
        if request.spoil is not None:
            for start, end in self._attach.outputs:
                ctypes.memset(self._base + start, request.spoil, end - start)
        child = self._children[request.program]
        return self._ended_unless_done(
            request.program, child.command(request.order, request.timeout_s)
        )

    def _ended_unless_done(self, program: int, ran: Ran) -> Ran:
        child = self._children[program]
        if ran.code == Code.DONE:
            if child.pause():
                return Ran(ran.code, ran.message, ran.wall_us, self._digest())
            ran = _gone(child)
        self._end(program)
        return Ran(ran.code, ran.message, log=child.log, killed=ran.killed)

    def _digest(self) -> int:
        assert self._attach is not None
        assert self._memory is not None
        digest = 0
        with memoryview(self._memory) as whole:
            for start, end in self._attach.compared:
                with whole[start:end] as piece:
                    digest = zlib.crc32(piece, digest)
        return digest

    def _fork(self, work: Work | None) -> Forked:
        return Forked(work, self._limits, separated=self._separated, parent=self._parent)

    def _end(self, program: int) -> None:
        child = self._children.pop(program, None)
        if child is not None:
            child.end()
            confinement.end_strays({other.pid for other in self._children.values()})

    @property
    def _base(self) -> int:
        assert self._memory is not None
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory))


def _gone(child: Forked) -> Ran:
    message = "the kernel ended its process after its answer"
    return Ran(Code.FAULT, message, killed=child.killed)
