"""Run a campaign: which job is next on which GPU, and what becomes of those that end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from tuner.app.progress_lines import VARIABLE, read_line
from tuner.extensions.scale.campaign.jobs import CampaignJob
from tuner.extensions.scale.campaign.ledger import JobRecord, Ledger, lock_folder, writable
from tuner.extensions.scale.campaign.page import JobOutcome, JobState, JobStatus, write_campaign
from tuner.model.errors import INTERRUPTED, SessionError, TunerError
from tuner.model.progress import RunProgress
from tuner.model.statistics import geometric_mean
from tuner.process.child import held_back
from tuner.process.files import open_log
from tuner.session.session import Session
from tuner.session.store import DATABASE
from tuner.session.store import LOCK as SESSION_LOCK

# Of a log's end: an error message is a few lines.
_TAIL_BYTES = 8192
_READ_BYTES = 1 << 16
_ENDING_S = 0.05


class JobProcess:
    """A command whose words go to a log and whose progress is read from a pipe.

    It has a session of its own: Ctrl-C in a terminal reaches it only where it is stopped.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.progress: RunProgress | None = None
        self.silent = False
        self._unread = b""
        self._log = log
        self.pipe, theirs = os.pipe()
        os.set_blocking(self.pipe, False)
        try:
            with open_log(log) as words:
                self._said_before = words.tell()
                self._process = subprocess.Popen(  # noqa: S603 - this Python
                    command,
                    env={**os.environ, **environment, VARIABLE: str(theirs)},
                    stdin=subprocess.DEVNULL,
                    stdout=words,
                    stderr=words,
                    pass_fds=(theirs,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(self.pipe)
            raise
        finally:
            os.close(theirs)

    def read(self) -> None:
        """Read the progress that the process has written since."""
        while not self.silent:
            try:
                content = os.read(self.pipe, _READ_BYTES)
            except BlockingIOError:
                return
            *lines, self._unread = (self._unread + content).split(b"\n")
            for progress in map(read_line, lines):
                self.progress = progress or self.progress
            self.silent = not content

    def ended(self) -> int | None:
        """Return the exit code, a signal's as a negative number; None while it runs."""
        if not self.silent:
            return self._process.poll()
        # It has closed its pipe, and so most likely ends.
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_ENDING_S)
        return None

    def stop(self) -> None:
        """Ask it to end as Ctrl-C does."""
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Read the last progress of a process that has ended, and close its pipe."""
        self.read()
        os.close(self.pipe)

    def error(self) -> str:
        """Return the error that it ended with, in one line; "" for none."""
        errors = [line for line in self._last_lines() if line.startswith("Error: ")]
        return errors[-1].removeprefix("Error: ") if errors else ""

    def last_words(self) -> str:
        """Return the error that it ended with, or else its last line; "" for none."""
        return self.error() or (self._last_lines() or [""])[-1].strip()

    def _last_lines(self) -> list[str]:
        with suppress(OSError), self._log.open("rb") as file:  # somebody may have deleted it
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._said_before, size - _TAIL_BYTES))
            return file.read().decode(errors="replace").rstrip().splitlines()
        return []


def wait_for_any(processes: Sequence[JobProcess], timeout_s: float) -> None:
    """Wait until one of them tells something or closes its pipe, or for the time; read them all."""
    telling = [process.pipe for process in processes if not process.silent]
    select.select(telling, (), (), timeout_s)
    for process in processes:
        process.read()


def how_it_ended(code: int) -> str:
    """Say what an exit code means, for a job without words of its own."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


INDEX = "index.html"
# How often a job that something killed is started again.
RESTARTS = 2
# For the children to end a trial and close their devices.
GRACE_S = 60.0
# A child whose campaign was killed ends at its next trial, and a comparison may take minutes.
ORPHAN_S = 900.0
TURN_S = 0.2
# For a scheduler to take a connection.
SCHEDULER_S = 5.0
NO_SCHEDULER = "the scheduler of its cluster does not answer"
# From the worst down; all others are 1.
_SEVERITY = (1, 2, 4)


class CampaignListener(Protocol):
    """Receive the state of all jobs, some times a second."""

    def update(self, states: Sequence[JobState]) -> None:
        """Show or store it; must return quickly."""


class Campaign:
    """Run jobs on GPUs, one on each, and on `parallel` other places; keep what is done in `folder`.

    What is done with the same files is not run again. A job that a signal ended is started again,
    from its session; one that failed otherwise is told, and the others go on. Once the scheduler of
    a cluster is gone no job of that cluster begins, and after `time_s` in this run none at all:
    those that run are stopped.
    """

    def __init__(
        self,
        jobs: Sequence[CampaignJob],
        folder: Path,
        *,
        gpus: Sequence[int] = (),
        parallel: int = 1,
        time_s: float | None = None,
        environment: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> None:
        if not gpus and any(job.needs_gpu for job in jobs):
            raise ValueError("there is no GPU for a job that needs one")
        self._folder, self._time_s = folder, time_s
        self._environment = environment or {}
        self.ledger = Ledger(folder, fresh=fresh)
        self._tracks = [_Track(job, self.ledger.jobs.get(job.name)) for job in jobs]
        self._gpus = list(gpus)
        self._others = list(range(min(parallel, len(jobs))))
        self._stopping = ""
        # Where nothing more can be measured in this run.
        self._lost_clusters: set[str] = set()

    @property
    def states(self) -> tuple[JobState, ...]:
        return tuple(track.state() for track in self._tracks)

    @property
    def idle_gpus(self) -> tuple[int, ...]:
        """The GPUs for which there is no job, as a job uses one."""
        left = sum(track.job.needs_gpu and track.status == "waiting" for track in self._tracks)
        return tuple(self._gpus[left:]) if left else ()

    @property
    def exit_code(self) -> int:
        """The worst of the jobs': that of a failure, else 130 where some are left, else 0."""
        failed = {state.exit_code for state in self.states if state.status == "failed"}
        if failed:
            return next((code for code in _SEVERITY if code in failed), 1)
        return 0 if all(state.status == "done" for state in self.states) else INTERRUPTED

    def run(self, listener: CampaignListener) -> tuple[JobState, ...]:
        """Run what is left to its end, or to the end of the time; return what became of each job.

        An interruption stops the children first. Raises `InputError` where the folder cannot be
        written or another campaign has it.
        """
        started_s = time.monotonic()
        with lock_folder(self._folder):
            self._save()
            try:
                while self._begin():
                    self._turn(listener)
                    if self._time_s and time.monotonic() - started_s > self._time_s:
                        self._stop(listener, "the time was over")
            except BaseException as error:
                why = error.message if isinstance(error, TunerError) else "interrupted"
                self._stop(listener, why)
                raise
            finally:
                listener.update(self.states)
                self._save()
        return self.states

    def _begin(self) -> bool:
        """Start what has a place; tell whether anything runs or waits for one."""
        waiting = [
            track
            for track in self._tracks
            if track.status == "waiting" and track.job.cluster not in self._lost_clusters
        ]
        if self._stopping:
            waiting = []
        waiting.sort(key=lambda track: -track.job.cost)
        left = bool(waiting)
        if any(track.in_use() for track in waiting):
            # Which GPU it has nobody knows.
            waiting = [track for track in waiting if not track.job.needs_gpu]
        running = [track for track in self._tracks if track.status in ("running", "finishing")]
        if any(track.job.alone for track in running):
            waiting = []
        together = [track for track in waiting if not track.job.alone]
        for track in together if together or running else waiting[:1]:
            self._start_on_a_place(track)
        return left or bool(running)

    def _start_on_a_place(self, track: _Track) -> None:
        places = self._gpus if track.job.needs_gpu else self._others
        if not places or track.in_use():
            return
        with held_back():
            track.place = (places.pop(0), track.job.needs_gpu)
            record = self.ledger.jobs.get(track.job.name)
            command = track.command(record.key if record else "")
            # Before the process: whatever it leaves behind is then known to be of these files.
            self.ledger.jobs[track.job.name] = track.record()
            self.ledger.save()
            self._launch(track, command)
            track.status, track.progress = "running", None
            track.starts += 1
            self._save()

    def _launch(self, track: _Track, command: Sequence[str]) -> None:
        environment = {**self._environment, **track.environment()}
        with writable(self._folder):
            track.process = JobProcess(command, self._folder / f"{track.job.name}.log", environment)
        track.since_s = time.monotonic()

    def _processes(self) -> dict[_Track, JobProcess]:
        return {track: track.process for track in self._tracks if track.process is not None}

    def _turn(self, listener: CampaignListener) -> None:
        """Wait until something is told or ends, but not long; take up what has ended."""
        listener.update(self.states)
        processes = self._processes()
        wait_for_any(list(processes.values()), TURN_S)
        for track, process in processes.items():
            code = process.ended()
            if code is not None:
                self._look_at_cluster(track, code)
                with held_back():
                    self._take_up(track, process, code)

    def _look_at_cluster(self, ended: _Track, code: int) -> None:
        """Leave what waits for a cluster to the next run, where its scheduler ended this one."""
        cluster = ended.job.cluster
        if not cluster or code <= 0 or self._stopping or cluster in self._lost_clusters:
            return
        from tuner.extensions.scale.cluster.network import unreachable

        # A run says so with a code of its own once it measures. One that begins or ends just then
        # ends as with any device that cannot be used.
        if code == INTERRUPTED or unreachable(cluster, SCHEDULER_S):
            self._lost_clusters.add(cluster)
            for track in self._tracks:
                if track.status == "waiting" and track.job.cluster == cluster:
                    track.message = NO_SCHEDULER

    def _take_up(self, track: _Track, process: JobProcess, code: int) -> None:
        """Decide what follows the end of a process: another start, the next command, or the end."""
        track.process = None
        process.close()
        track.progress = process.progress or track.progress
        track.seconds += time.monotonic() - track.since_s if track.place else 0.0
        self._free(track)
        track.exit_code = None
        follows = track.job.finish[track.next_finish :]
        if code == 0 and follows and not self._stopping:
            self._launch(track, follows[0])
            track.next_finish += 1
            track.status = "finishing"
        elif code == 0 and not follows:
            track.status, track.exit_code, track.message = "done", 0, ""
        elif self._stopping:
            track.status, track.message = "stopped", self._stopping
        elif code < 0 and track.kills < RESTARTS:
            track.kills += 1
            track.next_finish = 0
            track.status, track.message = "waiting", f"{how_it_ended(code)}, started again"
        elif code > 0 and track.job.cluster in self._lost_clusters:
            track.status, track.message = "stopped", process.error() or NO_SCHEDULER
        elif code == INTERRUPTED:
            track.status = "stopped"
            track.message = process.error() or "interrupted by somebody else"
        else:
            track.status, track.exit_code = "failed", code if code > 0 else 1
            track.message = process.last_words() if code > 0 else ""
            times = f" {track.kills + 1} times" if code < 0 else ""
            track.message = track.message or f"{how_it_ended(code)}{times}"
        if track.process is None:
            with suppress(SessionError):
                track.outcome = outcome_of(track.job.session)
        self.ledger.jobs[track.job.name] = track.record()
        if not self._stopping:  # else once all are stopped: it may be what cannot be done
            self._save()

    def _free(self, track: _Track) -> None:
        if track.place is not None:
            number, of_gpu = track.place
            (self._gpus if of_gpu else self._others).append(number)
            track.place = None

    def _stop(self, listener: CampaignListener, why: str) -> None:
        """End all children as Ctrl-C does; kill those that take too long or at a second Ctrl-C."""
        self._stopping = why
        until_s = time.monotonic() + GRACE_S
        try:
            for process in self._processes().values():
                process.stop()
            while self._processes() and time.monotonic() < until_s:
                self._turn(listener)
        finally:
            while processes := self._processes():
                for process in processes.values():
                    process.kill()
                self._turn(listener)
            for track in self._tracks:
                if track.status == "waiting":
                    self._free(track)  # where it was about to begin
                    track.message = why

    def _save(self) -> None:
        self.ledger.save()
        with writable(self._folder):
            write_campaign(self.states, self.ledger.wall_s, self._folder / INDEX)


class _Track:
    """A job while its campaign runs."""

    def __init__(self, job: CampaignJob, record: JobRecord | None) -> None:
        same = record is not None and record.key == job.key
        there = job.session is None or (job.session / DATABASE).exists()
        self.job = job
        self.kept = False
        self.status: JobStatus = "waiting"
        self.exit_code: int | None = None
        self.seconds = record.seconds if record and same else 0.0
        self.outcome: JobOutcome | None = None
        self.process: JobProcess | None = None
        self.progress: RunProgress | None = None
        self.place: tuple[int, bool] | None = None
        self.message = ""
        self.starts = self.kills = self.next_finish = 0
        self.since_s = 0.0
        self._created_s = time.monotonic()
        if same and there and record is not None and record.exit_code == 0:
            try:
                self.outcome = outcome_of(self.job.session)
            except SessionError as error:
                self.status, self.exit_code = "failed", error.exit_code
                found = str(error).partition("\n")[0]
                self.message = f"restore its session from a copy, or move its folder away: {found}"
            else:
                self.status, self.exit_code, self.kept = "done", 0, True

    def state(self) -> JobState:
        seconds = self.seconds
        if self.place is not None:
            seconds += time.monotonic() - self.since_s
        return JobState(
            self.job.name,
            self.job.kernel,
            self.status,
            seconds=round(seconds, 1),
            place=f"{'GPU' if self.place[1] else 'slot'} {self.place[0]}" if self.place else "",
            kept=self.kept,
            progress=(self.process.progress if self.process else None) or self.progress,
            outcome=self.outcome,
            exit_code=self.exit_code,
            message=self.message,
            starts=self.starts,
        )

    def record(self) -> JobRecord:
        seconds = round(self.seconds, 1)
        return JobRecord(key=self.job.key, seconds=seconds, exit_code=self.exit_code)

    def command(self, key_before: str) -> Sequence[str]:
        """Choose between a fresh start and going on; a session of other files makes room."""
        session = self.job.session
        if session is None or not (session / DATABASE).exists():
            return self.job.start
        if key_before == self.job.key:
            return self.job.resume
        with writable(session.parent):
            session.rename(session.with_name(f"{session.name}-{time.time_ns()}"))
        return self.job.start

    def environment(self) -> dict[str, str]:
        """Show the process its own GPU alone: then its session can go on with any of them."""
        if self.place is None or not self.place[1]:
            return {}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        named = [one.strip() for one in visible.split(",") if one.strip()]
        number = self.place[0]
        return {"CUDA_VISIBLE_DEVICES": named[number] if named else str(number)}

    def in_use(self) -> bool:
        """Tell whether the child of a campaign that was killed still writes the session."""
        session = self.job.session
        if session is None or not (session / DATABASE).exists():
            return False
        if self.starts or time.monotonic() - self._created_s > ORPHAN_S:
            return False
        try:
            with FileLock(session / SESSION_LOCK).acquire(blocking=False):
                return False
        except Timeout:
            return True


def outcome_of(session: Path | None) -> JobOutcome | None:
    """Read what a session holds, None where there is none; raise `SessionError` if damaged."""
    if session is None or not (session / DATABASE).exists():
        return None
    with closing(Session.open(session, read_only=True)) as known:
        tuned = [result.speedup for result in known.results() if not result.workload.held_out]
        device, on_cpu, recorded = (
            known.environment.get(name, "") for name in ("device", "on_cpu", "recorded")
        )
        return JobOutcome(
            device=f"{device} (recorded)" if recorded == "true" else device,
            workloads=len(known.results()),
            trials=len(known.trials()),
            speedup=geometric_mean(tuned) if tuned and on_cpu != "true" else None,
        )
