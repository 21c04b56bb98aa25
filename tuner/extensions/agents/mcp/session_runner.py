"""Run one session at a time in a thread of its own, led by the client's tool calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Thread

from tuner.app.environment import program_name, resume_line
from tuner.app.open import OpenRun
from tuner.app.plan import RunOptions
from tuner.app.run import run
from tuner.device.base import DeviceInfo
from tuner.extensions.agents.mcp.arguments import (
    Ending,
    StartArguments,
    conclude,
    leading_tools,
    recap,
)
from tuner.extensions.agents.mcp_agent import FinishedError, Handoff, McpAgent
from tuner.extensions.agents.tools.arguments import ToolLimits
from tuner.extensions.agents.tools.tool_session import offers
from tuner.model.errors import InputError, Interrupted, KernelError, TunerError
from tuner.model.progress import Listener, Phase, Progress, WorkloadProgress
from tuner.model.settings import COMMAND, MCP, GivenSettings, words_of
from tuner.report import formatting
from tuner.session.events import Tool
from tuner.space.plan import Plan

PHASES: Mapping[Phase, str] = {
    "baseline": "the baseline is measured",
    "search": "a candidate is searched",
    "agent": "a round is prepared",
    "candidate": "what was submitted is checked",
    "profile": "the best configs are profiled",
    "finals": "the rounds are over and the finalists are measured against the baseline",
    "checks": "the rounds are over and the winners are checked",
    "mutants": "the winners are checked, and the baseline is broken to see what is caught",
    "done": "the run is over",
}
# What names a recording's file as a device.
_RECORDING = "recorded:"
LAST: tuple[Phase, ...] = ("finals", "checks", "mutants", "done")


class RunWatch:
    """Keep the last snapshot of a run and all its notes, and stop it where its handoff says so.

    `view` is told as well. `session` is the run's folder once there is one.
    """

    def __init__(self, handoff: Handoff, view: Listener) -> None:
        self._handoff, self._view = handoff, view
        self._progress: Progress | None = None
        self.notes: list[str] = []
        self.session: Path | None = None

    def update(self, progress: Progress) -> None:
        """Take a snapshot; raise `KeyboardInterrupt` where the run is to stop."""
        self._progress = progress
        if progress.note:
            self.notes.append(progress.note)
        self._view.update(progress)
        if self._handoff.stopping:
            raise KeyboardInterrupt

    @property
    def deciding(self) -> bool:
        return self._progress is not None and self._progress.phase in LAST

    def line(self) -> str:
        """Say in one line what is being done."""
        progress = self._progress
        if progress is None:
            return "files are read and the device is opened"
        text = PHASES[progress.phase]
        if progress.current is not None:
            text += f" on {progress.current}"
        if progress.phase == "search":
            done = sum(workload.done for workload in progress.workloads)
            budget = sum(workload.budget for workload in progress.workloads)
            text += f", {done} of {budget} trials"
        return text

    def text(self) -> str:
        """Say where the run stands, and what has come of it so far."""
        progress = self._progress
        lines = [f"session: {self.session}"] if self.session else []
        if progress is not None:
            lines.append(f"{progress.kernel} on {progress.device}, {progress.seconds:.0f} s so far")
            lines += [_workload(workload) for workload in progress.workloads]
        return "\n".join([*lines, *(f"- {note}" for note in self.notes)])


def _workload(progress: WorkloadProgress) -> str:
    name = str(progress.workload)
    if progress.baseline_us is None:
        return f"{name}: not measured yet"
    text = f"{name}: baseline {formatting.microseconds(progress.baseline_us)} us"
    if progress.best_us is not None and progress.speedup is not None:
        best, ratio = formatting.microseconds(progress.best_us), formatting.ratio(progress.speedup)
        text += f", best of the search {best} us ({ratio})"
    counts = ", ".join(f"{count} {status}" for status, count in progress.counts.items())
    return f"{text}; {progress.done} of {progress.budget} trials{f': {counts}' if counts else ''}"


BROKEN = Ending("the run broke off; the server's standard error says why", failed=True)


# Runs a session from its opening to its end; what a user can do about is no exception.
Tuning = Callable[[StartArguments, Handoff, RunWatch], Ending]


class ServedRun:
    """A session that is being run in its thread."""

    def __init__(self, request: StartArguments, tuning: Tuning, view: Listener) -> None:
        self.handoff = Handoff()
        self.watch = RunWatch(self.handoff, view)
        self._request, self._tuning = request, tuning
        self._ending: Ending | None = None
        # Not waited for where a process is to end at once: what is measured is on disk.
        self._thread = Thread(target=self._work, name="tuning", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        return self.handoff.closed

    @property
    def ending(self) -> Ending:
        """How it ended; only for one that is over."""
        return self._ending or BROKEN

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._ending = self._tuning(self._request, self.handoff, self.watch)
        finally:
            self.handoff.close()


class SessionRunner:
    """Start runs below a folder, one after the other; `root` is an absolute path."""

    def __init__(self, root: Path, tuning: Tuning, view: Listener) -> None:
        self._root, self._tuning, self._view = root.resolve(), tuning, view
        self._run: ServedRun | None = None

    @property
    def current(self) -> ServedRun:
        """The last run that was started; raise `InputError` before the first."""
        if self._run is None:
            raise InputError("no session is open", remedy="`start` opens one")
        return self._run

    def start(self, asked: StartArguments) -> ServedRun:
        """Start a run; raise `InputError` for a path outside the root, and while one goes on."""
        if self._run is not None and not self._run.over:
            raise InputError(
                f"a session is open already: {self._run.watch.session or 'it is being opened'}",
                remedy="`finish` ends it; one server leads one session at a time",
            )
        if asked.resume and (asked.kernel or asked.session):
            raise InputError(
                "`resume` goes on with a session that has its kernel and its folder",
                remedy="leave out `kernel` and `session`, or `resume`",
            )
        device = str(asked.settings.get("device", ""))
        if device.startswith(COMMAND):
            raise InputError(
                "`device` names a program, which a client may not choose",
                remedy="the server's --device may: tune mcp --device command:PROGRAM",
            )
        if device.startswith(_RECORDING):
            self._inside("device", device.removeprefix(_RECORDING))
        paths = {what: getattr(asked, what) for what in ("kernel", "session", "resume")}
        below = {what: self._inside(what, path) for what, path in paths.items() if path}
        self._run = ServedRun(asked.model_copy(update=below), self._tuning, self._view)
        return self._run

    def tools(self) -> tuple[Tool, ...]:
        """List the tools: those of the session's rounds, and before the first round all there are.

        Not every client reads the list again when it is told that it has changed.
        """
        of_round = None if self._run is None else self._run.handoff.tools
        return (*leading_tools(), *(_catalogue() if of_round is None else of_round))

    def stop(self) -> None:
        """Have the run stop as Ctrl-C does; its session can be resumed."""
        if self._run is not None:
            self._run.handoff.stop()

    def join(self, timeout_s: float) -> bool:
        return self._run is None or self._run.join(timeout_s)

    def _inside(self, what: str, text: str) -> str:
        path = (self._root / text).resolve()
        if not path.is_relative_to(self._root):
            raise InputError(
                f"`{what}` is outside the folder that the server was started in: {text}",
                remedy=f"name a path below {self._root}, or start the server with another --root",
            )
        return str(path.relative_to(self._root))


def _catalogue() -> Sequence[Tool]:
    """List the tools of rounds as they are for a device that can do everything."""
    info = DeviceInfo(
        name="",
        architecture="the session's device",
        compute_capability=(0, 0),
        multiprocessors=0,
        l2_bytes=0,
        streaming_gbps=0.0,
        recorded=False,
    )
    return [
        replace(tool, description=f"{tool.description} While a round is open.")
        for tool in (offer.tool for offer in offers(info, ToolLimits()))
    ]


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the server was started with: for all that a client leaves out."""

    root: Path
    kernel: Path | None
    settings: GivenSettings
    options: RunOptions
    resume: Path | None


