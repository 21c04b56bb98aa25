"""Drafts under trial: rendered, compiled, verified, timed, profiled and searched."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.analysis.base import METRICS, MachineCode
from tuner.analysis.sass import codes, disassemble
from tuner.device.base import DeviceInfo, Outcome
from tuner.extensions.agents.base import AgentAnswer
from tuner.extensions.agents.gate import find_mismatch, quote_places, read_draft
from tuner.extensions.agents.profiling import Profiling
from tuner.extensions.agents.tools.arguments import (
    ChoiceArguments,
    DraftArguments,
    ToolLimits,
    WorkloadArguments,
    show_value,
)
from tuner.model.config import Config, Parameter, format_value
from tuner.model.errors import InputError, SessionError, SpaceError
from tuner.model.expressions import Value
from tuner.model.hardware import occupancy
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import INITIAL, Measurement, Resources, Status, Trial, fastest
from tuner.search.factory import make_searcher
from tuner.search.pool import Pool, valid_configs
from tuner.session.session import Session
from tuner.space.load import workload_from_text
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Candidates, Evaluator
from tuner.tuning.executor import DEPTH, PrecompilingSearcher, TrialExecutor
from tuner.tuning.run import no_valid_config

DRAFT = "draft"
_PREFIX = "tool-"


@dataclass(frozen=True, slots=True)
class CandidateDraft:
    """A candidate, or a draft that may become one."""

    plan: Plan
    evaluator: Evaluator

    @property
    def name(self) -> str:
        return "the draft" if self.plan.candidate == DRAFT else f"`{self.plan.candidate}`"


@dataclass(frozen=True, slots=True)
class DraftConfig:
    draft: CandidateDraft
    workload: Workload
    config: Config

    def __str__(self) -> str:
        return f"{self.draft.name}, {self.config or 'no parameters'}, on {self.workload}"


class Drafts:
    """Make drafts of one round; their files are kept under its `folder`, one folder a call.

    Those are as deep as the folders of answers, for the paths in a candidate's space start there.
    `base` is the candidate that stands for those not named. Every mistake is an `InputError` or a
    `RefusedError`, and a folder that cannot be written a `SessionError`.
    """

    def __init__(
        self,
        plan: Plan,
        session: Session,
        candidates: Candidates,
        base: str | None,
        folder: Path,
        limits: ToolLimits,
    ) -> None:
        self._plan, self._session, self._candidates = plan, session, candidates
        self._base, self._limits = base or INITIAL, limits
        self._folder = folder

    def last_number(self) -> int:
        """Return the number of the last call that an interrupted run made."""
        numbers = (path.name.removeprefix(_PREFIX) for path in self._folder.glob(f"{_PREFIX}*"))
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def folder_of(self, number: int) -> Path:
        return self._folder / f"{_PREFIX}{number}"

    def text_of(self, candidate: str, what: str) -> str:
        """Return the `template` or the `space` of a candidate, "" being the base."""
        name = candidate or self._base
        records = {record.name: record for record in self._session.candidates()}
        if name not in records:
            raise _unknown_candidate(name, records)
        return records[name].template_text if what == "template" else records[name].space_text

    def draft(self, given: DraftArguments, number: int) -> CandidateDraft:
        """Take a candidate as it is, or check and write the draft of the `number`-th call."""
        name, limits = given.candidate or self._base, self._limits
        plans = {plan.candidate: plan for plan in self._candidates.plans}
        if name not in plans:
            raise _unknown_candidate(name, plans)
        if not (given.template or given.space):
            return CandidateDraft(plans[name], self._candidates.evaluator(name))
        template = given.template or self.text_of(name, "template")
        space = given.space or self.text_of(name, "space")
        for what, text, most in (
            ("template", template, limits.template_characters),
            ("space", space, limits.space_characters),
        ):
            if len(text) > most:
                raise InputError(f"the {what} has {len(text)} characters, over {most}")
        folder = self.folder_of(number)
        try:
            plan = read_draft(AgentAnswer(template, space), self._plan, folder, DRAFT)
        except OSError as error:
            raise SessionError(
                f"cannot write a draft: {error.strerror}",
                path=folder,
                remedy="once the cause is gone, continue with "
                f"`--resume {self._session.directory}`",
            ) from error
        return CandidateDraft(plan, self._candidates.of(plan))

    def choice(self, given: ChoiceArguments, number: int, *, timed: bool = False) -> DraftConfig:
        """Choose a config and a workload of a draft; one that is `timed` is a tuned one."""
        draft, workload = self.draft(given, number), self.workload(given, timed=timed)
        space = draft.plan.space
        unknown = [name for name in given.config if name not in space.names]
        if unknown:
            remedy = f"parameters: {', '.join(space.names)}"
            raise SpaceError(f"no parameter is named {unknown[0]!r}", remedy=remedy)
        default: Mapping[str, Value] = space.default or {}
        if not default and len(given.config) < len(space.names):
            pool = valid_configs(space, draft.evaluator.names(workload))
            if not len(pool):
                raise SpaceError(
                    f"no config is valid on {workload}", remedy="loosen the constraints, or `prune`"
                )
            default = pool[0]
        stated = {
            p.name: _value(p, given.config[p.name])
            for p in space.parameters
            if p.name in given.config
        }
        names = space.names
        config = Config.of((n, stated[n] if n in stated else default[n]) for n in names)
        return DraftConfig(draft, workload, config)

    def workload(self, given: WorkloadArguments, *, timed: bool) -> Workload:
        """Read a workload; those held out are no business of the tuning."""
        plan = self._plan
        if not given.workload:
            return min(plan.tuned, key=plan.spec.footprint_bytes)
        workload = workload_from_text(plan.spec, given.workload)
        if timed and workload not in plan.tuned:
            tuned = "; ".join(one.key for one in plan.tuned)
            raise InputError(f"{workload.key} is not tuned", remedy=f"tuned workloads: {tuned}")
        workloads = (*plan.config.workloads, *plan.spec.edge_cases)
        largest = max(workloads, key=plan.spec.footprint_bytes)
        size, most = plan.spec.footprint_bytes(workload), plan.spec.footprint_bytes(largest)
        if workload not in workloads and size > most:
            raise InputError(
                f"{workload.key} takes {size} bytes, over the {most} of {largest.key}",
                remedy="no workload may be larger than the largest that the user named",
            )
        return workload


def require_arguments(choice: DraftConfig) -> None:
    """Raise `KernelError` where a kernel that is launched does not take the user's arguments."""
    draft = choice.draft
    mismatch = find_mismatch(draft.plan, draft.evaluator, choice.workload, choice.config)
    if mismatch is not None:
        raise mismatch


