"""Processes of a pool: how many are started, and what becomes of tasks when they end."""

import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Barrier, Event

import pytest
from child_handlers import Handler

from tuner.model.errors import WorkerError
from tuner.process.child import Child, ChildDiedError
from tuner.process.pool import AHEAD, MAX_KILLS, ObjectPool, ProcessPool, workers_to_start


@pytest.mark.parametrize(
    ("ready", "starting", "waiting", "most", "expected"),
    [
        (1, 0, 1, 64, AHEAD - 1),  # a search begins
        (1, AHEAD - 1, 1, 64, 0),
        (1, 0, 1, 4, 3),  # no more than there are cores
        (AHEAD, 0, 0, 64, 0),
        (AHEAD, 0, 1, 64, 1),
        (AHEAD, 1, 1, 64, 0),  # the same request waits for the one that starts
        (AHEAD, 0, 100, 64, AHEAD),  # no more at the same time
        (AHEAD, AHEAD - 4, 100, 64, 4),
        (60, 0, 100, 64, 4),
        (64, 0, 100, 64, 0),
        (8, 0, 4, 7, 0),  # one too many: another could not start
    ],
)
def test_workers_start_ahead_of_need_and_for_what_waits(ready, starting, waiting, most, expected):
    assert workers_to_start(ready, starting, waiting, most, AHEAD) == expected


@pytest.fixture
def pool():
    with ObjectPool(Handler, (), 1) as pool:
        yield pool


def killed_until(calls: list[int], enough: int, child: Child) -> int:
    calls.append(child.pid)
    if len(calls) < enough:
        os.kill(child.pid, signal.SIGKILL)
    return child.call("echo", 5, timeout_s=30)


def test_a_task_whose_process_is_killed_is_done_by_another(pool):
    calls = []
    assert pool.submit(partial(killed_until, calls, MAX_KILLS)).result(30) == 5
    assert len(set(calls)) == MAX_KILLS


def test_a_task_that_is_killed_each_time_is_given_up_and_others_go_on(pool):
    calls = []
    first = pool.submit(partial(killed_until, calls, 99))
    other = pool.submit(lambda child: child.call("echo", 6, timeout_s=30))
    with pytest.raises(ChildDiedError, match="-9"):
        first.result(30)
    assert other.result(30) == 6
    assert len(calls) == MAX_KILLS


def test_tasks_are_done_in_the_order_in_which_they_came(pool):
    done = []
    futures = [pool.submit(lambda _, number=number: done.append(number)) for number in range(9)]
    assert [future.result(30) for future in futures] == [None] * 9
    assert done == list(range(9))


def test_starting_is_tried_again_where_it_was_killed_and_then_given_up():
    started = []

    def start() -> Child:
        child = Child(Handler, (), "test-pool", wait=False)
        os.kill(child.pid, signal.SIGKILL)
        started.append(child)
        return child

    with ProcessPool(start, 1, lambda error: WorkerError(f"failed: {error}")) as pool:
        future = pool.submit(lambda child: child.pid)
        with pytest.raises(WorkerError, match="failed: -9"):
            future.result(60)
        with pytest.raises(WorkerError, match="failed: -9"):
            pool.submit(lambda child: child.pid)
    assert len(started) == 8


def test_a_process_that_ends_while_it_has_nothing_to_do_costs_no_task(pool):
    pid = pool.submit(lambda child: child.pid).result(30)
    os.kill(pid, signal.SIGSEGV)
    with suppress(ChildProcessError):  # the pool has seen it end already
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert pool.submit(lambda child: child.call("echo", 5, timeout_s=30)).result(30) == 5


def test_where_one_ends_while_it_has_nothing_to_do_another_that_waits_takes_its_task():
    started = []

    def start() -> Child:
        if len(started) == 2:
            raise OSError("no memory for a third")
        started.append(Child(Handler, (), "test-pool", wait=False))
        return started[-1]

    both, goes_on = Barrier(3), [Event(), Event()]

    def work(number: int, child: Child) -> Child:
        both.wait(30)
        goes_on[number].wait(30)
        return child

    with ProcessPool(start, 2, lambda error: WorkerError(f"failed: {error}")) as pool:
        futures = [pool.submit(partial(work, number)) for number in (0, 1)]
        both.wait(30)
        idle = []
        for event, future in zip(goes_on, futures, strict=True):
            event.set()
            idle.append(future.result(30))
            time.sleep(0.1)  # until it waits for the next task, the first one for longer
        os.kill(idle[0].pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, idle[0].pid, os.WEXITED | os.WNOWAIT)
        assert pool.submit(lambda child: child.pid).result(10) == idle[1].pid


def state_of(child: Child) -> str:
    text = Path(f"/proc/{child.pid}/stat").read_text(encoding="ascii")
    return text.rpartition(")")[2].split()[0]


def test_processes_stop_while_a_pool_is_paused_and_go_on_afterwards(pool):
    child = pool.submit(lambda child: child).result(30)
    with pool.paused():
        ends_s = time.monotonic() + 30
        while state_of(child) != "T":  # the system stops it soon
            assert time.monotonic() < ends_s
        answer = pool.submit(lambda child: child.call("echo", 7, timeout_s=30))
        with pytest.raises(TimeoutError):
            answer.result(0.1)
    assert answer.result(30) == 7


def test_a_process_takes_tasks_of_its_own_topic_before_others():
    done = []
    begun, goes_on = Event(), Event()

    def work(name, child):
        done.append(name)

    def wait(child):
        begun.set()
        goes_on.wait(30)

    with ObjectPool(Handler, (), 1) as pool:
        pool.submit(wait, topic="mine")
        assert begun.wait(30)
        later = [
            pool.submit(partial(work, name), topic=topic)
            for name, topic in [("a", "new"), ("b", "mine"), ("c", None), ("d", "mine")]
        ]
        goes_on.set()
        for future in later:
            future.result(30)
    assert done == ["b", "d", "a", "c"]