def run_session(
    defaults: Defaults, request: StartArguments, handoff: Handoff, watch: RunWatch
) -> Ending:
    """Run a session from its opening to its end; return what stopped it instead of raising."""
    try:
        return _run(defaults, request, handoff, watch)
    except TunerError as error:
        return Ending(str(error), failed=True)
    except KeyboardInterrupt as stopped:
        if isinstance(stopped, Interrupted):
            defaults.options.say(resume_line(stopped))
        return Ending(f"stopped; `start` with resume goes on: {watch.session}", failed=True)


def _run(defaults: Defaults, request: StartArguments, handoff: Handoff, watch: RunWatch) -> Ending:
    asked_kernel = Path(request.kernel) if request.kernel else None
    resume = Path(request.resume) if request.resume else None if asked_kernel else defaults.resume
    kernel = None if resume else asked_kernel or defaults.kernel
    if resume is None and kernel is None:
        raise InputError("no kernel is named", remedy="`start` with the path of its .cu file")
    left_out: set[str] = set()
    if resume:
        left_out = defaults.settings.keys() - {"rounds"}  # a session keeps all else
    elif asked_kernel not in (None, defaults.kernel or asked_kernel):
        # What the command line says of its own kernel does not fit another.
        left_out = {"space", "workloads", "operators"}
    kept = {name: value for name, value in defaults.settings.items() if name not in left_out}
    stated = {**kept, **request.settings}
    agent = McpAgent(handoff)

    def on_open(run: OpenRun) -> None:
        watch.session, agent.recap = run.session.directory, partial(recap, run.session)

    session = Path(request.session) if request.session else defaults.options.session
    sources = tuple(Path(folder) for folder in defaults.settings.get("sources", ()))
    options = replace(
        defaults.options,
        session=None if resume else session,
        command=(program_name(), MCP, *([str(kernel)] if kernel else []), *words_of(stated)),
        change=partial(_require_inside, defaults.root, sources),
    )
    done = run(
        kernel, {**stated, "agent": MCP}, options, watch, resume=resume, agent=agent, opened=on_open
    )
    # To end the rounds early is the client's right.
    failure = None if isinstance(done.failure, FinishedError) else done.failure
    return conclude(done, failure)


def _require_inside(root: Path, sources: tuple[Path, ...], plan: Plan) -> Plan:
    """Raise `KernelError` for files of a kernel that lie outside what the client may name."""
    spec = plan.spec
    allowed = (root, *sources)
    for path in (spec.path, spec.source, spec.reference, spec.template, *spec.include_dirs):
        if not any(path.resolve().is_relative_to(folder) for folder in allowed):
            raise KernelError(
                f"is outside the folder that the server was started in, {root}",
                path=path,
                remedy="start the server with another --root, or name its folder with --sources",
            )
    return plan
