"""From a config to a trial: constraint, render, compile, limit, verify, time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tuner.analysis.static_features import features
from tuner.compiler.base import Compiler, CompileRequest, CompileResult
from tuner.device.base import (
    BITS_DIFFER,
    DIFFERS,
    TOO_FAST,
    CompileTarget,
    Device,
    Outcome,
    Program,
)
from tuner.device.group import as_group
from tuner.device.inputs import EXTREME
from tuner.model.config import Config, SearchSpace
from tuner.model.errors import InputError, KernelError, OutOfMemory, TooSlow, TunerError
from tuner.model.expressions import Value
from tuner.model.hardware import occupancy, refusal
from tuner.model.kernel import KernelSpec, Launch, Workload
from tuner.model.trial import (
    INITIAL,
    Correctness,
    Measurement,
    Occupancy,
    Resources,
    Stage,
    Status,
    Trial,
)
from tuner.process.tally import spent_on
from tuner.search.base import Features
from tuner.source import hide_host_code, read_source, source_text
from tuner.space.callables import baseline_text
from tuner.space.plan import Plan
from tuner.space.template import Rendered, Template, map_errors

BASELINE = Config(())
# What seconds go to (`tuner.process.tally`) where somebody waits for the compiler.
COMPILING = "compiling"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A template with its space, as the search tries it."""

    name: str
    space: SearchSpace
    template: Template


