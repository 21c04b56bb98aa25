"""The server of the `host` device: forks a confined child for every program and times its runs.

It runs no candidate's code, has an empty environment and one thread, and imports no NumPy, which
starts more. It never maps what kernels work on, nor is told what that holds: a child has a copy of
all that is known here. It ends with its parent, and its children with it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from tuner.extensions.cpu import confinement
from tuner.extensions.cpu.child import (
    ANSWER,
    COMMAND,
    MESSAGE_BYTES,
    TOKEN_BYTES,
    AttachRequest,
    DetachRequest,
    LaunchEnd,
    LoadRequest,
    Request,
    RunAnswer,
    RunRequest,
    ServerHello,
    UnloadRequest,
    Work,
    decode_request,
    live,
)
from tuner.process.protocol import receive, send

# Loaded before the fork, so that a child need not find them.
_COMMON_LIBRARIES = ("libm.so.6", "libgcc_s.so.1", "libstdc++.so.6")
_START_S = 10.0
# The median counts, and for the noise nine in ten.
_HANDSHAKES = 300
_HANDSHAKES_S = 0.5
_MOST_STARTS = 3  # of the first child, where SIGKILL ends it: memory may be short for a moment
_LOG_BYTES = 64 << 10
_DYING_S = 0.2
_FORBIDDEN = (
    "the kernel made a system call that kernels may not make (network, processes, threads, "
    "signals to others, writing files)"
)


def serve(descriptor: str, *readable: str) -> None:
    """Answer the parent at the other end of the socket until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    os.environ.clear()
    for name in _COMMON_LIBRARIES:
        with suppress(OSError):  # a kernel that needs it will say so
            ctypes.CDLL(name)
    with socket.socket(fileno=int(descriptor)) as parent:
        server = _Server(parent, readable)
        with suppress(_ParentGoneError, EOFError, BrokenPipeError, ConnectionResetError):
            send(parent, asdict(server.hello()))
            while True:
                server.answer_one()
        server.end_all()


