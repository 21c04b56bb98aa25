"""`tune gate`: what the loop would say of an agent's answer, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    from tuner.model.kernel import Workload
    from tuner.space.plan import Plan
    from tuner.tuning.evaluator import Evaluator


# What these say holds for code that runs, which here nobody knows: it may be of a fallback.
OF_WHAT_RUNS = ("instruction_mix", "vector_width", "tail")
# Elements of the least vector: a kernel may have code for rows of as many alone.
VECTOR = 4
# Where all sizes are too large, how many smaller ones are taken, and how long they are looked for.
MOST_SMALLER, SMALLER_S = 2, 20.0
FEWEST = (1, 2)


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
    KERNEL.cu does it, but on the CPU: on each --workload of up to 64 MiB, or on the smallest and
    the largest that it has time for, and on edge cases; with --invariant rows at several sizes,
    too. A line says each thing that was found, and of each size whether it was verified. Exit code
    2: a round would refuse one; 5: nothing was found, and no size could be verified here.
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
    is_named = bool(values["workloads"])
    places, codes = answer_places(answer), set[int]()
    for place in places:
        if place != answer:
            click.echo(f"{place.name}:")
        with ExitStack() as stack:
            path = Path(stack.enter_context(TemporaryDirectory(prefix="tuner-gate-")))
            codes.add(_gate(plan, place, path / "answer", target, is_named, stack))
    for code in (RefusedError.exit_code, NOT_SHOWN):
        if code in codes:
            raise Exit(code)


def _gate(
    plan: Plan, answer: Path, place: Path, target: str | None, is_named: bool, stack: ExitStack
) -> int:
    """Check one answer, say what was found, and give the exit code."""
    from tuner.extensions.agents.gate import RefusedError
    from tuner.model.errors import ReplyError

    try:
        made, configs = _compile(plan, answer, place, target, stack)
        unverified = _verify(plan, made, configs, is_named, stack)
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
    from tuner.extensions.agents.profiling import Profiler, Profiling
    from tuner.model.trial import Status, Trial
    from tuner.tuning.evaluator import evaluator_of

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


def _verify(
    plan: Plan, made: Plan, configs: Sequence[Config], is_named: bool, stack: ExitStack
) -> str:
    """Verify on the CPU what is small enough, and say of each size whether it was.

    Say why nothing could be, "" where something was.
    """
    from tuner.app.check import LARGEST_REFERENCE_BYTES
    from tuner.app.instruments import compiler_for
    from tuner.device.select import open_device
    from tuner.extensions.agents.gate import find_varying_rows, verify_candidate
    from tuner.model.errors import DeviceError, TooSlow
    from tuner.tuning.evaluator import evaluator_of

    spec, most = made.spec, LARGEST_REFERENCE_BYTES
    left_out = dict(_find_left_out(made, is_named))
    small = [w for w in _sizes_of(made) if w not in left_out]
    try:
        device = open_device("host", plan.spec, plan.config.operators, plan.config.workloads)
        stack.callback(device.close)
        compiler = compiler_for(plan.spec, device, None, stack)
    except DeviceError as error:
        return " ".join(str(error).split())
    baseline = evaluator_of(plan, compiler, device)
    evaluator = evaluator_of(made, compiler, device)
    if not small:
        smallest = min(_sizes_of(made), key=spec.footprint_bytes)
        small = _find_smaller(made, baseline, configs[0])
        why = f"the smallest size, {smallest.key}, is {left_out[smallest]}"
        if not small:
            return f"{why}, and up to {most >> 20} MiB the kernel was right on no smaller one"
        click.echo(f"{why}: smaller ones that nobody listed are taken")
    click.echo(f"verifying on the CPU, on {', '.join(w.key for w in small)}")
    for workload in [*small]:
        try:
            baseline.verify_baseline(workload)  # decides what is accurate where that is measured
        except TooSlow as error:
            left_out[workload] = f"too slow on a CPU: {error.message}"
            small.remove(workload)
    if not small:
        _say_left_out(left_out)
        return "the CPU is too slow for all sizes; --workload takes smaller ones"
    asked = made, evaluator, configs, small
    verified = verify_candidate(*asked)
    for problem in (*verified.problems, *find_varying_rows(*asked)):
        click.echo(f"a run would drop this: {problem}")
    unserved = "no config that was tried is right there, or serves it"
    left_out |= {w: unserved for w in small if w not in verified.right}
    right = [w for w in small if w in verified.right]
    for workload in right:
        click.echo(f"verified on {workload.key}")
    _say_left_out(left_out)
    if not right:
        return "no config that was tried serves a size that the CPU has room for"
    if axes := _find_odd_axes(made, right):
        click.echo(
            f"all tuned sizes of {', '.join(axes)} are multiples of {VECTOR}, and none that was "
            "verified is: what such sizes alone reach, as code for vectors, has not run"
        )
    return ""


def _say_left_out(left_out: Mapping[Workload, str]) -> None:
    for workload, reason in left_out.items():
        click.echo(f"not verified on {workload.key}: {reason}")


def _sizes_of(made: Plan) -> list[Workload]:
    """Give all sizes that are looked at, in order: held-out ones where no tuned one fits."""
    from tuner.tuning.verification import LARGEST_HOST_BYTES

    def fits(workload: Workload) -> bool:
        return made.spec.footprint_bytes(workload) <= LARGEST_HOST_BYTES

    held_out = [] if any(map(fits, made.tuned)) else [*filter(fits, made.held_out)][:1]
    return list(dict.fromkeys((*made.tuned, *held_out, *made.spec.edge_cases)))


def _find_left_out(made: Plan, is_named: bool) -> Iterator[tuple[Workload, str]]:
    """Yield the sizes that are not verified, and why: what is named is, as far as there is room."""
    from tuner.app.check import LARGEST_REFERENCE_BYTES
    from tuner.extensions.agents.gate import workloads_to_verify
    from tuner.tuning.verification import LARGEST_HOST_BYTES

    chosen = {*workloads_to_verify(made), *(made.tuned if is_named else ())}
    for workload in _sizes_of(made):
        size = made.spec.footprint_bytes(workload)
        most = LARGEST_REFERENCE_BYTES if workload in chosen else LARGEST_HOST_BYTES
        if size > most:
            unnamed = "" if size > LARGEST_REFERENCE_BYTES else " unless --workload names it"
            yield workload, f"of {_megabytes(made, workload)}, over {most >> 20} MiB{unnamed}"
        elif workload in made.tuned and workload not in chosen:
            yield workload, "the smallest and the largest stand for it unless --workload names it"


def _find_smaller(made: Plan, baseline: Evaluator, default: Config) -> list[Workload]:
    """Find sizes that the file does not list, on which the user's kernel is right."""
    import time
    from itertools import islice, takewhile

    from tuner.app.check import LARGEST_REFERENCE_BYTES
    from tuner.device.sizes import LEVELS, smaller_workloads
    from tuner.model.kernel import Workload

    def serves(sizes: Mapping[str, int]) -> bool:
        return made.space.violated(default, baseline.names(Workload.of(sizes))) is None

    ends_s = time.monotonic() + SMALLER_S
    most = LARGEST_REFERENCE_BYTES
    tried = smaller_workloads(made.spec, serves, (*FEWEST, *LEVELS), most)
    in_time = takewhile(lambda _: time.monotonic() < ends_s, tried)
    return list(islice(filter(baseline.takes, in_time), MOST_SMALLER))


def _find_odd_axes(made: Plan, right: Sequence[Workload]) -> list[str]:
    """Find the axes of rows that vectors divide in all tuned sizes, and in none that is right."""
    shapes = [a.shape for a in made.spec.arguments if len(a.shape) > 1]
    shapes = shapes or [a.shape for a in made.spec.arguments if a.shape]
    axes = dict.fromkeys(name for shape in shapes for name in sorted(shape[-1].names))
    return [
        axis
        for axis in axes
        if all(w.values[axis] % VECTOR == 0 for w in made.tuned)
        and all(w.values[axis] % VECTOR for w in right)
    ]


def _megabytes(made: Plan, workload: Workload) -> str:
    return f"{made.spec.footprint_bytes(workload) / 1e6:.1f} MB"
