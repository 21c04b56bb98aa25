"""Keeping bits: those of the default config, or of the class of invariant rows that costs least."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, log
from statistics import fmean

from tuner.device.base import BITS_DIFFER, DIFFERS
from tuner.dispatch.evidence import find_wrong_variants
from tuner.model.config import Config, SearchSpace
from tuner.model.errors import DeviceError, KernelError, SpaceError
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.trial import Status, Trial, fastest
from tuner.search.pool import Pool
from tuner.session.events import BitsKept
from tuner.tuning.device_queues import work_in_queues
from tuner.tuning.evaluator import Evaluator, refuse_model
from tuner.tuning.run import Run

_INVARIANT, _LEAVE_OUT = "`invariant`", "leave --keep-bits out"
# Classes of a problem that are measured at all its sizes before one is chosen, those in front; of
# each so many configs a size, and in the end of the chosen one.
CLASSES, CONFIGS, CHOSEN = 6, 2, 12

# Of one problem: the timed trials of each class at each size.
Classes = dict[str, dict[Workload, list[Trial]]]


def require_bits(spec: KernelSpec, space: SearchSpace) -> Config:
    """Return the default config, whose bits are to be kept; raise `InputError` for none."""
    if space.default is None:
        raise SpaceError(
            "--keep-bits keeps those of the default config, and the space has none",
            path=spec.path,
            remedy=f"write `default: {{NAME: VALUE, ...}}`, or {_LEAVE_OUT}",
        )
    varying = [argument.name for argument in spec.arguments if not argument.deterministic]
    if varying:
        raise SpaceError(
            f"--keep-bits: the bits of {', '.join(varying)} may differ from call to call "
            "(`deterministic: false`)",
            path=spec.path,
            remedy=f"require them to repeat, or {_LEAVE_OUT}",
        )
    return space.default


def keep_known_bits(run: Run) -> None:
    """Keep the default config's bits where that is asked for, else those chosen in a run before."""
    plan, session, bits = run.plan, run.session, run.candidates.kept.bits
    chosen, can_tell = session.kept_rows, run.device.capabilities & {"bits", "recording"}
    rows = plan.spec.invariant is not None
    if rows and not can_tell:
        raise _no_bits(run.evaluator, _INVARIANT, "")
    compares = "recording" in can_tell and (rows or plan.config.keep_bits)
    if compares and run.device.recording.has_bits_of_rows is (not rows):
        of = "rows" if rows else "whole outputs"
        raise _no_bits(run.evaluator, _INVARIANT if rows else "--keep-bits", f"bits of {of}")
    if not plan.config.keep_bits:
        bits.update({w: chosen[w.key] for w in plan.config.workloads if w.key in chosen})
        return
    bits.update(default_bits(run))
    if plan.spec.invariant and not chosen:
        session.record_event(BitsKept(0, {w.key: kept for w, kept in bits.items()}))


def default_bits(run: Run) -> dict[Workload, str]:
    """Digest what the default config makes on each workload, held-out ones too.

    What the session lacks is run, and kept where a search would try it as well; where memory ends
    the workload is left undecided. Raises `KernelError` where the default is not right, and
    `DeviceError` where the device can't tell.
    """
    plan, session, evaluator = run.plan, run.session, run.evaluator
    default = require_bits(plan.spec, plan.space)
    bits: dict[Workload, str] = {}

    def digest(workload: Workload) -> None:
        with run.skipped.unless_memory_ends(workload, plan.candidate):
            trial = session.trial(plan.candidate, workload, default)
            if trial is None:
                trial = evaluator.finish(evaluator.start(workload, default))
                if default in run.pools.get(workload, ()):
                    session.record(trial)
            bits[workload] = _bits_of(trial, plan.spec, evaluator)

    work_in_queues(run.device, (*plan.tuned, *plan.held_out), digest)
    return bits


def choose_bits(run: Run) -> None:
    """Keep, for each problem, the class of rows whose best configs cost least over its sizes.

    One that is known at more of them comes first. Raises `KernelError` for a problem of which no
    config has rows that are invariant, `DeviceError` where the device can't tell.
    """
    spec, kept = run.plan.spec, dict[str, str]()
    problems = group_classes(run.session.trials(run.plan.candidate), spec)
    for workload in run.plan.config.workloads:
        if classes := problems.get(spec.problem_of(workload)):
            mix = run.plan.config.mix
            costs = {b: (-len(s), cost_of(s, classes, spec, mix=mix)) for b, s in classes.items()}
            chosen = min(costs, key=costs.__getitem__)
            run.candidates.kept.bits[workload] = kept[workload.key] = chosen
    for workload in run.plan.tuned:
        if workload.key not in kept and workload not in run.skipped:
            _require_class(run, workload)
    run.session.record_event(BitsKept(0, kept))


