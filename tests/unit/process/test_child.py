"""Child processes: what they answer, and every way in which they may end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from child_handlers import Dying, Handler, Leaving, Refusing
from faults import descendants

from tuner.model.errors import KernelError, TunerError
from tuner.process.child import Child, ChildDiedError, ChildTimeoutError
from tuner.process.tally import starts, take_longest, waits

SOON_S = 30.0
MIB = 1 << 20


@pytest.fixture(scope="module")
def shared() -> Iterator[Child]:
    """One child for the tests that leave it alive."""
    child = Child(Handler, ("hello ",), "test-shared")
    yield child
    child.kill()


@pytest.fixture
def child() -> Iterator[Child]:
    """A child that a test may end."""
    child = Child(Handler, (), "test-child")
    yield child
    child.kill()


def alive(name: str) -> list[int]:
    return [one.pid for one in descendants(os.getpid()) if name in one.command]


def test_each_start_is_counted(child: Child) -> None:
    before = starts()
    Child(Handler, (), "test-counted").kill()
    assert starts() - before == {"test-counted": 1}


def test_a_call_is_timed_by_the_child_itself(shared: Child) -> None:
    shared.send("pid")
    assert waits(0.0)[0][0] == "test-shared/pid"
    time.sleep(0.2)  # an answer that nobody fetches takes no longer for it
    shared.receive(SOON_S)
    assert 0.0 < take_longest("test-shared/pid") < 0.2
    assert all(what != "test-shared/pid" for what, _ in waits(0.0))


def test_it_calls_the_methods_of_one_object(shared: Child) -> None:
    assert shared.call("greet", "you", timeout_s=SOON_S) == "hello you 1"
    assert shared.call("greet", "again", timeout_s=SOON_S) == "hello again 2"
    assert shared.call("pid", timeout_s=SOON_S) != os.getpid()


def test_our_errors_pass_through_with_what_they_carry(shared: Child) -> None:
    with pytest.raises(KernelError, match="no such thing") as caught:
        shared.call("refuse", "no such thing", timeout_s=SOON_S)
    error = caught.value
    place = (error.path, error.line, error.remedy)
    assert place == (Path("kernel.py"), 3, "write it differently")
    assert str(error) == "kernel.py:3: no such thing\n  write it differently"


@pytest.mark.parametrize(
    ("method", "kind", "words"),
    [
        ("divide_by_zero", TunerError, r"(?s)divide_by_zero.*ZeroDivisionError"),
        ("exhaust", MemoryError, "Unable to allocate"),
    ],
)
def test_other_errors_come_with_the_childs_traceback_or_as_a_lack_of_memory(
    shared: Child, method: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        shared.call(method, timeout_s=SOON_S)
    assert shared.call("echo", 1, timeout_s=SOON_S) == 1


@pytest.mark.parametrize("end", ["timeout", "death", "kill"])
def test_what_it_started_ends_with_it(child: Child, end: str) -> None:
    started: int = child.call("start_a_sleeper", timeout_s=SOON_S)
    assert Path(f"/proc/{started}").exists()
    if end == "timeout":
        with pytest.raises(ChildTimeoutError):
            child.call("hang", timeout_s=0.1)
    elif end == "death":
        with pytest.raises(ChildDiedError, match="7"):
            child.call("leave", 7, timeout_s=SOON_S)
    else:
        child.kill()
    ends_s = time.monotonic() + SOON_S
    while is_running(started) and time.monotonic() < ends_s:
        time.sleep(0.01)
    assert not is_running(started)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ctrl_c_is_the_parents_affair(shared: Child) -> None:
    os.kill(shared.call("pid", timeout_s=SOON_S), signal.SIGINT)
    assert shared.call("echo", 1, timeout_s=SOON_S) == 1


def test_the_dead_answer_nothing_more(child: Child) -> None:
    os.kill(child.pid, signal.SIGKILL)
    wait_for_the_end_of(child.pid)
    for _ in range(2):
        with pytest.raises(ChildDiedError, match="-9"):
            child.call("echo", 1, timeout_s=SOON_S)


def test_a_death_in_the_middle_of_an_answer_is_a_death(child: Child) -> None:
    pid = child.call("pid", timeout_s=SOON_S)
    child.send("bytes_of", 64 * MIB)  # far more than the pipe holds
    assert select.select([child._connection], [], [], SOON_S)[0]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ChildDiedError, match="-9"):
        child.receive(SOON_S)


def test_a_hang_is_killed(child: Child) -> None:
    with pytest.raises(ChildTimeoutError, match=r"no answer within 0\.2 s"):
        child.call("hang", timeout_s=0.2)
    assert not alive("test-child")
    with pytest.raises(ChildDiedError):
        child.call("echo", 1, timeout_s=SOON_S)


@pytest.mark.parametrize("at_work", [False, True])
def test_one_that_may_leave_cleans_up_unless_it_is_at_work(tmp_path: Path, at_work: bool) -> None:
    child = Child(Leaving, (str(tmp_path / "left"),), "test-leaving")
    if at_work:
        child.send("hang")
    child.leave(SOON_S)
    child.kill()
    assert (tmp_path / "left").exists() is not at_work
    assert not alive("test-leaving")


def test_one_that_cannot_be_made_is_an_error_at_once() -> None:
    with pytest.raises(KernelError, match="cannot start") as caught:
        Child(Refusing, (), "test-refusing")
    assert caught.value.remedy == "repair it"
    with pytest.raises(ChildDiedError, match="9"):
        Child(Dying, (), "test-dying")
    assert not alive("test-refusing") + alive("test-dying")


PARENT = """
import sys
from child_handlers import Handler
from tuner.process.child import Child

if __name__ == "__main__":
    child = Child(Handler, (), "orphan")
    print(child.call("pid", timeout_s=30), flush=True)
    if sys.argv[1] == "busy":
        child.send("hang")
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_no_child_outlives_a_parent_that_is_killed(tmp_path: Path, state: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    parent = subprocess.Popen(
        [sys.executable, str(script), state],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        parent.wait()
        wait_for_the_end_of(pid)


def wait_for_the_end_of(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([handle], [], [], SOON_S)
        assert ready, f"process {pid} still runs"
    finally:
        os.close(handle)
