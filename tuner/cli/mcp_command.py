"""`tune mcp`: the rounds and their tools for a coding agent in an editor."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from tuner.app.environment import program_name
from tuner.app.plans import DEFAULT_ROUNDS, MCP
from tuner.cli import options
from tuner.model.errors import AgentError, InputError, KernelError, TunerError

if TYPE_CHECKING:
    from tuner.agent.mcp_agent import Handoff
    from tuner.app.plans import Request
    from tuner.mcp.arguments import Ending, Wish
    from tuner.mcp.session_runner import Watch
    from tuner.space.plan import Plan

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
# Clients of the protocol commonly give up after 60 s.
WAIT = "45s"


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the server was started with: for all that a client leaves out."""

    kernel: Path | None
    space: Path | None
    device: str
    trials: int | None
    time: float | None
    rounds: int | None
    policy: str | None
    workload: tuple[str, ...]
    operator: tuple[tuple[str, str], ...]
    session: Path | None
    resume: Path | None
    sources: tuple[Path, ...]
    jobs: int | None
    store: str | None


@click.command("mcp")
@click.argument("kernel", metavar="[KERNEL.cu]", required=False, type=click.Path(path_type=Path))
@click.option("--space", type=click.Path(path_type=Path), help="Search space of the kernel.")
@click.option(
    "--root",
    type=FOLDER,
    default=".",
    help="Folder that the client may name kernels and sessions in; the current one.",
)
@click.option(
    "--device", metavar="DEVICE", default="auto", help="auto, cuda, cuda:N or host, as for a run."
)
@options.trials("Configs to try for each workload.")
@options.time("Stop searching after it.")
@options.rounds(f"Rounds at most; {DEFAULT_ROUNDS}.", least=1)
@options.policy()
@options.workload("Tune for this one")
@options.operator("tune")
@options.session("Folder of the session.")
@options.resume("Session that `start` resumes.")
@options.store()
@options.sources("client")
@options.jobs()
@click.option(
    "--wait",
    metavar="TIME",
    type=options.seconds,
    default=WAIT,
    show_default=True,
    help="How long a call waits for the run at most; less than the client's own limit.",
)
def command(root: Path, wait: float, **values: Any) -> None:
    """Serve the rounds and their tools over the Model Context Protocol.

    It is spoken on standard input and output. An editor or a coding agent starts this; KERNEL.cu
    and the options are what its `start` takes where it names nothing else.
    """
    from rich.console import Console

    from tuner.cli.view import PlainView

    try:
        from tuner.mcp.server import serve
    except ModuleNotFoundError as error:
        if error.name not in {"anyio", "mcp", "mcp_types"}:
            raise
        raise click.UsageError(
            "the package `mcp` is not installed: `pip install '.[mcp]' in the checkout`"
        ) from error
    from tuner.mcp.session_runner import SessionRunner

    root = root.resolve()
    for name in ("kernel", "space", "session", "resume"):
        values[name] = values[name] and _named(values[name], root)
    values["sources"] = tuple(path.resolve() for path in values["sources"])
    # New sessions lie below it, and messages name files from there.
    os.chdir(root)
    defaults = Defaults(**values)
    view = PlainView(Console(stderr=True, highlight=False, width=140))
    code = serve(SessionRunner(root, partial(_tuned, defaults, root), view), wait_s=wait)
    if code:
        raise Exit(code)


def _named(path: Path, root: Path) -> Path:
    """Name a path as seen from the root, where it lies below it."""
    whole = path.resolve()
    return whole.relative_to(root) if whole.is_relative_to(root) else whole


def _tuned(defaults: Defaults, root: Path, wish: Wish, seat: Handoff, watch: Watch) -> Ending:
    """Run a session from its opening to its end; what stopped it is told, not raised."""
    from tuner.mcp.arguments import Ending

    try:
        with ExitStack() as stack:
            return _run(_request(defaults, wish), root, seat, watch, stack)
    except (TunerError, click.UsageError) as error:
        return Ending(str(error), failed=True)
    except (Exit, KeyboardInterrupt):
        return Ending(f"stopped; `start` with resume goes on: {watch.session}", failed=True)


def _run(request: Request, root: Path, seat: Handoff, watch: Watch, stack: ExitStack) -> Ending:
    from tuner.agent.mcp_agent import FinishedError, McpAgent
    from tuner.app.open import resumed, started
    from tuner.app.run import tune
    from tuner.mcp.arguments import conclude, recap

    agent = McpAgent(seat)
    inside = partial(_require_inside, root, request.sources)
    run = (resumed if request.resume else started)(request, stack, inside, (MCP,), agent)
    watch.session, agent.recap = run.session.directory, partial(recap, run.session)
    if run.knowledge is not None:
        stack.callback(run.knowledge.keep, run.session)
    failure: AgentError | None = None
    try:
        tune(
            run.plan,
            session=run.session,
            device=run.device,
            compiler=run.compiler,
            listener=watch,
            watches=run.watches,
            author=run.author,
            knowledge=run.knowledge,
        )
    except FinishedError:
        pass  # as it was asked to
    except AgentError as error:
        failure = error
    return conclude(run.session, run.plan.spec, failure)


def _request(defaults: Defaults, wish: Wish) -> Request:
    """Complete what the client wants with what the server was started with."""
    from tuner.app.plans import Request

    resume = wish.resume or (None if wish.kernel else defaults.resume)
    kernel = wish.kernel or defaults.kernel
    if resume is None and kernel is None:
        raise InputError("no kernel is named", remedy="`start` with the path of its .cu file")
    given: dict[str, Any] = {
        "device": wish.device,
        "trials": wish.trials,
        "rounds": wish.rounds or (defaults.rounds if resume else None),
        "workload": wish.workloads or None,
        "agent": MCP,
    }
    given = {name: value for name, value in given.items() if value is not None}
    # What the command line says of its kernel does not fit another.
    own = defaults.kernel is None or wish.kernel in (None, defaults.kernel)
    values: dict[str, Any] = {
        "kernel": None if resume else kernel,
        "space": defaults.space if own and not resume else None,
        "device": defaults.device,
        "trials": defaults.trials,
        "rounds": defaults.rounds,
        "time": defaults.time,
        "workload": defaults.workload if own else (),
        "operator": defaults.operator if own else (),
        "session": None if resume else wish.session or defaults.session,
        **given,
    }
    return Request(
        **values,
        template=None,
        searcher="auto",
        seed=0,
        resume=resume,
        as_json=False,
        quiet=True,
        jobs=defaults.jobs,
        given=frozenset(given),
        words=_words(values),
        policy=defaults.policy,
        sources=defaults.sources,
        store=defaults.store,
    )


def _words(values: dict[str, Any]) -> tuple[str, ...]:
    """Write the command that would start the same."""
    words = [program_name(), MCP, *([str(values["kernel"])] if values["kernel"] else [])]
    for name in ("space", "device", "trials", "rounds"):
        if values[name] is not None:
            words += [f"--{name}", str(values[name])]
    for text in values["workload"]:
        words += ["--workload", text]
    for name, value in values["operator"]:
        words += ["--operator", f"{name}={value}"]
    return tuple(words)


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
