"""Jobs in processes of their own: who has which place, what is run again, what ends a campaign."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from filelock import FileLock
from manifests import manifest

from tuner.extensions.scale.campaign import ledger
from tuner.extensions.scale.campaign.jobs import CampaignJob
from tuner.extensions.scale.campaign.page import JobState
from tuner.extensions.scale.campaign.run import NO_SCHEDULER, RESTARTS, Campaign
from tuner.model.errors import InputError
from tuner.session.session import Session
from tuner.session.store import DATABASE, LOCK

# Writes what it sees to a file and then does as it is told.
CHILD = """
import os, signal, sys, time
file, todo = sys.argv[1:]
with open(file, "a") as seen:
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    print(f"{time.monotonic()} {todo} gpu={gpus}", file=seen)
if todo.startswith("wait"):
    time.sleep(float(todo.removeprefix("wait")))
elif todo == "tell":
    line = b'{"kernel": "k", "device": "d", "phase": "search", "trials": 3, "budget": 9,'
    os.write(int(os.environ["TUNE_PROGRESS_FD"]), line + b' "seconds": 1.5, "speedup": 1.25}\\n{"k')
    time.sleep(0.5)
elif todo == "die":
    os.kill(os.getpid(), signal.SIGKILL)
elif todo == "die once":
    with open(file) as seen:
        if len(seen.readlines()) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
elif todo.startswith("until "):
    while not os.path.exists(todo.removeprefix("until ")):
        time.sleep(0.01)
elif todo.startswith("exit"):
    print("a line before")
    print("Error: what was wrong", file=sys.stderr)
    sys.exit(int(todo.removeprefix("exit")))
with open(file, "a") as seen:
    print(f"{time.monotonic()} ended", file=seen)