@dataclass(frozen=True, slots=True)
class Pending:
    """A trial on its way: decided already, or waiting for its compilation.

    `sizes` are the same config with other numbers of rows, where rows are to be invariant.
    """

    workload: Workload
    config: Config
    started_s: float
    decided: Trial | None = None
    rendered: Rendered | None = None
    launches: tuple[Launch, ...] = ()
    compilation: Future[CompileResult] | None = None
    sizes: tuple[Pending, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptBits:
    """Which bits a run keeps, and at which other sizes each config has to make the same ones.

    `bits` are by workload; `sizes` by the problem whose rows are invariant (`problem_of`).
    """

    bits: dict[Workload, str] = field(default_factory=dict)
    sizes: dict[Workload, tuple[Workload, ...]] = field(default_factory=dict)


@dataclass(eq=False)
class Evaluator:
    """Try configs of one candidate on one device; every failure is a trial with its reason."""

    spec: KernelSpec
    candidate: Candidate
    operators: Mapping[str, str]
    compiler: Compiler
    device: Device
    kept: KeptBits = field(default_factory=KeptBits)
    tells_bits: bool = False

    def __post_init__(self) -> None:
        self._target = CompileTarget(self.spec, dict(self.operators), self.device.info)
        self._unit = self.spec.language.unit
        # By workload: what a template's names are besides the config's.
        self._template_names: dict[Workload, Mapping[str, Value]] = {}
        # What the device said of a config's rows at sizes that are no trial's own.
        self._rows: dict[tuple[Workload, Config], Outcome] = {}

    def names(self, workload: Workload) -> Mapping[str, Value]:
        return self._target.names(workload)

    def answered(self, workload: Workload) -> Sequence[Config] | None:
        """List the configs that the device has answers for; None where it takes any."""
        if self.candidate.name != INITIAL or "recording" not in self.device.capabilities:
            return None
        return self.device.recording.configs_of(workload)

    def render(self, workload: Workload, config: Config) -> Rendered:
        if workload not in self._template_names:
            self._template_names[workload] = {**workload.values, **self._target.operators}
        names = {**self._template_names[workload], **dict(config.items_)}
        return self.candidate.template.render(names, self.candidate.space.derived)

    def start(self, workload: Workload, config: Config) -> Pending:
        """Check the constraints, render, and start compiling; returns at once."""
        pending, sizes = self._begin(workload, config), list[Pending]()
        for size in self.kept.sizes.get(self.spec.problem_of(workload), ()):
            if pending.decided is None and (size, config) not in self._rows and size != workload:
                with suppress(InputError):  # what does not render there serves nothing there
                    sizes.append(self._begin(size, config))
        return replace(pending, sizes=tuple(sizes))

    def _begin(self, workload: Workload, config: Config) -> Pending:
        started_s = time.perf_counter()
        names = {**self.names(workload), **dict(config.items_)}

        def refused(status: Status, reason: str) -> Pending:
            trial = Trial(self.candidate.name, workload, config, status, reason)
            return Pending(workload, config, started_s, trial)

        for constraint in self.candidate.space.constraints:
            if not constraint.evaluate(names):
                return refused(Status.CONSTRAINT, f"invalid: constraint `{constraint.text}`")
        if reason := self.spec.map_refusal(self.spec.launch, names):
            return refused(Status.RESOURCE_LIMIT, reason)
        launches = self.spec.candidate_launches(names)
        if not launches:
            return refused(Status.LAUNCH, "no launch's `when` is true")
        if reason := self.spec.scratch_refusal(names):
            return refused(Status.RESOURCE_LIMIT, reason)
        rendered = self.render(workload, config)
        compilation = self.compiler.submit(self._target.request(rendered.source, launches))
        return Pending(workload, config, started_s, None, rendered, launches, compilation)

    def finish(
        self, pending: Pending, *, incumbent_us: float | None = None, stage: Stage = "search"
    ) -> Trial:
        """Wait for the compilation, apply the limits, and let the device verify and time."""
        result = self._runnable(pending)
        if isinstance(result, Trial):
            return replace(result, stage=stage)
        workload = pending.workload
        resources: Resources | None
        resources, share = self._usage(result, pending.launches)
        outcome = self.device.run(
            self._program(pending, result),
            # What is slower than others may be the best of its class of bits.
            incumbent_us=None if self.spec.invariant else incumbent_us,
            full_verification=stage == "finals",
        )
        status, reason = outcome.status, outcome.reason
        if status is Status.CORRECT and self._impossible(workload, outcome.measurement):
            status, reason = Status.INCORRECT, TOO_FAST
        if "resources" in self.device.capabilities:
            # It is what compiles: before nobody knew.
            launch, resources = pending.launches[0], outcome.resources
            share = self._occupancy(resources, launch)
            if status is Status.CORRECT and (refused := self._refusal(resources, launch)):
                status, reason = Status.RESOURCE_LIMIT, refused
        if status is Status.CORRECT and self.tells_bits:
            verdict = outcome.correctness or Correctness(passed=True)
            if rows := self.spec.invariant:
                verdict = replace(verdict, bits=rows.class_of(verdict.bits, pending.config))
                outcome = replace(outcome, correctness=verdict)
            status, reason = self._judge_bits(pending, verdict)
        return self._trial(
            pending, replace(outcome, status=status, reason=reason), resources, share, stage
        )

    def _judge_bits(self, pending: Pending, verdict: Correctness) -> tuple[Status, str]:
        """Compare its bits with those at other sizes, and with those that are kept."""
        if pending.sizes and (group := as_group(self.device)):
            group.serve(group.home(pending.workload))
        for other in pending.sizes:
            made = self.ready(other)
            if isinstance(made, Program):
                with suppress(OutOfMemory):  # nothing is known of it there
                    self._rows[other.workload, other.config] = self.device.bits(made)
        for size in self.kept.sizes.get(self.spec.problem_of(pending.workload), ()):
            outcome = self._rows.get((size, pending.config))
            if outcome is not None and outcome.status is not Status.CORRECT:
                return outcome.status, f"on {size}: {outcome.reason}"
            if outcome and outcome.correctness and outcome.correctness.bits != verdict.digest:
                reason = f"a row {BITS_DIFFER} on {pending.workload} than on {size}"
                return Status.NOT_INVARIANT, reason
        if verdict.bits != self.kept.bits.get(pending.workload, verdict.bits):
            return Status.OTHER_BITS, other_bits(self.spec)
        return Status.CORRECT, ""

    def judge(self, pending: Pending, outcome: Outcome) -> Trial:
        """Make the finals' trial of a config that was verified, untimed."""
        result = self._runnable(pending)
        if isinstance(result, Trial):
            return replace(result, stage="finals")
        return self._trial(pending, outcome, *self._usage(result, pending.launches), "finals")

    def _trial(
        self,
        pending: Pending,
        outcome: Outcome,
        resources: Resources | None,
        share: Occupancy | None,
        stage: Stage,
    ) -> Trial:
        return Trial(
            candidate=self.candidate.name,
            workload=pending.workload,
            config=pending.config,
            status=outcome.status,
            reason=outcome.reason,
            resources=resources,
            occupancy=share,
            measurement=outcome.measurement,
            correctness=outcome.correctness,
            seconds=time.perf_counter() - pending.started_s,
            stage=stage,
        )

    def foresee(self, pending: Pending) -> Features | Trial:
        """Wait for the compilation; tell what is known before it runs, or why it can't."""
        result = self._runnable(pending)
        if isinstance(result, Trial):
            return result
        multiprocessors = self.device.info.multiprocessors
        launches = result.called or pending.launches
        return features(result, launches, self._target.limits, multiprocessors)

    def verify(self, pending: Pending) -> Outcome:
        """Verify with all checks, untimed."""
        made = self.ready(pending)
        return made if isinstance(made, Outcome) else self.device.verify(made)

    def ready(self, pending: Pending) -> Program | Outcome:
        """Wait for the compilation and apply the limits; what stands against it comes back."""
        result = self._runnable(pending)
        if isinstance(result, Trial):
            return Outcome(result.status, result.reason)
        return self._program(pending, result)

    def uses(self, pending: Pending) -> tuple[tuple[Resources, Occupancy | None], ...]:
        """Tell what each launch of a compiled config uses of the hardware.

        Of a Python kernel's call, that is the most of each, and the least occupancy.
        """
        result = self._compiled(pending)
        if isinstance(result, Trial):
            raise KernelError(f"{pending.config} does not compile: {result.reason}")
        return tuple(self._usage(result, [launch]) for launch in pending.launches)

    def _usage(
        self, result: CompileResult, launches: Sequence[Launch]
    ) -> tuple[Resources, Occupancy | None]:
        resources = result.resources
        own = resources[launches[0].kernel]
        if not result.called:
            return own, self._occupancy(own, launches[0])
        shares = [self._occupancy(resources[launch.kernel], launch) for launch in result.called]
        occupancies = [share for share in shares if share is not None]
        return own, min(occupancies, key=lambda share: share.share, default=None)

    def in_template(self, workload: Workload, config: Config, text: str) -> str:
        """Rewrite a tool's text about the rendered source to the lines of the template."""
        rendered = self.render(workload, config)
        return map_errors(text, rendered, self.candidate.template.path, unit=self._unit)

    def key(self, workload: Workload, config: Config) -> str:
        launches = self._launches(workload, config)
        return self._target.key(self.render(workload, config).source, workload, launches, config)

    def request(self, workload: Workload, config: Config) -> CompileRequest:
        launches = self._launches(workload, config)
        return self._target.request(self.render(workload, config).source, launches)

    def _launches(self, workload: Workload, config: Config) -> tuple[Launch, ...]:
        return self.spec.candidate_launches({**self.names(workload), **config})

    def baseline_request(self, workload: Workload) -> CompileRequest:
        launches = self.spec.baseline_launches(self.names(workload))
        return self._target.request(self._baseline_source(workload), launches)

    def compile_baselines(self, workloads: Iterable[Workload]) -> None:
        """Begin to compile what differs from workload to workload: baselines in Python.

        Their libraries keep it on the disk, where whoever measures them later finds it.
        """
        for workload in workloads if self.spec.is_callable else ():
            with suppress(TunerError):  # told when it is measured
                self.compiler.submit(self.baseline_request(workload))

    def import_ahead(self, workload: Workload) -> None:
        """Begin to import what kernels in Python need where they run, beside what compiles them."""
        if not (self.spec.is_callable and "callables" in self.device.capabilities):
            return
        with suppress(TunerError):  # told when it is measured
            source = self._baseline_source(workload)
            launches = self.spec.baseline_launches(self.names(workload))
            result = CompileResult(source.encode())
            self.device.import_ahead(self._target.program(source, workload, launches, result))

    def baseline_key(self, workload: Workload) -> str:
        launches = self.spec.baseline_launches(self.names(workload))
        return self._target.key(self._baseline_source(workload), workload, launches)

    def program(self, workload: Workload, config: Config) -> Program:
        """Compile a config that is known to work, for a comparison."""
        return self.program_of(self.start(workload, config))

    def program_of(self, pending: Pending) -> Program:
        """Wait for a config that is known to work; raise `KernelError` where it fails now."""
        result = self._compiled(pending)
        if isinstance(result, Trial):
            raise KernelError(f"{pending.config} no longer compiles: {result.reason}")
        return self._program(pending, result)

    def baseline_program(self, workload: Workload) -> Program:
        return self._baseline(workload)[0]

    def verify_baseline(self, workload: Workload, *, may_last: bool = False) -> None:
        """Raise `KernelError` where the baseline is wrong, or takes too long and may not."""
        if self.device.info.verifies:
            outcome = self.device.verify(self._baseline(workload)[0])
            if not (may_last and outcome.status is Status.TIMEOUT):
                self._require_right(workload, outcome)

    def takes(self, workload: Workload) -> bool:
        """Tell whether the baseline is right on a workload that nobody may have listed."""
        with suppress(KernelError, OutOfMemory):
            self.verify_baseline(workload)
            return True
        return False

    def is_measure(self, verdict: Correctness | None) -> bool:
        """Tell whether configs are judged by what a baseline's verdict has shown.

        A device knows it only where it has verified the baseline itself.
        """
        if verdict is None or not self.device.info.verifies:
            return False
        fitted = (kind.startswith(EXTREME) and kind != EXTREME for kind in verdict.input_kinds)
        return bool(verdict.accuracy) or any(fitted)

    def baseline(self, workload: Workload) -> Trial:
        """Verify the baseline in full and time it; raise `KernelError` where it is wrong."""
        started_s = time.perf_counter()
        resources: Resources | None
        program, resources, share = self._baseline(workload)
        outcome = self.device.run(program, full_verification=True)
        self._require_right(workload, outcome)
        if "resources" in self.device.capabilities:
            resources = outcome.resources
            share = self._occupancy(resources, program.launches[0])
        if outcome.status is Status.NOT_RECORDED:
            raise KernelError(
                f"the baseline has no time on {workload}: {outcome.reason}", path=self.spec.source
            )
        if self._impossible(workload, outcome.measurement):
            raise KernelError(
                f"the baseline is faster on {workload} than its `min_bytes` can be moved",
                path=self.spec.path,
                remedy="`min_bytes` is the fewest bytes that the operator must read and write",
            )
        return Trial(
            candidate="baseline",
            workload=workload,
            config=BASELINE,
            status=outcome.status,
            resources=resources,
            occupancy=share,
            measurement=outcome.measurement,
            correctness=outcome.correctness,
            seconds=time.perf_counter() - started_s,
        )

    def _require_right(self, workload: Workload, outcome: Outcome) -> None:
        if outcome.status is Status.INCORRECT:
            stated = [n for n, tolerance in self.spec.tolerances.items() if not tolerance.measured]
            wider = (
                f"write `tolerance: {{{stated[0]}: measured}}`" if stated else "state a wider one"
            )
            remedy = (
                f"one of the two is at fault: compare with {self.spec.reference}; if that is "
                f"right, the tolerance is too narrow: {wider} (docs/search-spaces.md); where "
                "float32 itself overflows on such inputs, let `inputs()` in the reference draw "
                "others (docs/trust.md)"
            )
            if BITS_DIFFER in outcome.reason or DIFFERS in outcome.reason:
                remedy = (
                    "where floats are added in any order, as by atomics, write `deterministic: "
                    "false` for this argument (docs/search-spaces.md); else it is a race"
                )
            raise KernelError(
                f"the baseline is wrong against its reference on {workload}: {outcome.reason}",
                path=self.spec.source,
                remedy=remedy,
            )
        if outcome.status is Status.NOT_RECORDED and not self.device.info.recorded:
            raise KernelError(
                f"the baseline does not run on {workload}: {outcome.reason}",
                path=self.spec.source,
                remedy="install what it imports where tune runs",
            )
        if outcome.status not in (Status.CORRECT, Status.NOT_RECORDED):
            said = f"the baseline does not run on {workload}: {outcome.status}: {outcome.reason}"
            if outcome.status is Status.RESOURCE_LIMIT:
                raise OutOfMemory(said, workload.key)
            if outcome.status is Status.TIMEOUT:
                raise TooSlow(said, path=self.spec.source, remedy="--workload takes a smaller one")
            raise KernelError(said, path=self.spec.source)

    def _runnable(self, pending: Pending) -> CompileResult | Trial:
        result = self._compiled(pending)
        if isinstance(result, Trial):
            return result
        for launch in result.called or pending.launches:
            resources = result.resources[launch.kernel]
            reason = self._refusal(resources, launch)
            if reason is not None:
                # Whose it is, the file that declares the limit does not say.
                reason = f"{launch.kernel}: {reason}" if result.called else reason
                first = result.resources[pending.launches[0].kernel]
                where = self.candidate.name, pending.workload, pending.config
                return Trial(*where, Status.RESOURCE_LIMIT, reason, first)
        return result

    def _baseline(self, workload: Workload) -> tuple[Program, Resources, Occupancy | None]:
        if refused := self.spec.map_refusal(self.spec.baseline, self.names(workload)):
            raise KernelError(f"the baseline on {workload}: {refused}", path=self.spec.path)
        launches = self.spec.baseline_launches(self.names(workload))
        if not launches:
            raise KernelError(
                f"no launch of the baseline has a true `when` on {workload}", path=self.spec.path
            )
        source = self._baseline_source(workload)
        with spent_on(COMPILING):
            result = self.compiler.submit(self._target.request(source, launches)).result()
        if not result.ok:
            raise KernelError(f"does not compile:\n{result.error}", path=self.spec.source)
        program = self._target.program(source, workload, launches, result)
        if self.tells_bits:
            program = replace(program, tell_bits=True)
        return program, *self._usage(result, launches)

    def _refusal(self, resources: Resources | None, launch: Launch) -> str | None:
        if resources is None:
            return None
        return refusal(self._target.limits, resources, launch, self.spec.limits)

    def _occupancy(self, resources: Resources | None, launch: Launch) -> Occupancy | None:
        return None if resources is None else occupancy(self._target.limits, resources, launch)

    def _baseline_source(self, workload: Workload) -> str:
        if self.spec.is_callable:
            return baseline_text(self.spec, {**workload.values, **self._target.operators})
        if not self.spec.language.is_read:
            return source_text(self.spec.source)
        return hide_host_code(read_source(self.spec.source))

    def _compiled(self, pending: Pending) -> CompileResult | Trial:
        if pending.decided is not None:
            return pending.decided
        assert pending.compilation is not None
        assert pending.rendered is not None
        with spent_on(COMPILING):
            result = pending.compilation.result()
        if result.ok:
            return result
        status = Status.TIMEOUT if result.timed_out else Status.COMPILE
        template = self.candidate.template
        reason = map_errors(result.error, pending.rendered, template.path, unit=self._unit)
        return Trial(self.candidate.name, pending.workload, pending.config, status, reason)

    def _program(self, pending: Pending, result: CompileResult) -> Program:
        assert pending.rendered is not None
        workload, config = pending.workload, pending.config
        if self.candidate.name != INITIAL:
            # What a recording knows by its config is the first template's.
            config = Config((("candidate", self.candidate.name), *config.items_))
        source = pending.rendered.source
        program = self._target.program(source, workload, pending.launches, result, config)
        return replace(program, tell_bits=True) if self.tells_bits else program

    def _impossible(self, workload: Workload, measurement: Measurement | None) -> bool:
        if measurement is None or self.spec.surroundings_of(workload) is not None:
            return False  # what the neighbour before has written is in the L2
        traffic, hot = self.spec.min_bytes.integer(workload.values), measurement.buffer_sets < 2
        return self.device.info.is_too_fast(measurement.median_us, traffic, hot=hot)


def other_bits(spec: KernelSpec) -> str:
    """Say whose bits a config lacks."""
    whose = "the class that was chosen" if spec.invariant else "the default config"
    return f"{BITS_DIFFER} than {whose}"


def refuse_model(spec: KernelSpec, trial: Trial) -> KernelError:
    """Make the error of a default config that is wrong, so that its bits are worth nothing."""
    return KernelError(
        f"--keep-bits: the default config ({trial.config}) is no model on {trial.workload}: "
        f"{trial.status}: {trial.reason}",
        path=spec.path,
        remedy="name a `default` that is right on every workload, or leave --keep-bits out",
    )


class Candidates:
    """Plans by the name of their candidate, in the order in which they came.

    What is put into `kept` holds for the evaluators of all.
    """

    def __init__(self, plan: Plan, compiler: Compiler, device: Device) -> None:
        self.kept = KeptBits()
        self.compiler, self.device = compiler, device
        self._plans: dict[str, Plan] = {}
        self._evaluators: dict[str, Evaluator] = {}
        self.add(plan)

    def add(self, plan: Plan) -> None:
        self._plans[plan.candidate] = plan
        self._evaluators[plan.candidate] = self.of(plan)

    def of(self, plan: Plan) -> Evaluator:
        return evaluator_of(plan, self.compiler, self.device, self.kept)

    def plan(self, name: str) -> Plan:
        return self._plans[name]

    def evaluator(self, name: str) -> Evaluator:
        return self._evaluators[name]

    @property
    def plans(self) -> Sequence[Plan]:
        return tuple(self._plans.values())


def evaluator_of(
    plan: Plan, compiler: Compiler, device: Device, kept: KeptBits | None = None
) -> Evaluator:
    candidate = Candidate(plan.candidate, plan.space, plan.template)
    # A recording answers whoever keeps bits later.
    keeps_bits = plan.config.keep_bits or plan.spec.invariant is not None
    tells_bits = keeps_bits or plan.config.surveyed is not None
    asked = plan.spec, candidate, plan.config.operators, compiler, device
    return Evaluator(*asked, kept or KeptBits(), tells_bits)