def in_words(text: str, plan: Plan) -> str:
    """Take the folders of a candidate's files out of a message."""
    for path in (plan.template.path, plan.spec.path, plan.spec.source):
        # The resolved one first: a relative folder is the end of it.
        for folder in dict.fromkeys((path.resolve().parent, path.parent)):
            text = text.replace(f"{folder}/", "")
    return text


def _value(parameter: Parameter, given: Value) -> Value:
    for value in parameter.values:
        # To Python `true` and 1 are equal.
        if value == given and isinstance(value, bool) == isinstance(given, bool):
            return value
    raise SpaceError(
        f"{parameter.name} cannot be {show_value(given)}",
        remedy=f"values: {', '.join(map(format_value, parameter.values))}",
    )


def _unknown_candidate(name: str, known: Mapping[str, object]) -> InputError:
    message = f"there is no candidate {name[:80]!r}"
    return InputError(message, remedy=f"candidates: {', '.join(known)}")


# Classes of instructions; what is rarer says little.
MOST_CLASSES = 12


def lines_of(text: str, first_line: int, last_line: int | None) -> str:
    # As compilers count them; `splitlines` also ends one at a form feed.
    lines = text.removesuffix("\n").split("\n")
    last = min(last_line or len(lines), len(lines))
    if first_line > last:
        return f"[no line from {first_line} to {last_line or 'the last'}: there are {len(lines)}]"
    shown = [f"{number:5}| {lines[number - 1]}" for number in range(first_line, last + 1)]
    if len(shown) < len(lines):
        shown.append(f"[lines {first_line} to {last} of {len(lines)}]")
    return "\n".join(shown)


def show_compilation(
    choice: DraftConfig, reporting: Callable[[Plan], Evaluator], info: DeviceInfo
) -> str:
    """Compile a config and write what the compiler and the machine code say of each kernel.

    `reporting` makes the evaluator whose compiler is asked, for the hardware of `info`.
    """
    require_arguments(choice)
    plan = choice.draft.plan
    asked = replace(choice, draft=CandidateDraft(plan, reporting(plan)))
    pending = asked.draft.evaluator.start(choice.workload, choice.config)
    made = asked.draft.evaluator.ready(pending)
    if isinstance(made, Outcome) and made.status is not Status.RESOURCE_LIMIT:
        return f"{choice}: {failure(choice, made.status, made.reason)}"
    assert pending.compilation is not None
    result = pending.compilation.result()
    verdict = f"over a limit: {made.reason}" if isinstance(made, Outcome) else "within all limits"
    on_cpu = any(resource.registers is None for resource in result.resources.values())
    target = "a CPU" if on_cpu else info.architecture
    parts = [f"{choice}, compiled for {target}: {verdict}"]
    for launch in dict.fromkeys(result.called or pending.launches):
        resources = result.resources[launch.kernel]
        grid, block = ("x".join(map(str, size)) for size in (launch.grid, launch.block))
        shared = f"{resources.static_shared_bytes} static and {launch.shared_bytes} dynamic"
        parts.append(f"kernel {launch.kernel}, grid {grid}, block {block}")
        parts.append(f"- shared memory: {shared} bytes a block")
        parts += _resources(resources, launch, info)
    symbols = {launch.kernel: result.lowered[launch.kernel] for launch in pending.launches}
    parts += map(_code, codes(disassemble(result.cubin), symbols, ()))
    return "\n".join(parts)


