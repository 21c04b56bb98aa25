"""Child processes: they answer one request at a time, may be killed, and end with their parent."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from tuner.model.errors import TunerError
from tuner.process import protocol
from tuner.process.tally import note_begin, note_end, note_start

START_TIMEOUT_S = 120.0
# A child reads its request at once; only one that was stopped does not.
SEND_TIMEOUT_S = 60.0
# From the end of its connection to its own.
DYING_S, DYING_STEP_S = 5.0, 2e-3
# Where there are cores to spare for it.
AWAKE_S = 2e-3 if len(os.sched_getaffinity(0)) >= 8 else 0.0
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
# The package's folder goes last: where tuner is installed it is found as usual.
_CODE = (
    "import sys; _, name, root, *rest = sys.argv; sys.path.append(root); "
    "from {module} import serve; serve(*rest)"
)


class ChildDiedError(Exception):
    """The process ended without an answer; the argument is its exit code."""

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it, which whoever is short of memory may have sent."""
        return self.args == (-signal.SIGKILL,)


class ChildTimeoutError(Exception):
    """The process gave no answer in time and was killed."""


class ChildProcess:
    """A Python process that runs `serve(descriptor, *arguments)` of a module of ours.

    The descriptor is its end of a socket for messages. It has a session of its own, so that Ctrl-C
    in a terminal does not reach it: the parent decides what that means.
    """

    # For the interpreter: no module is taken from the working directory.
    flags: ClassVar[tuple[str, ...]] = ("-P",)

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        self._connection, theirs = socket.socketpair()
        code = _CODE.format(module=module)
        rest = (name, str(_PACKAGE_ROOT), str(theirs.fileno()), *arguments)
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - this Python
                    [sys.executable, *self.flags, "-c", code, *rest],
                    env=environment,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except BaseException:
            self._connection.close()
            raise
        note_start(name)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until it can work, for one that says when."""

    def write(
        self, header: dict[str, Any], payload: bytes = b"", descriptors: Sequence[int] = ()
    ) -> None:
        try:
            self._connection.settimeout(SEND_TIMEOUT_S)
            protocol.send(self._connection, header, payload, descriptors)
        except TimeoutError as error:
            raise self._late(SEND_TIMEOUT_S) from error
        except OSError as error:  # a broken pipe, or one that `kill` closed
            raise self._explain_death() from error

    def read(self, timeout_s: float | None) -> protocol.Message:
        """Wait for a message; where it comes late the process is killed."""
        try:
            return protocol.receive(self._connection, timeout_s)
        except TimeoutError as error:
            assert timeout_s is not None
            raise self._late(timeout_s) from error
        except (EOFError, OSError, ValueError) as error:  # it ended, or what it says is no message
            raise self._explain_death() from error

    def stop(self) -> None:
        """Let the process, and what it has started, wait until `go_on`."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if not self.ended:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """End the process at once, and what it started; a kernel that never ends goes with it."""
        self._kill_group()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # the driver may hold it up
            self._process.wait(10.0)
        # The socket last: another thread may be waiting for an answer, and is told by its end.
        self._connection.close()

    def _late(self, timeout_s: float) -> ChildTimeoutError:
        self.kill()
        return ChildTimeoutError(f"no answer within {timeout_s:g} s")

    def _explain_death(self) -> ChildDiedError:
        ended = self._await_end(DYING_S)
        self._kill_group()
        # Of one that has only closed its connection our own signal says nothing.
        status = self._process.wait() if ended else None
        self.kill()
        return ChildDiedError(status)

    def _await_end(self, seconds: float) -> bool:
        """Wait for its end, and leave its number to it, so that no other group has that."""
        ends_s = time.monotonic() + seconds
        how = os.WEXITED | os.WNOWAIT | os.WNOHANG
        try:
            while os.waitid(os.P_PID, self.pid, how) is None:
                if time.monotonic() > ends_s:
                    return False
                time.sleep(DYING_STEP_S)
        except ChildProcessError:  # another thread has asked for its exit code
            return True
        return True

    def _kill_group(self) -> None:
        """End the compilers and whatever else it has started, unless they left its session."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


