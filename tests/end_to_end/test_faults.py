"""Faults around a run on the CPU: it ends complete and right, and leaves nothing behind."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import faults
import pytest
from faults import (
    Process,
    configs,
    descendants,
    in_finals,
    records,
    rows,
    searched,
    started,
    trials,
    wait_until,
    wait_until_none,
)

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.command import MOST_RUNS
from tuner.compiler.pool import NvrtcPool
from tuner.model.trial import Comparison, Result, Status, Trial
from tuner.process.pool import MAX_KILLS
from tuner.session.records import Baseline

TRIALS = 10
FEW = 5
# Large enough for the trials to last while the workers are killed.
SLOW = "R=384,N=2048"
# Between a config and the baseline, which differ by their threads, on a busy machine too.
FACTOR_AT_MOST = 100

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux"),
]


@dataclass
class Bench:
    """A kernel to tune, and `tune` as a process in its folder."""

    project: Path
    temporary: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def session(self) -> Path:
        return self.project / "mine"

    def start(self, *words: object, **environment: str) -> subprocess.Popen[str]:
        own = {**os.environ, "TMPDIR": str(self.temporary), **environment}
        process = started(*words, folder=self.project, environment=own)
        self.started.append(process)
        return process

    def search(self, trials: int = TRIALS, *words: str, **environment: str) -> Popen:
        new = ("scale.cu", *faults.ON_HOST, "--session", "mine")
        how = ("--searcher", "random", "--trials", trials, "--quiet", "--json")
        return self.start(*new, *how, *words, **environment)

    def resume(self, **environment: str) -> Popen:
        return self.start("--resume", "mine", "--quiet", "--json", **environment)


Popen = subprocess.Popen[str]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A fresh project; fail if a process, a temporary file or shared memory is left at the end."""
    shared = set(faults.SHARED_MEMORY.iterdir())
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with faults.orphans_adopted() as left:
        bench = Bench(faults.written(tmp_path / "project"), temporary)
        try:
            yield bench
        finally:
            for process in bench.started:
                process.kill()
                process.communicate()
        wait_until_none(left, "processes left")
    assert list(temporary.iterdir()) == []
    wait_until_none(lambda: faults.left_in_shared_memory(shared), "shared memory left", 20)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The configs that a run without faults tries; it fills the compiler's cache too."""
    folder = tmp_path_factory.mktemp("undisturbed")
    bench = Bench(faults.written(folder / "project"), folder)
    ended(bench.search())
    return configs(bench.session)


def ended(process: Popen, code: int = 0, timeout_s: float = 120.0) -> str:
    """Wait for the end with this exit code; return what was said on standard error."""
    out, err = process.communicate(timeout=timeout_s)
    assert process.returncode == code, (out, err)
    assert "Traceback" not in err
    return err


def said(process: Popen, code: int) -> str:
    """Wait for the end; return the one message."""
    err = ended(process, code)
    assert err.count("Error: ") == 1, err
    return err


def assert_complete(session: Path, undisturbed: set[str]) -> None:
    """Fail unless the session has one trial for each config asked for, with status and time."""
    found = searched(session)
    assert rows(session, "session")[0]["state"] == "complete"
    assert len(found) == TRIALS
    assert configs(session) == undisturbed
    (baseline,) = records(session, Baseline)
    for trial in found:
        if trial.status is Status.CORRECT:
            assert trial.time_us is not None
            share = trial.time_us / baseline.measurement.median_us
            assert 1 / FACTOR_AT_MOST < share < FACTOR_AT_MOST
        else:
            assert trial.reason
    assert len(records(session, Comparison)) == 1
    (result,) = records(session, Result)
    assert result.interval[0] <= result.speedup <= result.interval[1]
    assert (session / "report.html").exists()
    assert len(list((session / "tuned").iterdir())) == 1


def kernel_runners(pid: int) -> list[Process]:
    """List the processes that run kernels on what is verified, and who starts them."""
    below = [one for one in descendants(pid) if one.runs_kernels]
    servers = {one.parent for one in below if one.maps("memfd:written")}
    return [one for one in below if one.pid in servers or one.parent in servers]


def wait_for(reached: Callable[[], object], run: Popen) -> None:
    """Wait for a run to get there, before it ends."""
    wait_until(lambda: reached() or run.poll() is not None, "a moment of the run")
    assert run.poll() is None, run.communicate()


