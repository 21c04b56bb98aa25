"""`tune mutate`: how many ways of breaking a kernel its verification catches."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from tuner.app.plans import unique
from tuner.cli import options
from tuner.cli.exits import stdout_kept_for_result, terminated_as_interrupted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rich.console import Console

    from tuner.device.base import Device, DeviceInfo
    from tuner.model.config import Config
    from tuner.mutation.examine import Bench, Examiner, MutantVerdict, MutationReport
    from tuner.mutation.mutants import Mutant
    from tuner.mutation.subject import MutationSubject
    from tuner.space.load import Definition

# A mutant that never ends is found out in this time.
RUN_TIMEOUT_S = 2.0
PLAIN_EVERY_S = 5.0
BELOW = 1


@dataclass(frozen=True, slots=True)
class Request:
    """The options of `tune mutate`."""

    space: Path
    config: str | None
    operator: tuple[tuple[str, str], ...]
    limit: int | None
    seed: int
    equivalent: Path | None
    session: Path | None


@click.command("mutate")
@click.argument("space", metavar="SPACE.yaml", type=click.Path(path_type=Path))
@click.option(
    "--config",
    metavar="default|NAME=VALUE,...",
    help="Mutate the template at this config, in place of the baseline; parameters not named come "
    "from the space's default.",
)
@click.option(
    "--operator",
    metavar="NAME=VALUE",
    multiple=True,
    type=options.assignment,
    help="Which of the operator's variants to mutate; repeatable.",
)
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), help="Try N mutants, spread evenly."
)
@click.option(
    "--seed", metavar="N", type=options.seed, default="0", show_default=True, help="Of the sample."
)
@click.option(
    "--equivalent",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Mutants marked as equivalent; SPACE.mutants.yaml beside the space else, if there is one.",
)
@click.option(
    "--session",
    metavar="DIR",
    type=options.folder,
    help="Store the score in this session, whose report then shows it.",
)
@click.option(
    "--at-least",
    metavar="PERCENT",
    type=click.FloatRange(0, 100),
    help="Exit with code 1 where a smaller share is caught.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    space: Path,
    config: str | None,
    operator: tuple[tuple[str, str], ...],
    limit: int | None,
    seed: int,
    equivalent: Path | None,
    session: Path | None,
    at_least: float | None,
    as_json: bool,
) -> None:
    """Show how strong the check is: break the kernel of SPACE.yaml and see what is caught.

    Every mutant has one small change, and is verified on the `host` device; no GPU is needed.
    """
    from rich.console import Console

    from tuner.mutation.examine import as_object, as_text

    request = Request(space, config, operator, limit, seed, equivalent, session)
    console = Console(stderr=as_json, highlight=False)
    with terminated_as_interrupted():
        with stdout_kept_for_result() if as_json else nullcontext():
            found = _examined(request, console)
        if as_json:
            click.echo(json.dumps(as_object(found)))
        else:
            for line in as_text(found):
                console.print(line, markup=False, soft_wrap=True)
    if not found.complete:
        raise KeyboardInterrupt
    if at_least is not None:
        _require_share(found, at_least)


def _examined(request: Request, console: Console) -> MutationReport:
    """Examine the mutants that the request names; an interruption keeps what is known."""
    from tuner.app.plans import read_definition
    from tuner.device.cpu.device import HostDevice
    from tuner.mutation.examine import MutationReport, save_score, score_of
    from tuner.space.choices import chosen_operators

    definition = read_definition(request.space)
    operators = chosen_operators(definition.spec, unique(request.operator, "operator"))
    definition = definition.chosen(operators)
    with ExitStack() as stack:
        device = HostDevice(definition.spec, operators, run_timeout_s=RUN_TIMEOUT_S)
        stack.callback(device.close)
        subject = _subject(request, definition, operators, device.info)
        marks_path, marks = _marks(request, subject)
        started_s = time.perf_counter()
        verdicts: list[MutantVerdict] = []
        complete = False
        examiner = _examiner(subject, device, stack)
        try:
            examiner.require_correct()
            chosen = _chosen(subject, request)
            for verdict in _shown(examiner.examine(chosen, marks), len(chosen), console):
                verdicts.append(verdict)
            complete = True
        except KeyboardInterrupt:
            pass
        seconds = time.perf_counter() - started_s
    found = MutationReport(
        subject=subject,
        score=score_of(subject, verdicts, datetime.now(UTC).date().isoformat()),
        verdicts=tuple(verdicts),
        marks=marks_path,
        seconds=seconds,
        complete=complete,
        unsanitized=examiner.unsanitized,
    )
    if request.session is not None and complete:
        save_score(request.session, found.score)
    return found


def _examiner(subject: MutationSubject, device: Device, stack: ExitStack) -> Examiner:
    """Put compilers, devices and the subject together; `stack` closes them."""
    from tuner.app.open import compiler_for
    from tuner.compiler.cache import Cache
    from tuner.compiler.pool import NvrtcPool
    from tuner.mutation.examine import Bench, Examiner

    compiler = compiler_for(device, None, stack)
    twin = NvrtcPool(workers=1, cache=Cache())
    stack.callback(twin.close)
    plain = Bench(subject, device, compiler, subject.workloads)
    return Examiner(subject, plain, twin, lambda: _sanitized(subject, stack))


def _sanitized(subject: MutationSubject, stack: ExitStack) -> Bench:
    """Make the bench for those that survive the plain one; `DeviceError` without sanitizers."""
    from tuner.app.watching import sanitized_host
    from tuner.compiler.host import SANITIZERS, preload
    from tuner.mutation.examine import Bench

    environment = preload(SANITIZERS)
    compiler, device = sanitized_host(subject.spec, subject.operators, environment, stack)
    return Bench(subject, device, compiler, subject.small_workloads)


def _subject(
    request: Request, definition: Definition, operators: Mapping[str, str], info: DeviceInfo
) -> MutationSubject:
    from tuner.app.check import check_signature
    from tuner.mutation.examine import require_same_sources
    from tuner.mutation.subject import MutationSubject

    check_signature(definition.spec)
    config = _config(request.config, definition)
    subject = MutationSubject(definition.spec, definition.space, operators, info, config)
    if request.session is not None:
        require_same_sources(request.session, subject)
    return subject


def _config(text: str | None, definition: Definition) -> Config | None:
    from tuner.cli.render_command import chosen_config

    if text is None:
        return None
    pieces = () if text == "default" else tuple(map(options.assignment, text.split(",")))
    return chosen_config(definition.spec, definition.space, unique(pieces, "parameter"))


def _marks(request: Request, subject: MutationSubject) -> tuple[Path, Mapping[Mutant, str]]:
    from tuner.mutation.marks import default_path, read_marks

    path = request.equivalent or default_path(request.space)
    if request.equivalent is None and not path.exists():
        return path, {}
    return path, read_marks(path, subject.space).matched(subject)


def _chosen(subject: MutationSubject, request: Request) -> tuple[Mutant, ...]:
    from tuner.mutation.mutants import sampled

    return sampled(subject.reached, request.limit, request.seed)


def _require_share(found: MutationReport, at_least: float) -> None:
    from tuner.mutation.examine import share_text

    share = found.score.share
    if share is None or 100 * share < at_least:
        caught = f"{share_text(found.score)} of the mutants caught"
        click.echo(f"Error: {caught}, below the {at_least:g} % asked for", err=True)
        raise Exit(BELOW)


def _shown(
    verdicts: Iterable[MutantVerdict], count: int, console: Console
) -> Iterator[MutantVerdict]:
    """Pass verdicts on, showing how far they are: a bar on a terminal, else a line at times."""
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    if console.is_terminal and not console.is_dumb_terminal:
        columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            yield from progress.track(verdicts, total=count, description="mutants")
        return
    console.print(f"{count} mutants", markup=False)
    printed_s = time.perf_counter()
    for number, verdict in enumerate(verdicts, start=1):
        yield verdict
        if time.perf_counter() - printed_s >= PLAIN_EVERY_S:
            printed_s = time.perf_counter()
            console.print(f"{number} of {count} mutants", markup=False)