class _Server:
    """Hold the descriptors of the memory and one child for each loaded program."""

    def __init__(self, parent: socket.socket, readable: tuple[str, ...]) -> None:
        self._parent, self._readable = parent, readable
        self._separated = confinement.separate()
        confinement.adopt_orphans()
        self._attach: AttachRequest | None = None
        self._files: tuple[int, ...] = ()
        self._children: dict[int, _ForkedChild] = {}

    def hello(self) -> ServerHello:
        """Learn from a child without a program what is limited, and how long a command takes."""
        for _ in range(_MOST_STARTS - 1):
            hello, killed = self._introduce_child()
            if not killed:
                return hello
        return self._introduce_child()[0]

    def answer_one(self) -> None:
        message = receive(self._parent)
        try:
            answer = self._serve(decode_request(message.header), message.descriptors)
        finally:
            for descriptor in message.descriptors:
                os.close(descriptor)
        send(self._parent, asdict(answer))

    def end_all(self) -> None:
        for program in list(self._children):
            self._end(program)

    def _introduce_child(self) -> tuple[ServerHello, bool]:
        """Ask one child without a program; say also whether SIGKILL ended it."""
        child = self._fork(None)
        answers: list[RunAnswer] = []
        try:
            ran = child.run(0, _START_S)
            limits = ran.message
            enough_s = time.perf_counter() + _HANDSHAKES_S
            while ran.code == LaunchEnd.DONE and len(answers) < _HANDSHAKES:
                if answers and time.perf_counter() > enough_s:
                    break
                ran = child.run(0, _START_S)
                answers.append(ran)
        finally:
            child.end()
        if ran.code != LaunchEnd.DONE:
            return ServerHello([], fault=f"{ran.message} {child.log}".strip()), ran.killed
        times_us = sorted(answer.wall_us for answer in answers)
        low, middle, high = (times_us[len(times_us) * part // 20] for part in (1, 10, 19))
        computing_us = sorted(answer.computing_us for answer in answers)[len(answers) // 2]
        limited = limits.split(", ") if limits else []
        return ServerHello(limited, middle, computing_us, high - low), False

    def _serve(self, request: Request, descriptors: Sequence[int]) -> RunAnswer:
        match request:
            case AttachRequest():
                self._let_go()
                self._files = tuple(map(os.dup, descriptors))
                self._attach = request
            case DetachRequest():
                self._let_go()
            case LoadRequest(program=program):
                self._end(program)
                assert self._attach is not None
                written, read = self._files
                work = Work(descriptors[0], request, self._attach, (written, read))
                self._children[program] = self._fork(work)
                return self._run(program, 0, request.timeout_s)
            case RunRequest(program=program):
                return self._run(program, request.order, request.timeout_s)
            case UnloadRequest():
                self._end(request.program)
        return RunAnswer(LaunchEnd.DONE)

    def _let_go(self) -> None:
        self.end_all()
        for file in self._files:
            os.close(file)
        self._files, self._attach = (), None

    def _run(self, program: int, order: int, timeout_s: float) -> RunAnswer:
        """Let a child go on; one that does not answer as it should is ended."""
        child = self._children[program]
        ran = child.run(order, timeout_s)
        if ran.code == LaunchEnd.DONE:
            return ran
        self._end(program)
        return replace(ran, log=child.log)

    def _fork(self, work: Work | None) -> _ForkedChild:
        return _ForkedChild(work, self._readable, self._separated, self._parent)

    def _end(self, program: int) -> None:
        child = self._children.pop(program, None)
        if child is not None:
            child.end()
            confinement.end_strays({other.pid for other in self._children.values()})


class _ParentGoneError(Exception):
    """Nobody is left who waits for the answer."""


class _ForkedChild:
    """One child of the server; between commands it is stopped, and so cannot touch what is judged.

    `parent` is watched while a command runs: the child ends with it.
    """

    def __init__(
        self, work: Work | None, readable: tuple[str, ...], separated: bool, parent: socket.socket
    ) -> None:
        self._parent = parent
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log_end, log = os.pipe()
        os.set_blocking(self._log_end, False)
        self._log = b""
        self._status: int | None = None
        self._computed_s = 0.0
        server = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            live(work, theirs.fileno(), log, server, readable, separated=separated)
        theirs.close()
        os.close(log)

    @property
    def log(self) -> str:
        return self._log.decode(errors="replace")

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it, as far as that was seen."""
        return self._status == signal.SIGKILL

    def run(self, order: int, timeout_s: float) -> RunAnswer:
        """Let it answer one command, then stop it.

        What it computes after its answer and before it stands still counts as well: one that
        answers before its work has gained nothing.
        """
        ran = self._command(order, timeout_s)
        if ran.code != LaunchEnd.DONE:
            return ran
        if not self._pause():
            message = "the kernel ended its process after its answer"
            return RunAnswer(LaunchEnd.FAULT, message, killed=self.killed)
        # The clock of a process's time on all cores (clock_getcpuclockid(3)).
        computed_s, before_s = time.clock_gettime(~self.pid << 3 | 2), self._computed_s
        self._computed_s = computed_s
        return replace(ran, computing_us=(computed_s - before_s) * 1e6)

    def _command(self, order: int, timeout_s: float) -> RunAnswer:
        token = os.urandom(TOKEN_BYTES)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        started = time.perf_counter()
        with suppress(OSError):  # it has ended, as will be seen
            self._channel.send(COMMAND.pack(token, order))
        if not self._answers(started + timeout_s):
            return RunAnswer(LaunchEnd.TIMEOUT, "the kernel gave no answer in time")
        content = b""
        with suppress(OSError):
            content = self._channel.recv(ANSWER.size + 1)
        wall_us = (time.perf_counter() - started) * 1e6
        if not content:
            message = self._ending()
            return RunAnswer(LaunchEnd.FAULT, message, killed=self.killed)
        return _parse_answer(content, token, wall_us)

    def _pause(self) -> bool:
        """Stop it, and return when it has; False where it has ended instead."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
        happened = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED)
        assert happened is not None
        if happened.si_code == os.CLD_STOPPED:
            return True
        # As `waitpid` gives it: an exit code stands above the signal's seven bits.
        exited = happened.si_code == os.CLD_EXITED
        self._status = happened.si_status << 8 if exited else happened.si_status
        return False

    def end(self) -> None:
        """Kill it with its process group, and keep the last of what it wrote."""
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)
        if self._status is None:
            self._status = os.waitpid(self.pid, 0)[1]
        self._read_log()
        self._channel.close()
        os.close(self._log_end)

    def _answers(self, deadline: float) -> bool:
        """Wait until the channel has something, or its end; read what is logged meanwhile."""
        poll = select.poll()
        channel, parent = self._channel.fileno(), self._parent.fileno()
        poll.register(channel, select.POLLIN)
        poll.register(self._log_end, select.POLLIN)
        poll.register(parent, select.POLLRDHUP)
        while (left_s := deadline - time.perf_counter()) > 0:
            ready = dict(poll.poll(left_s * 1e3))
            if channel in ready:
                return True
            if parent in ready:
                raise _ParentGoneError
            if self._log_end in ready and not self._read_log():
                poll.unregister(self._log_end)
        return False

    def _read_log(self) -> bool:
        """Take what is there, beyond the limit for nothing; False at the end."""
        with suppress(BlockingIOError):
            while piece := os.read(self._log_end, _LOG_BYTES):
                self._log = (self._log + piece)[:_LOG_BYTES]
            return False
        return True

    def _ending(self) -> str:
        """Say how it ended, or that it only closed its channel."""
        deadline = time.perf_counter() + _DYING_S
        while time.perf_counter() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = status
                exit_code = os.waitstatus_to_exitcode(status)
                if exit_code >= 0:
                    return f"the kernel ended its process (exit code {exit_code}) without an answer"
                if -exit_code == signal.SIGSYS:
                    return _FORBIDDEN
                name = signal.Signals(-exit_code).name
                if -exit_code == signal.SIGKILL:
                    return f"the kernel's process was killed ({name}): memory may have run out"
                return f"the kernel's process ended by {name}"
            time.sleep(1e-3)
        return "the kernel closed the channel of its process: there is no answer"


def _parse_answer(content: bytes, token: bytes, wall_us: float) -> RunAnswer:
    if len(content) == ANSWER.size:
        echoed, code, length, message = ANSWER.unpack(content)
        if echoed == token and code in iter(LaunchEnd) and length <= MESSAGE_BYTES:
            text = message[:length].decode(errors="replace")
            # A terminal might obey the rest: the text is a stranger's.
            plain = "".join(one if one.isprintable() else " " for one in text)
            return RunAnswer(code, plain, wall_us)
    return RunAnswer(
        LaunchEnd.FAULT, "the kernel wrote to the channel of its process: there is no answer"
    )