def group_classes(trials: Iterable[Trial], spec: KernelSpec) -> dict[Workload, Classes]:
    """Group timed trials by the problem, their bits and the size, the fastest first."""
    trials, problems = list(trials), dict[Workload, Classes]()
    wrong = find_wrong_variants(trials, ())
    for trial in fastest(trials):
        if trial.variant not in wrong and (bits := trial.bits):
            classes = problems.setdefault(spec.problem_of(trial.workload), {})
            classes.setdefault(bits, {}).setdefault(trial.workload, []).append(trial)
    return problems


def cost_of(
    sizes: Mapping[Workload, Sequence[Trial]], classes: Classes, spec: KernelSpec, *, mix: bool
) -> float:
    """Take the mean, over the sizes of a class, of the logarithm of its best time over any's.

    Of a mix the logarithm of its time in all over that of any's.
    """

    def best_us(of: Mapping[Workload, Sequence[Trial]], workload: Workload) -> float:
        return (of[workload][0].time_us or inf) if workload in of else inf

    least_us = {w: min(best_us(of, w) for of in classes.values()) for w in sizes}
    ratios = [best_us(sizes, w) / us for w, us in least_us.items()]
    if mix:
        return log(fmean(ratios, [spec.weight_of(w) * us for w, us in least_us.items()]))
    return fmean(map(log, ratios), map(spec.weight_of, sizes))


def list_class_members(
    trials: Sequence[Trial],
    pools: Mapping[Workload, Pool],
    spec: KernelSpec,
    most: int,
    *,
    mix: bool = False,
) -> Iterator[tuple[Workload, Config]]:
    """Name configs of a class that are known at one size and untried at another.

    Of the classes that cost least so far, and of each so many of the fastest at every size. Where
    none of a class may run, as with tiles for few rows, what is nearest to them is named.
    """
    tried = {(trial.workload, trial.config) for trial in trials}
    problems = group_classes(trials, spec)
    for workload, pool in pools.items():
        classes = problems.get(spec.problem_of(workload), {})
        costs = {bits: cost_of(sizes, classes, spec, mix=mix) for bits, sizes in classes.items()}
        for bits in sorted(costs, key=costs.__getitem__)[:CLASSES]:
            fastest_first = classes[bits].values()
            members = dict.fromkeys(trial.config for of in fastest_first for trial in of[:most])
            left = dict.fromkeys(config for config in members if config in pool)
            if not left and workload not in classes[bits]:
                left = dict.fromkeys(near for member in members if (near := pool.nearest(member)))
            yield from ((workload, one) for one in left if (workload, one) not in tried)


def _require_class(run: Run, workload: Workload) -> None:
    """Say why no config has bits that could be kept, where that is why."""
    rows, trials = run.plan.spec.invariant, run.session.trials(run.plan.candidate, workload)
    assert rows is not None
    if right := next((trial for trial in trials if trial.status is Status.CORRECT), None):
        raise _no_bits(run.evaluator, _INVARIANT, f"bits of {right.config} on {workload}")
    # Of atomics bits may differ from call to call, which is wrong whatever is asked of rows.
    varying = [trial for trial in trials if BITS_DIFFER in trial.reason or DIFFERS in trial.reason]
    if varying:
        raise KernelError(
            f"`invariant: {{{rows.axis}: [{', '.join(rows.outputs)}]}}`: no config keeps it on "
            f"{workload}, of {len(varying)}; {varying[0].config}: {varying[0].reason}",
            path=run.plan.spec.path,
            line=rows.line,
            remedy="add up a row in an order that depends on nothing but its own size, without "
            "atomics, or leave `invariant` out",
        )


def _bits_of(trial: Trial, spec: KernelSpec, evaluator: Evaluator) -> str:
    right = trial.status is Status.CORRECT
    if right and trial.bits:
        return trial.bits
    if right or "recording" in evaluator.device.capabilities:
        what = "bits" if right else "measurement"
        missing = f"{what} of the default config ({trial.config}) on {trial.workload}"
        raise _no_bits(evaluator, "--keep-bits", missing)
    raise refuse_model(spec, trial)


def _no_bits(evaluator: Evaluator, asker: str, missing: str) -> DeviceError:
    leave_out = f"leave {asker} out"
    if "recording" in evaluator.device.capabilities:
        return DeviceError(
            f"holds no {missing}, which {asker} compares with others",
            path=evaluator.device.recording.path,
            remedy=f"make it anew with `tune record`, use a GPU, or {leave_out}",
        )
    return DeviceError(
        f"{asker}: {evaluator.device.info.name} says times, but no bits of outputs",
        remedy=f"use a GPU (--device cuda), or {leave_out}",
    )