"""


class Seen:
    """A listener that keeps every state that it has not seen."""

    def __init__(self) -> None:
        self.states: list[tuple[JobState, ...]] = []

    def update(self, states: Sequence[JobState]) -> None:
        self.states.append(tuple(states))


def job(folder: Path, name: str, todo: str, **changed: object) -> CampaignJob:
    command = (sys.executable, "-c", CHILD, str(folder / f"{name}.seen"), todo)
    made = CampaignJob(name=name, kernel=f"{name}.cu", key=f"key of {todo}", start=command)
    return replace(made, **changed)


def ran(folder: Path, name: str) -> list[str]:
    path = folder / f"{name}.seen"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.partition(" ")[2] for line in lines]


def times_s(folder: Path, name: str) -> tuple[float, float]:
    lines = (folder / f"{name}.seen").read_text().splitlines()
    return float(lines[0].split()[0]), float(lines[-1].split()[0])


def test_what_is_done_is_left_out_until_its_key_changes(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "one", "wait0"), job(tmp_path, "two", "wait0")]
    first = Campaign(jobs, tmp_path)
    assert [one.status for one in first.run(Seen())] == ["done", "done"]
    assert first.exit_code == 0
    changed = [jobs[0], replace(jobs[1], key="of changed files")]
    again = Campaign(changed, tmp_path)
    assert [one.status for one in again.states] == ["done", "waiting"]
    again.run(Seen())
    assert [one.kept for one in again.states] == [True, False]
    assert len(ran(tmp_path, "one")) == 2
    assert len(ran(tmp_path, "two")) == 4
    assert again.ledger.runs == 2


def test_a_fresh_campaign_forgets_what_is_done(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "one", "wait0")]
    Campaign(jobs, tmp_path).run(Seen())
    again = Campaign(jobs, tmp_path, fresh=True)
    assert (again.states[0].status, again.ledger.runs) == ("waiting", 1)


def test_each_gpu_has_one_job_at_a_time_and_the_job_sees_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    jobs = [job(tmp_path, f"j{i}", "wait0.2", needs_gpu=True) for i in range(4)]
    seen = Seen()
    Campaign(jobs, tmp_path, gpus=[1, 3]).run(seen)
    gpus = [ran(tmp_path, f"j{i}")[0].partition("gpu=")[2] for i in range(4)]
    assert set(gpus) == {"1", "3"}
    for number in ("1", "3"):
        spans = sorted(times_s(tmp_path, f"j{i}") for i in range(4) if gpus[i] == number)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert {one.place for states in seen.states for one in states} == {"", "GPU 1", "GPU 3"}


def test_gpus_are_counted_among_the_visible_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-abc")
    Campaign([job(tmp_path, "one", "wait0", needs_gpu=True)], tmp_path, gpus=[1]).run(Seen())
    assert ran(tmp_path, "one")[0] == "wait0 gpu=GPU-abc"


def test_what_costs_most_begins_first_and_what_costs_the_same_as_listed(tmp_path: Path) -> None:
    costs = {"a": 1.0, "b": 3.0, "c": 3.0, "d": 2.0}
    Campaign([job(tmp_path, n, "wait0", cost=c) for n, c in costs.items()], tmp_path).run(Seen())
    assert sorted(costs, key=lambda name: times_s(tmp_path, name)) == ["b", "c", "d", "a"]


def test_a_job_alone_waits_for_all_others(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "alone", "wait0", alone=True)]
    jobs += [job(tmp_path, f"j{i}", "wait0.3") for i in range(2)]
    Campaign(jobs, tmp_path, parallel=2).run(Seen())
    began_s, _ = times_s(tmp_path, "alone")
    assert began_s >= max(times_s(tmp_path, f"j{i}")[1] for i in range(2))


def test_nothing_begins_beside_a_job_alone(tmp_path: Path) -> None:
    session = tmp_path / "session"
    session.mkdir()
    (session / DATABASE).touch()
    jobs = [job(tmp_path, "alone", "wait1", alone=True)]
    jobs += [job(tmp_path, "one", "wait0", needs_gpu=True, session=session)]
    # A child of a campaign that was killed, which ends meanwhile.
    orphan = FileLock(session / LOCK, thread_local=False)
    orphan.acquire()
    ends = threading.Timer(0.5, orphan.release)
    ends.start()
    Campaign(jobs, tmp_path, gpus=[0]).run(Seen())
    ends.join()
    assert times_s(tmp_path, "one")[0] >= times_s(tmp_path, "alone")[1]


def test_the_place_is_free_while_a_job_finishes(tmp_path: Path) -> None:
    last = job(tmp_path, "last words", "wait1").start
    jobs = [job(tmp_path, "one", "wait0", finish=(last,)), job(tmp_path, "two", "wait0")]
    states = Campaign(jobs, tmp_path).run(Seen())
    assert [one.status for one in states] == ["done", "done"]
    assert times_s(tmp_path, "two")[0] < times_s(tmp_path, "last words")[1]


def test_a_killed_job_is_started_again_some_times(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "once", "die once"), job(tmp_path, "always", "die")]
    campaign = Campaign(jobs, tmp_path, parallel=2)
    seen = Seen()
    once, always = campaign.run(seen)
    assert (once.status, once.starts, once.message) == ("done", 2, "")
    running = [one for one, _ in seen.states if one.starts == 2 and one.status == "running"]
    assert {one.message for one in running} == {"killed by SIGKILL, started again"}
    assert (always.status, always.starts, always.exit_code) == ("failed", RESTARTS + 1, 1)
    assert always.message == "killed by SIGKILL 3 times"
    assert campaign.exit_code == 1


def test_more_places_than_jobs_are_none(tmp_path: Path) -> None:
    states = Campaign([job(tmp_path, "one", "wait0")], tmp_path, parallel=10**12).run(Seen())
    assert states[0].status == "done"


def test_gpus_without_a_job_are_named(tmp_path: Path) -> None:
    jobs = [job(tmp_path, f"j{i}", "wait0", needs_gpu=True) for i in range(2)]
    campaign = Campaign(jobs, tmp_path, gpus=[0, 2, 5])
    assert campaign.idle_gpus == (5,)
    campaign.run(Seen())
    again = [*jobs, job(tmp_path, "new", "wait0", needs_gpu=True)]
    assert Campaign(again, tmp_path, gpus=[0, 2, 5]).idle_gpus == (2, 5), "two are done"
    assert Campaign(jobs, tmp_path, gpus=[0, 2, 5]).idle_gpus == (), "all is done"


def test_a_job_whose_scheduler_is_gone_says_so(tmp_path: Path) -> None:
    campaign = Campaign([job(tmp_path, "one", "exit130")], tmp_path)
    (one,) = campaign.run(Seen())
    assert (one.status, one.message, campaign.exit_code) == ("stopped", "what was wrong", 130)


def test_no_job_begins_on_a_cluster_whose_scheduler_is_gone(tmp_path: Path) -> None:
    cluster = "tcp://scheduler:8786"
    jobs = [job(tmp_path, "lost", "exit130", cluster=cluster)]
    jobs += [job(tmp_path, f"j{i}", "wait0", cluster=cluster) for i in range(2)]
    jobs += [job(tmp_path, "here", "wait0"), job(tmp_path, "there", "wait0", cluster="tcp://b:1")]
    campaign = Campaign(jobs, tmp_path)
    lost, *left, here, there = campaign.run(Seen())
    assert (lost.status, lost.message) == ("stopped", "what was wrong")
    assert {(one.status, one.starts, one.message) for one in left} == {("waiting", 0, NO_SCHEDULER)}
    assert (here.status, there.status, campaign.exit_code) == ("done", "done", 130)
    again = [replace(jobs[0], start=jobs[1].start), *jobs[1:]]
    assert {one.status for one in Campaign(again, tmp_path).run(Seen())} == {"done"}


def test_a_job_that_meets_no_scheduler_at_its_start_is_left_and_one_that_is_wrong_has_failed(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        jobs = [
            job(tmp_path, "wrong", "exit2", cluster=f"tls://{address}"),
            job(tmp_path, "next", "wait0", cluster=f"tls://{address}"),
        ]
        campaign = Campaign(jobs, tmp_path / "answers")
        states = campaign.run(Seen())
    assert [one.status for one in states] == ["failed", "done"]
    gone = Campaign(jobs, tmp_path / "gone")
    wrong, following = gone.run(Seen())
    assert (wrong.status, wrong.exit_code, wrong.message) == ("stopped", None, "what was wrong")
    assert (following.status, following.starts, gone.exit_code) == ("waiting", 0, 130)


def test_a_deleted_log_costs_the_words_alone(tmp_path: Path) -> None:
    remove = f"import os, sys; os.unlink({str(tmp_path / 'one.log')!r}); sys.exit(3)"
    made = replace(job(tmp_path, "one", ""), start=(sys.executable, "-c", remove))
    (one,) = Campaign([made], tmp_path).run(Seen())
    assert (one.status, one.message) == ("failed", "exit code 3")


def test_what_finishes_a_job_waits_for_the_next_campaign_where_this_one_stops(
    tmp_path: Path,
) -> None:
    may_end = tmp_path / "may end"
    wait = (
        "import pathlib, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"while not pathlib.Path({str(may_end)!r}).exists(): time.sleep(0.02)"
    )
    last = job(tmp_path, "last words", "wait0").start
    begun = replace(job(tmp_path, "one", ""), start=(sys.executable, "-c", wait), finish=(last,))

    class Ending(Seen):
        def update(self, states: Sequence[JobState]) -> None:
            super().update(states)
            if campaign._stopping:
                may_end.touch()

    campaign = Campaign([begun], tmp_path, time_s=0.5)
    (one,) = campaign.run(Ending())
    assert (one.status, ran(tmp_path, "last words")) == ("stopped", [])
    (one,) = Campaign([begun], tmp_path).run(Seen())
    assert (one.status, len(ran(tmp_path, "last words"))) == ("done", 2)


def test_a_job_that_fails_says_why_and_the_others_go_on(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "wrong", "exit2"), job(tmp_path, "right", "wait0")]
    campaign = Campaign(jobs, tmp_path)
    wrong, right = campaign.run(Seen())
    assert (wrong.status, wrong.exit_code, wrong.message) == ("failed", 2, "what was wrong")
    assert (wrong.starts, right.status, campaign.exit_code) == (1, "done", 2)
    assert "a line before" in (tmp_path / "wrong.log").read_text()
    assert Campaign(jobs, tmp_path).states[0].status == "waiting"


@pytest.mark.parametrize(
    ("codes", "worst"), [((4, 2), 2), ((4, 0), 4), ((3, 2, 4), 2), ((1, 2), 1), ((139,), 1)]
)
def test_the_exit_code_is_that_of_the_worst_job(
    tmp_path: Path, codes: tuple[int, ...], worst: int
) -> None:
    campaign = Campaign([job(tmp_path, f"j{code}", f"exit{code}") for code in codes], tmp_path)
    campaign.run(Seen())
    assert campaign.exit_code == worst


def test_progress_comes_from_the_child_and_a_torn_line_is_no_harm(tmp_path: Path) -> None:
    seen = Seen()
    Campaign([job(tmp_path, "one", "tell")], tmp_path).run(seen)
    told = [one.progress for (one,) in seen.states if one.progress]
    assert told
    assert (told[0].trials, told[0].budget, told[0].speedup) == (3, 9, 1.25)
    assert seen.states[-1][0].status == "done"


def test_when_the_time_is_over_what_runs_is_stopped_and_the_rest_is_left(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "long", "wait60"), job(tmp_path, "next", "wait0")]
    campaign = Campaign(jobs, tmp_path, time_s=0.5)
    started_s = time.monotonic()
    long, following = campaign.run(Seen())
    assert time.monotonic() - started_s < 30
    assert (long.status, long.message) == ("stopped", "the time was over")
    assert (following.status, following.starts) == ("waiting", 0)
    assert campaign.exit_code == 130
    assert [one.status for one in Campaign(jobs, tmp_path).states] == ["waiting", "waiting"]


def test_an_interruption_stops_the_children_first(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "long", "wait60"), job(tmp_path, "longer", "wait60")]
    campaign, seen = Campaign(jobs, tmp_path, parallel=2), Seen()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            campaign.run(seen)
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
    assert [(one.status, one.place) for one in campaign.states] == [("stopped", "")] * 2
    assert seen.states[-1] == campaign.states, "the listener has seen the end of both"


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file; once it is there, the disk of the campaign's record is full."""

    def write(path: Path, content: str) -> None:
        if mark.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.write_text(content)

    mark = tmp_path / "full"
    monkeypatch.setattr(ledger, "atomic_write", write)
    return mark