def kill_repeatedly(
    run: Popen,
    victims: Callable[[], list[Process]],
    times: int,
    seed: int,
    most_s: float = 0.2,
    note: Callable[[Process], None] = lambda victim: None,
) -> None:
    """Kill one of the victims at random moments, as often as asked, before the run ends."""
    chance = random.Random(seed)  # noqa: S311 - the same moments every time
    killed = 0
    while killed < times:
        time.sleep(chance.uniform(most_s / 4, most_s))
        assert run.poll() is None, f"the run ended after {killed} of {times} kills"
        found = victims()
        victim = chance.choice(found) if found else None
        if victim is not None and victim.kill():
            note(victim)
            killed += 1


@pytest.mark.slow
def test_a_worker_that_is_killed_often_costs_no_config_and_a_killed_judge_the_run_alone(
    bench: Bench, undisturbed: set[str]
) -> None:
    run = bench.search(TRIALS, "--workload", SLOW)
    wait_until(lambda: searched(bench.session), "a trial")
    kill_repeatedly(run, lambda: kernel_runners(run.pid), 8, seed=1, most_s=0.1)
    assert len(searched(bench.session)) < TRIALS, "the kills did not all fall into the search"
    next(one for one in descendants(run.pid) if one.verifies).kill()
    assert "the process that verifies results ended" in said(run, 1)
    ended(bench.resume())
    assert_complete(bench.session, undisturbed)
    failed = [one for one in searched(bench.session) if one.status is not Status.CORRECT]
    assert {one.status for one in failed} <= {Status.LAUNCH}
    # Only one that was killed twice over is blamed.
    assert len(failed) <= 4


@pytest.mark.slow
def test_a_run_that_is_ended_in_every_phase_goes_on_where_it_was(
    bench: Bench, undisturbed: set[str]
) -> None:
    chance = random.Random(2)  # noqa: S311 - the same moments every time
    session = bench.session
    before: list[Trial] = []

    def goes_on() -> bool:
        """Whether this run has done something, and so listens to signals."""
        return len(trials(session)) > len(before)

    moments: list[tuple[signal.Signals, Callable[[int], object]]] = [
        (signal.SIGINT, lambda pid: any(one.verifies for one in descendants(pid))),
        (signal.SIGKILL, lambda _: records(session, Baseline)),
        (signal.SIGTERM, lambda _: len(searched(session)) > 3 and goes_on()),
        (signal.SIGKILL, lambda _: len(searched(session)) == TRIALS),
        (signal.SIGINT, lambda _: len(in_finals(session)) >= 3 and goes_on()),
    ]
    for number, reached in moments:
        run = bench.resume() if (session / "session.db").exists() else bench.search()
        wait_for(lambda reached=reached, run=run: reached(run.pid), run)
        if number is signal.SIGKILL:
            time.sleep(chance.uniform(0.0, 0.05))
            assert run.poll() is None, run.communicate()
        run.send_signal(number)
        if number is signal.SIGKILL:
            run.communicate()
        elif session.exists():
            assert ended(run, 130) == "interrupted; resume with: tune --resume mine\n"
        else:
            assert ended(run, 130).startswith("interrupted")
        now = trials(session)
        assert now[: len(before)] == before
        before = now
    ended(bench.resume())
    assert trials(session)[: len(before)] == before
    assert_complete(session, undisturbed)