def failure(choice: DraftConfig, status: Status, reason: str) -> str:
    plan = choice.draft.plan
    return quote_places(f"{status}: {in_words(reason, plan)}", plan.template)


def _resources(resources: Resources, launch: Launch, info: DeviceInfo) -> Iterator[str]:
    if resources.registers is None:
        yield "- registers and occupancy are not known for a CPU"
        return
    spills = (
        f"spills {resources.spill_store_bytes} bytes of stores and "
        f"{resources.spill_load_bytes} of loads a thread"
        if resources.spill_bytes
        else "no spills"
    )
    yield f"- registers: {resources.registers} a thread, {spills}, stack {resources.stack_bytes} B"
    if resources.serialized_wgmma:
        yield f"- wgmma is serialized: {resources.serialized_wgmma}"
    share = occupancy(info.limits, resources, launch)
    assert share is not None
    yield (
        f"- occupancy: {share.share:.0%}, {share.blocks} blocks a multiprocessor, limited by "
        f"{share.limiter}"
    )


def _code(code: MachineCode) -> str:
    parts = [
        f"machine code of {code.kernel}: {code.instructions} instructions",
        f"- all: {_mix(code.mix)}",
    ]
    if code.loop_mix:
        parts.append(f"- in the innermost loops: {_mix(code.loop_mix)}")
    for what, bits in (("loads", code.load_bits), ("stores", code.store_bits)):
        widths = ", ".join(f"{count} of {width} bits" for width, count in sorted(bits.items()))
        parts.append(f"- global {what}: {widths or 'none'}")
    return "\n".join(parts)


def _mix(mix: Mapping[str, int]) -> str:
    ranked = Counter(mix).most_common()
    shown = [f"{name} {count}" for name, count in ranked[:MOST_CLASSES]]
    rest = sum(count for _, count in ranked[MOST_CLASSES:])
    return ", ".join(shown + ([f"others {rest}"] if rest else []))


# Configs that an answer lists.
BEST = 5
_RUN = frozenset({Status.LAUNCH, Status.TIMEOUT, Status.INCORRECT})


def show_verdict(choice: DraftConfig) -> str:
    require_arguments(choice)
    evaluator = choice.draft.evaluator
    outcome = evaluator.verify(evaluator.start(choice.workload, choice.config))
    if outcome.status is not Status.CORRECT:
        return f"{choice}: {_why(choice, outcome.status, outcome.reason)}"
    verdict = outcome.correctness
    if verdict is None or not verdict.input_kinds:
        return f"{choice}: correct"
    errors = ", ".join(f"{name} {error:.3g}" for name, error in verdict.errors)
    text = f"{choice}: correct with the inputs {', '.join(verdict.input_kinds)}"
    return f"{text}\nlargest errors, as shares of what is tolerated: {errors}" if errors else text


def show_measurement(
    choice: DraftConfig, baseline_us: Callable[[Workload], float], info: DeviceInfo
) -> str:
    trial = _trial(choice)
    if trial.time_us is None or trial.measurement is None:
        return f"{choice}: {_why(choice, trial.status, trial.reason)}"
    baseline = baseline_us(choice.workload)
    text = (
        f"{choice}: {trial.time_us:.4g} us; the baseline {baseline:.4g} us: "
        f"{baseline / trial.time_us:.3g}x\n{_describe_measurement(trial.measurement, info)}"
    )
    draft = choice.draft
    broken = draft.plan.space.left_out(choice.config, draft.evaluator.names(choice.workload))
    return (
        f"{text}\nno search tries it; left out as slow: prune `{broken.text}`" if broken else text
    )