class Filling(Seen):
    """Make the disk full once three jobs run."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self._mark = mark

    def update(self, states: Sequence[JobState]) -> None:
        super().update(states)
        if sum(one.status == "running" for one in states) == 3:
            self._mark.touch()


def test_a_disk_that_fills_up_stops_the_children_first_and_what_is_left_goes_on(
    tmp_path: Path, full: Path
) -> None:
    jobs = [job(tmp_path, "ends", f"until {full}"), job(tmp_path, "long", "wait60")]
    jobs += [job(tmp_path, "longer", "wait60"), job(tmp_path, "left", "wait0")]
    # Not before all have begun: that is noted too.
    campaign, seen = Campaign(jobs, tmp_path, parallel=3), Filling(full)
    with pytest.raises(InputError, match="cannot write here: No space left") as told:
        campaign.run(seen)
    assert "the disk is not full" in str(told.value)
    said = "cannot write here: No space left on device"
    assert [(one.status, one.message, one.place) for one in campaign.states] == [
        ("done", "", ""),
        ("stopped", said, ""),
        ("stopped", said, ""),
        ("waiting", said, ""),
    ]
    assert all(one.seconds < 60 for one in campaign.states)
    assert seen.states[-1] == campaign.states
    full.unlink()
    assert {one.status for one in Campaign(jobs, tmp_path).states} == {"waiting"}


def test_a_job_that_cannot_be_noted_is_not_begun(
    tmp_path: Path, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def filling(self: Campaign) -> bool:
        full.write_text("")
        return begin(self)

    begin = Campaign._begin
    monkeypatch.setattr(Campaign, "_begin", filling)
    campaign = Campaign([job(tmp_path, "one", "wait0")], tmp_path)
    with pytest.raises(InputError, match="cannot write here: No space left"):
        campaign.run(Seen())
    (one,) = campaign.states
    assert (one.status, one.place, one.seconds) == ("waiting", "", 0)
    assert not ran(tmp_path, "one")


def test_a_session_of_other_files_is_set_aside(tmp_path: Path) -> None:
    session = tmp_path / "one"
    session.mkdir()
    (session / "session.db").write_text("from before")
    Campaign([job(tmp_path, "one", "wait0", session=session)], tmp_path).run(Seen())
    (aside,) = tmp_path.glob("one-*")
    assert (aside / "session.db").read_text() == "from before"


def test_a_session_of_these_files_is_gone_on_with(tmp_path: Path) -> None:
    session = tmp_path / "one"
    going_on = job(tmp_path, "resumed", "wait0").start
    first = job(tmp_path, "one", "exit1", session=session, resume=going_on)
    Campaign([first], tmp_path).run(Seen())
    session.mkdir()
    (session / "session.db").write_text("begun")
    Campaign([first], tmp_path).run(Seen())
    assert len(ran(tmp_path, "one")) == 1
    assert len(ran(tmp_path, "resumed")) == 2


@pytest.mark.parametrize("content", [b"junk", b"", b"SQLite format 3\0".ljust(4096, b"?")])
def test_a_finished_job_whose_session_is_junk_is_told_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    database = tmp_path / "one" / DATABASE
    jobs = [job(tmp_path, "one", "wait0", session=database.parent), job(tmp_path, "two", "wait0")]
    Campaign(jobs, tmp_path).run(Seen())
    Session.create(database.parent, manifest(kernel="one"), {}).close()
    assert Campaign(jobs, tmp_path).states[0].kept
    whole = database.read_bytes()
    database.write_bytes(content)
    again = Campaign(jobs, tmp_path)
    one, two = again.run(Seen())
    assert (one.status, one.exit_code, one.kept, two.kept) == ("failed", 2, False, True)
    told = "restore its session from a copy, or move its folder away: "
    assert one.message.startswith(f"{told}{database}: ")
    assert again.exit_code == 2
    assert len(ran(tmp_path, "one")) == 2, "it was not begun again"
    assert database.read_bytes() == content
    database.write_bytes(whole)
    assert Campaign(jobs, tmp_path).states[0].kept
    database.parent.rename(tmp_path / "away")
    assert Campaign(jobs, tmp_path).states[0].status == "waiting"


def test_a_job_that_cannot_be_kept_has_no_gpu(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path, name, "wait0", needs_gpu=True, session=tmp_path / name)
        for name in ("one", "two")
    ]
    Campaign(jobs, tmp_path, gpus=[0]).run(Seen())
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / DATABASE).write_text("junk")
    assert Campaign(jobs, tmp_path, gpus=[0, 1]).idle_gpus == (1,)


def test_the_seconds_of_all_runs_of_a_job_are_added_up(tmp_path: Path) -> None:
    campaign = Campaign([job(tmp_path, "one", "wait60")], tmp_path, time_s=0.5)
    campaign.run(Seen())
    again = Campaign([job(tmp_path, "one", "wait60")], tmp_path, time_s=0.5)
    again.run(Seen())
    assert again.states[0].seconds >= 1.0
    assert again.ledger.wall_s >= 1.0
    kept = json.loads((tmp_path / "campaign.json").read_text())
    assert kept["jobs"]["one"]["seconds"] == again.states[0].seconds


def test_two_campaigns_in_one_folder_exclude_one_another(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "one", "wait0")]

    class Second(Seen):
        def update(self, states: Sequence[JobState]) -> None:
            with pytest.raises(InputError, match="another campaign is running here"):
                Campaign(jobs, tmp_path).run(Seen())

    Campaign(jobs, tmp_path).run(Second())


@pytest.mark.parametrize("content", ["", "{}x", '{"version": 2}', '{"jobs": {"a": {}}}'])
def test_a_damaged_record_of_what_is_done_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "campaign.json").write_text(content)
    with pytest.raises(InputError, match=r"campaign\.json: is not what a campaign has written"):
        Campaign([], tmp_path)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write here"):
        Campaign([], tmp_path / "file" / "below").run(Seen())


def test_a_folder_whose_name_is_too_long_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write here: File name too long"):
        Campaign([], tmp_path / ("x" * 300))


def test_the_index_is_written_whenever_a_job_begins_or_ends(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "one", "wait0"), job(tmp_path, "two", "exit2")]
    pages: list[str] = []

    class Reader(Seen):
        def update(self, states: Sequence[JobState]) -> None:
            pages.append((tmp_path / "index.html").read_text())

    Campaign(jobs, tmp_path).run(Reader())
    assert "2 of 2" not in pages[-1]
    assert "1 of 2 done, 1 failed" in pages[-1]
    assert any("0 of 2 done" in page for page in pages)
    assert 'href="two.log"' in pages[-1]
    assert "what was wrong" in pages[-1]
    assert "<script" not in pages[-1]