class Child(ChildProcess):
    """Run `factory(*arguments)` in a process of its own and call its methods from here.

    The process is started afresh, not forked: a CUDA context does not survive a fork. Both sides
    trust each other: requests and answers are pickles. Exceptions of the handler are raised here
    again when they are `TunerError`s or a `MemoryError`; anything else is a `TunerError` with the
    child's traceback. Where `wait` is false, `wait_ready` must follow before the first call.
    """

    def __init__(
        self,
        factory: Callable[..., Any],
        arguments: tuple[Any, ...],
        name: str,
        *,
        wait: bool = True,
    ) -> None:
        super().__init__(name, "tuner.process.child")
        self._busy, self._name = True, name
        try:
            self.write({"path": sys.path}, pickle.dumps((factory, arguments)))
            if wait:
                self.wait_ready()
        except BaseException:
            self.kill()
            raise

    def wait_ready(self) -> None:
        self.receive(START_TIMEOUT_S)

    def call(self, method: str, *arguments: Any, timeout_s: float | None, **options: Any) -> Any:
        self.send(method, *arguments, **options)
        return self.receive(timeout_s)

    def send(self, method: str, *arguments: Any, **options: Any) -> None:
        """Send a request without waiting; `receive` must follow before the next one."""
        self._busy = True
        self.write({"call": method}, pickle.dumps((arguments, options)))
        note_begin(id(self), f"{self._name}/{method}")

    def receive(self, timeout_s: float | None) -> Any:
        """Wait for the answer to the last request; a late one kills the process."""
        try:
            answer = self.read(timeout_s)
        except (ChildDiedError, ChildTimeoutError):
            note_end(id(self))
            raise
        note_end(id(self), answer.header["seconds"])
        value = pickle.loads(answer.payload)  # noqa: S301 - of a process that runs our code
        self._busy = False
        if answer.header["raised"]:
            raise value
        return value

    def leave(self, timeout_s: float) -> None:
        """Let the process end by itself, so that its libraries clean up; one at work is killed."""
        if not self._busy:
            with suppress(ChildDiedError, ChildTimeoutError, subprocess.TimeoutExpired):
                self.write({"leave": True})
                self._process.wait(timeout_s)
        self.kill()


def connect_to_parent(
    descriptor: str, clean_up: Callable[[], object] = lambda: None
) -> socket.socket:
    """Return the child's end of the socket; when the parent is gone the process is killed.

    Nobody else would end a kernel that holds the GPU, or a compile without end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)

    def end_with_parent() -> None:
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLRDHUP)
        poll.poll()
        clean_up()
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)  # with whatever it has started
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end_with_parent, daemon=True).start()
    return connection


def serve(descriptor: str) -> None:
    """Make the object of a `Child` and answer its calls."""
    connection = connect_to_parent(descriptor)
    handler: Any = None
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)

    def answer_request(request: protocol.Message) -> Any:
        nonlocal handler
        content = pickle.loads(request.payload)  # noqa: S301 - our parent's
        if handler is not None:
            arguments, options = content
            return getattr(handler, request.header["call"])(*arguments, **options)
        factory, arguments = content
        handler = factory(*arguments)
        return None

    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            # Look for a message for a moment: to be woken takes longer than most answers. Only
            # where no other thread computes: whoever looks takes turns from those that do.
            ends_s = time.perf_counter() + AWAKE_S
            while time.perf_counter() < ends_s and not poll.poll(0):
                pass
            request = protocol.receive(connection)
            if "leave" in request.header:
                return
            if handler is None:
                sys.path[:] = request.header["path"]
            protocol.send(connection, *_outcome(partial(answer_request, request)))
            if handler is None:
                return


def _outcome(call: Callable[[], Any]) -> tuple[dict[str, float], bytes]:
    began_s = time.perf_counter()
    # No name may hold an error longer: its traceback has this frame, and with it, for as long as
    # nobody looks for such a cycle, whatever memory was in use where it was raised.
    try:
        answer = pickle.dumps(call())
        return {"raised": False, "seconds": time.perf_counter() - began_s}, answer
    except TunerError as error:
        answer = pickle.dumps(error)
    except MemoryError as error:  # NumPy's and CuPy's are subclasses, known here only
        answer = pickle.dumps(MemoryError(str(error)))
    except Exception:  # noqa: BLE001 - the traceback must reach the parent, whatever it is
        answer = pickle.dumps(TunerError(f"in a worker process:\n{traceback.format_exc()}"))
    return {"raised": True, "seconds": time.perf_counter() - began_s}, answer


@contextmanager
def held_back() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM take effect only once the block is over; for blocks that are short.

    Only the main thread is ever interrupted: in others there is nothing to do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, hold)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in held:
            signal.raise_signal(late)
