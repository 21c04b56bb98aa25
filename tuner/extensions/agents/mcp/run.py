"""A session that a client leads: what it asks for and what the server was started with, run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tuner.app.environment import program_name, resume_line
from tuner.app.open import OpenRun
from tuner.app.plan import RunOptions
from tuner.app.run import run
from tuner.extensions.agents.mcp.arguments import Ending, StartRequest, conclude, recap
from tuner.extensions.agents.mcp.session_runner import Watch
from tuner.extensions.agents.mcp_agent import FinishedError, Handoff, McpAgent
from tuner.model.errors import InputError, Interrupted, KernelError, TunerError
from tuner.model.settings import MCP, GivenSettings, words_of
from tuner.space.plan import Plan


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the server was started with: for all that a client leaves out."""

    root: Path
    kernel: Path | None
    settings: GivenSettings
    options: RunOptions
    resume: Path | None


def run_session(
    defaults: Defaults, request: StartRequest, handoff: Handoff, watch: Watch
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


def _run(defaults: Defaults, request: StartRequest, handoff: Handoff, watch: Watch) -> Ending:
    resume = request.resume or (None if request.kernel else defaults.resume)
    kernel = None if resume else request.kernel or defaults.kernel
    if resume is None and kernel is None:
        raise InputError("no kernel is named", remedy="`start` with the path of its .cu file")
    left_out: set[str] = set()
    if resume:
        left_out = defaults.settings.keys() - {"rounds"}  # a session keeps all else
    elif request.kernel not in (None, defaults.kernel or request.kernel):
        # What the command line says of its own kernel does not fit another.
        left_out = {"space", "workloads", "operators"}
    kept = {name: value for name, value in defaults.settings.items() if name not in left_out}
    stated = {**kept, **request.settings}
    agent = McpAgent(handoff)

    def opened(run: OpenRun) -> None:
        watch.session, agent.recap = run.session.directory, partial(recap, run.session)

    sources = tuple(Path(folder) for folder in defaults.settings.get("sources", ()))
    options = replace(
        defaults.options,
        session=None if resume else request.session or defaults.options.session,
        command=(program_name(), MCP, *([str(kernel)] if kernel else []), *words_of(stated)),
        change=partial(_require_inside, defaults.root, sources),
    )
    done = run(
        kernel,
        {**stated, "agent": MCP},
        options,
        watch,
        resume=resume,
        agent=agent,
        opened=opened,
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