@pytest.fixture(scope="session")
def disk_full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes the disk of a folder full."""
    return faults.build_disk_full(tmp_path_factory.mktemp("disk_full"), shutil.which("g++") or "")


@pytest.mark.slow
@pytest.mark.usefixtures("undisturbed")
def test_a_full_disk_is_one_clear_error_and_the_run_goes_on_when_there_is_room(
    bench: Bench, disk_full: Path
) -> None:
    session, page, journal = (
        bench.session / name for name in (".", "report.html", "optuna.journal")
    )

    def full(place: Path | str, after_bytes: int = 0) -> dict[str, str]:
        limits = {"DISK_FULL_FOLDER": str(place), "DISK_FULL_AFTER": str(after_bytes)}
        return {"LD_PRELOAD": str(disk_full), **limits}

    def search(**limits: str) -> Popen:
        return bench.search(FEW, "--searcher", "optuna", **limits)

    for after_bytes in (0, 60_000):
        run = bench.resume if (session / "session.db").exists() else search
        error = said(run(**full(session, after_bytes)), 2)
        assert str(session.relative_to(bench.project)) in error
        assert "full" in error or "No space left" in error
    before = trials(session)
    run = bench.resume if (session / "session.db").exists() else search
    error = said(run(**full(journal, 1500)), 2)
    assert "mine/optuna.journal: cannot write Optuna's journal: No space left on device" in error
    assert "continue with `--resume mine`" in error
    # A page is written beside its place first.
    error = said(bench.resume(**full(page.with_name(f".{page.name}"))), 2)
    assert "mine/report.html: the report cannot be written: No space left on device" in error
    assert "once the cause is gone, write it with `tune report mine`" in error
    assert rows(session, "session")[0]["state"] == "complete"
    assert not list(session.glob("report.html*"))
    assert trials(session)[: len(before)] == before
    assert len(searched(session)) == FEW
    assert len(records(session, Result)) == 1
    ended(bench.start("report", "mine"))
    assert page.exists()


FAULTS = {
    0: Status.CORRECT,
    1: Status.LAUNCH,  # an illegal address
    2: Status.LAUNCH,  # exits the process
    3: Status.LAUNCH,  # allocates without end
    4: Status.LAUNCH,  # kills its own process
    5: Status.TIMEOUT,  # never ends
}


def test_every_fault_of_a_config_is_the_status_of_one_trial(bench: Bench) -> None:
    path = bench.project / "scale.yaml"
    text = path.read_text(encoding="utf-8").replace("fault: [0]", f"fault: {list(FAULTS)}")
    text = re.sub(r"(block_size|per_thread): \[.*, (\d+)\]", r"\1: [\2]", text)
    path.write_text(text.replace("per_thread: [16]", "per_thread: [1]"), encoding="utf-8")
    ended(bench.search(len(FAULTS)))
    found = {one.config["fault"]: one.status for one in searched(bench.session)}
    assert found == FAULTS
    assert len(records(bench.session, Result)) == 1


@pytest.mark.slow
def test_a_workload_beyond_the_memory_is_one_clear_error_and_loses_nothing(bench: Bench) -> None:
    large = "R=2147483647,N=4096"
    words = ("--workload", "R=1,N=2048", "--workload", large)
    error = said(bench.search(1, *words), 2)
    assert "not enough memory for R=2147483647 N=4096" in error
    assert "leave the workload out" in error
    assert len(records(bench.session, Baseline)) == 1


@pytest.mark.exhaustive
def test_a_compiler_that_is_killed_often_and_a_full_cache_fail_no_trial(
    bench: Bench, undisturbed: set[str], disk_full: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    limits = {"DISK_FULL_FOLDER": str(cache), "DISK_FULL_AFTER": "100000"}
    run = bench.search(TUNER_CACHE_DIR=str(cache), LD_PRELOAD=str(disk_full), **limits)
    folders: dict[int, str] = {}
    shots: Counter[str] = Counter()

    def compilers() -> list[Process]:
        # A command that is killed MOST_RUNS times is rightly given up, and on a busy machine
        # chance would find one: each config's folder gets fewer.
        found = [one for one in descendants(run.pid) if one.compiles]
        folders.update({one.pid: one.folder for one in found})
        return [one for one in found if one.folder and shots[one.folder] < MOST_RUNS - 1]

    wait_until(lambda: searched(bench.session), "a trial")
    kill_repeatedly(run, compilers, 4, 3, note=lambda one: shots.update([folders[one.pid]]))
    ended(run)
    assert_complete(bench.session, undisturbed)
    assert {one.status for one in searched(bench.session)} == {Status.CORRECT}
    assert not [path for path in (cache / "compiled").iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_nvrtc_that_is_killed_often_fails_no_compile() -> None:
    chance = random.Random(5)  # noqa: S311 - the same moments every time
    numbers = itertools.count()
    futures: list[Future[CompileResult]] = []
    shots: Counter[int] = Counter()
    killed = 0

    def in_flight() -> set[int]:
        """Those that the two workers may have: the first without an answer."""
        left = (number for number, future in enumerate(futures) if not future.done())
        return set(itertools.islice(left, 2))

    with NvrtcPool(workers=2) as pool:
        while killed < 3:
            if sum(not future.done() for future in futures) < 30:
                source = f"{faults.SOURCE}// {next(numbers)}\n"
                futures.append(pool.submit(CompileRequest(source, ("scale",), "sm_90a")))
                continue
            time.sleep(chance.uniform(0.1, 0.5))
            workers = [one for one in descendants(os.getpid()) if one.compiles]
            ready = [one for one in workers if one.maps("nvrtc")]
            # A compile that is killed MAX_KILLS times is rightly given up, and on a busy machine
            # chance would hit one as often before it ends.
            hit = in_flight()
            if ready and all(shots[number] < MAX_KILLS - 1 for number in hit):
                killed += chance.choice(ready).kill()
                shots.update(hit | in_flight())
        results = [future.result(60) for future in futures]
    assert [result.error for result in results if not result.ok] == []