def show_profile(choice: DraftConfig, profiling: Profiling, info: DeviceInfo) -> str:
    trial = _trial(choice)
    if trial.status is not Status.CORRECT:
        return f"{choice}: not profiled: {_why(choice, trial.status, trial.reason)}"
    profiled = profiling.of(choice.draft.plan, trial)
    if profiled is None and choice.draft.plan.spec.is_callable:
        return f"{choice}: not profiled: of a Python kernel only a GPU tells anything"
    if profiled is None:
        return f"{choice}: not profiled: it does not compile for {info.architecture}"
    lines = [f"{choice}: bound by {profiled.kind}; from {profiled.degree}"]
    for name, value in profiled.metrics.items():
        unit, meaning = METRICS[name]
        lines.append(f"- {name}: {value:.4g}{' ' + unit if unit else ''} ({meaning})")
    lines.append("findings:" if profiled.findings else "no findings")
    for finding in profiled.findings:
        place = f" [line {finding.line} of the template]" if finding.line else ""
        lines.append(f"- {finding.text} {finding.advice}{place}")
    return "\n".join(lines)


def search(
    draft: CandidateDraft,
    workload: Workload,
    searcher: str,
    seed: int,
    most: int,
    deadline_s: float,
    trials: list[Trial],
) -> Pool:
    """Search a draft on one workload and add what was tried to `trials`; nothing is recorded.

    Up to `most` configs of the pool that is returned are tried; none is begun after the deadline.
    """
    space, evaluator = draft.plan.space, draft.evaluator
    pool = valid_configs(space, evaluator.names(workload))
    if not len(pool):
        raise no_valid_config(draft.plan.spec, space, workload, pool)
    default = space.default
    chooser = make_searcher(
        searcher,
        pool,
        space,
        seed=seed,
        budget=len(pool),
        seeds=(default,) if default is not None and default in pool else (),
        axes=workload.values,
    )
    pipeline = TrialExecutor(evaluator, adaptive=False)
    proposer = PrecompilingSearcher(chooser, evaluator, workload)
    asked = 0
    try:
        while True:
            while asked < most and len(pipeline) < DEPTH and time.monotonic() < deadline_s:
                pending = proposer.next()
                if pending is None:
                    break
                if not asked:
                    require_arguments(DraftConfig(draft, workload, pending.config))
                pipeline.begin(pending)
                asked += 1
            trials += proposer.take_refused()
            if not len(pipeline):
                return pool
            trial = pipeline.take()
            proposer.tell(trial)
            trials.append(trial)
    finally:
        pipeline.close()
        proposer.close()


def show_search(
    draft: CandidateDraft,
    workload: Workload,
    pool: Pool,
    trials: Sequence[Trial],
    baseline_us: Callable[[Workload], float],
    info: DeviceInfo,
) -> str:
    timed = fastest(trials)
    valid = f"{'' if pool.size_is_exact else 'about '}{pool.estimated_size}"
    lines = [
        f"{draft.name} on {workload}: {len(trials)} of {valid} valid configs tried, "
        f"{len(timed)} correct"
    ]
    if timed:
        baseline = baseline_us(workload)
        lines.append(f"the baseline takes {baseline:.4g} us; the best:")
        for trial in timed[:BEST]:
            assert trial.time_us is not None
            ratio = "" if info.on_cpu else f", {baseline / trial.time_us:.3g}x"
            lines.append(f"- {trial.time_us:.4g} us{ratio}: {trial.config}")
        measurement = timed[0].measurement
        assert measurement is not None
        lines.append(_describe_measurement(measurement, info))
    failed = [trial for trial in trials if trial.status is not Status.CORRECT]
    for status, count in Counter(trial.status for trial in failed).items():
        first = next(trial for trial in failed if trial.status is status)
        lines.append(f"failed, {count}: the first with {first.config}:")
        lines.append(_why(DraftConfig(draft, workload, first.config), status, first.reason))
    return "\n".join(lines)


def _trial(choice: DraftConfig) -> Trial:
    require_arguments(choice)
    evaluator = choice.draft.evaluator
    return evaluator.finish(evaluator.start(choice.workload, choice.config))


def _why(choice: DraftConfig, status: Status, reason: str) -> str:
    """Word a failure; what ran names lines of the rendered source."""
    if status in _RUN:
        reason = choice.draft.evaluator.in_template(choice.workload, choice.config, reason)
    return failure(choice, status, reason)


def _describe_measurement(measurement: Measurement, info: DeviceInfo) -> str:
    times = measurement.times_us
    text = (
        f"(median of {len(times)} times of {measurement.calls_per_replay} calls each, "
        f"{min(times):.4g} to {max(times):.4g} us, over {measurement.buffer_sets} sets of buffers; "
        f"{'verified first' if info.verifies else 'NOT VERIFIED'}"
    )
    if measurement.stopped_early:
        text += "; ended early, for it was clearly slower"
    if info.on_cpu:
        return f"{text})\nThis is the time of a CPU: it says nothing of a GPU's."
    return f"{text}; on {info.name})"
