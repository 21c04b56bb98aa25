"""A forked child as its server sees it: commands with a deadline, stopped in between, its end."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from contextlib import suppress

from tuner.device.cpu.child import Place, Work, live
from tuner.device.cpu.wire import ANSWER, COMMAND, MESSAGE_BYTES, TOKEN_BYTES, Code, Ran
from tuner.process.confinement import Limits

_LOG_BYTES = 64 << 10
_DYING_S = 0.2
_FORBIDDEN = (
    "the kernel made a system call that kernels may not make (network, processes, threads, "
    "signals to others, writing files)"
)


class ParentGoneError(Exception):
    """Nobody is left who waits for the answer."""


class Forked:
    """One child of the server; between commands it is stopped, and cannot touch what is verified.

    `parent` is watched while a command runs: the child ends with it.
    """

    def __init__(
        self, work: Work | None, limits: Limits, *, separated: bool, parent: socket.socket
    ) -> None:
        self._parent = parent
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log_end, log = os.pipe()
        os.set_blocking(self._log_end, False)
        self._log = b""
        self._status: int | None = None
        server = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            live(Place(theirs.fileno(), log, limits, separated, server), work)
        theirs.close()
        os.close(log)

    @property
    def log(self) -> str:
        """What it wrote to its output and error streams, so far as it was read."""
        return self._log.decode(errors="replace")

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it, as far as that was seen."""
        return self._status == signal.SIGKILL

    def command(self, order: int, timeout_s: float) -> Ran:
        """Tell it to go on, and time it until it answers."""
        token = os.urandom(TOKEN_BYTES)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        started = time.perf_counter()
        with suppress(OSError):  # it has ended, as will be seen
            self._channel.send(COMMAND.pack(token, order))
        if not self._answers(started + timeout_s):
            return Ran(Code.TIMEOUT, "the kernel gave no answer in time")
        content = self._received()
        wall_us = (time.perf_counter() - started) * 1e6
        if not content:
            message = self._ending()
            return Ran(Code.FAULT, message, killed=self.killed)
        return _parsed(content, token, wall_us)

    def pause(self) -> bool:
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
                raise ParentGoneError
            if self._log_end in ready and not self._read_log():
                poll.unregister(self._log_end)
        return False

    def _received(self) -> bytes:
        try:
            return self._channel.recv(ANSWER.size + 1)
        except OSError:
            return b""

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
                return _described(os.waitstatus_to_exitcode(status))
            time.sleep(1e-3)
        return "the kernel closed the channel of its process: there is no answer"


def _parsed(content: bytes, token: bytes, wall_us: float) -> Ran:
    if len(content) == ANSWER.size:
        echoed, code, length, message = ANSWER.unpack(content)
        if echoed == token and code in iter(Code) and length <= MESSAGE_BYTES:
            return Ran(code, _plain(message[:length].decode(errors="replace")), wall_us)
    return Ran(Code.FAULT, "the kernel wrote to the channel of its process: there is no answer")


def _plain(text: str) -> str:
    """Drop what a terminal might obey: the text is a stranger's."""
    return "".join(one if one.isprintable() else " " for one in text)


def _described(exit_code: int) -> str:
    if exit_code >= 0:
        return f"the kernel ended its process (exit code {exit_code}) without an answer"
    if -exit_code == signal.SIGSYS:
        return _FORBIDDEN
    name = signal.Signals(-exit_code).name
    if -exit_code == signal.SIGKILL:
        return f"the kernel's process was killed ({name}): memory may have run out"
    return f"the kernel's process ended by {name}"
