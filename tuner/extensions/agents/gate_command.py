"""`tune gate`: what the loop would say of an agent's answer, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from tuner.cli import options
from tuner.cli.exits import NOT_SHOWN

if TYPE_CHECKING:
    from tuner.model.config import Config
    from tuner.space.plan import Plan


# What these say holds for code that runs, which here nobody knows: it may be of a fallback.
OF_WHAT_RUNS = ("instruction_mix", "vector_width", "tail")


@click.command("gate")
@click.argument("answer", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("source", metavar="KERNEL.cu", type=click.Path(path_type=Path))
@options.setting("space")
@options.setting("operators")
@options.setting("invariant")
@options.setting("workloads")
@click.option("--target", help="Architecture to compile for; sm_90a by default.")
@click.pass_context
def command(context: click.Context, /, answer: Path, target: str | None, **values: Any) -> None:
    """Check an answer to a round, template.cu.j2 and space.yaml in the folder ANSWER.

    Or several, in folders `a`, `b`, ... of it. Each is read, compiled and verified as a round with
    KERNEL.cu does it, but on the CPU and on workloads of up to 64 MiB; with --invariant rows at
    several sizes, too. A line says each thing that was found. Exit code 2: a round would refuse
    one; 5: nothing was found, and nothing could be verified here.
    """
    from tempfile import TemporaryDirectory

    from tuner.app.locate import PROBLEMS
    from tuner.app.plan import new_plan
    from tuner.extensions.agents.files import answer_places
    from tuner.extensions.agents.gate import RefusedError

    kernel = values["source"]
    if kernel.suffix in PROBLEMS and kernel.with_suffix(".cu").exists():
        kernel = kernel.with_suffix(".cu")
    plan = new_plan(kernel, {**options.settings_of(context, values), "device": "host"})
    places, codes = answer_places(answer), set[int]()
    for place in places:
        if place != answer:
            click.echo(f"{place.name}:")
        with ExitStack() as stack:
            path = Path(stack.enter_context(TemporaryDirectory(prefix="tuner-gate-")))
            codes.add(_gate(plan, place, path / "answer", target, stack))
    for code in (RefusedError.exit_code, NOT_SHOWN):
        if code in codes:
            raise Exit(code)


def _gate(plan: Plan, answer: Path, place: Path, target: str | None, stack: ExitStack) -> int:
    """Check one answer, say what was found, and give the exit code."""
    from tuner.extensions.agents.gate import RefusedError
    from tuner.model.errors import ReplyError

    try:
        made, configs = _compile(plan, answer, place, target, stack)
        unverified = _verify(plan, made, configs, stack)
    except (RefusedError, ReplyError) as error:
        for problem in str(error).split("\n\n"):
            click.echo(f"refused: {problem}", err=True)
        return RefusedError.exit_code
    click.echo(f"not verified: {unverified}" if unverified else "passed")
    return NOT_SHOWN if unverified else 0


def _compile(
    plan: Plan, answer: Path, place: Path, target: str | None, stack: ExitStack
) -> tuple[Plan, list[Config]]:
    """Read and compile an answer for a GPU, and say what its default config uses there."""
    from tuner.app.check import NVIDIA_TARGET, UnavailableDevice, target_info
    from tuner.app.instruments import compiler_for
    from tuner.extensions.agents.files import check_plan_in, read_answer
    from tuner.extensions.agents.gate import compile_candidate, read_draft, require_as_wide
    from tuner.model.trial import Status, Trial
    from tuner.tuning.evaluator import evaluator_of
    from tuner.tuning.profiling import Profiler, Profiling

    check_plan_in(answer)
    made = read_draft(read_answer(answer), plan, place, "answer")
    device = UnavailableDevice(target_info(target or NVIDIA_TARGET))
    compiler = compiler_for(plan.spec, device, None, stack)
    evaluators = partial(evaluator_of, compiler=compiler, device=device)
    evaluator = evaluators(made)
    require_as_wide(made, evaluator, plan)
    configs = compile_candidate(made, evaluator, seed=1)
    click.echo(f"{len(configs)} configs compile for {device.info.architecture}")
    default = configs[0]
    workload = next(w for w in made.tuned if not made.space.violated(default, evaluator.names(w)))
    profiling = Profiling(Profiler(device.info, timed=False), evaluators, timed=False)
    profiled = profiling.of(made, Trial("answer", workload, default, Status.CORRECT))
    for figures in profiled.launches if profiled else ():
        click.echo(
            f"{figures.kernel} with {default} on {workload.key}: {figures.registers} registers, "
            f"{figures.shared_bytes} bytes of shared memory, {figures.resident} blocks of "
            f"{figures.threads} threads a multiprocessor ({figures.limiter})"
        )
    findings = profiled.findings if profiled else ()
    for finding in (one for one in findings if one.topic not in OF_WHAT_RUNS):
        click.echo(f"{finding.topic}: {finding.text}")
    return made, configs


def _verify(plan: Plan, made: Plan, configs: Sequence[Config], stack: ExitStack) -> str:
    """Verify on the CPU what is small enough; say why nothing could be, "" where it was."""
    from tuner.app.check import LARGEST_REFERENCE_BYTES
    from tuner.app.instruments import compiler_for
    from tuner.device.select import open_device
    from tuner.extensions.agents.gate import (
        find_varying_rows,
        verify_candidate,
        workloads_to_verify,
    )
    from tuner.model.errors import DeviceError
    from tuner.tuning.evaluator import evaluator_of

    wanted = workloads_to_verify(made)
    small = [w for w in wanted if made.spec.footprint_bytes(w) <= LARGEST_REFERENCE_BYTES]
    if not small:
        return "no tuned workload and no edge case takes 64 MiB or less"
    try:
        device = open_device("host", plan.spec, plan.config.operators, plan.config.workloads)
        stack.callback(device.close)
        compiler = compiler_for(plan.spec, device, None, stack)
    except DeviceError as error:
        return " ".join(str(error).split())
    click.echo(f"verifying on the CPU, on {', '.join(w.key for w in small)}")
    baseline = evaluator_of(plan, compiler, device)
    for workload in small:
        baseline.verify_baseline(workload)  # it decides what is accurate where that is measured
    asked = made, evaluator_of(made, compiler, device), configs, small
    for problem in (*verify_candidate(*asked), *find_varying_rows(*asked)):
        click.echo(f"a run would drop this: {problem}")
    left_out = [w.key for w in wanted if w not in small]
    if left_out:
        click.echo(f"not verified on {', '.join(left_out)}, of over 64 MiB")
    return ""
