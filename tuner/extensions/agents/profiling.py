"""Profile what a search found, as deep as the device permits, and keep it in the session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial
from math import prod

from tuner.analysis.base import Degree, MachineCode, Profile, ProfileSubject
from tuner.analysis.diagnosis import diagnose
from tuner.analysis.metrics import DURATION, counters_for, metrics_of
from tuner.analysis.sass import codes, disassemble, hot_lines
from tuner.app.check import NVIDIA_TARGET, UnavailableDevice, target_info
from tuner.compiler.base import Compiler
from tuner.device.base import Counters, Device, DeviceInfo, LaunchCounts, Outcome
from tuner.device.select import open_compiler
from tuner.model.hardware import is_amd
from tuner.model.kernel import Workload
from tuner.model.languages import CUDA
from tuner.model.trial import Trial
from tuner.session.events import LaunchFigures, Profiled
from tuner.session.rounds import profiles
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Evaluator, evaluator_of
from tuner.tuning.machine_code import COMPILE_OPTIONS

# A config is profiled on one workload after another, with the same code.
_listing = lru_cache(maxsize=4)(disassemble)


class Profiler:
    """Learn why configs take the time they take. Close it, and with it its `counters`, when done.

    `counters` are a live GPU's: they give what it permits to read. `timed` says that the times of
    the subjects were measured on that device.
    """

    def __init__(
        self, device: DeviceInfo, counters: Counters | None = None, *, timed: bool = True
    ) -> None:
        self.device, self._counters = device, counters
        self._timed = timed and not device.on_cpu

    @property
    def degree(self) -> Degree:
        if not self._timed:
            return Degree.STATIC
        counts = self._counters is not None and not self._counters.refusal()
        return Degree.COUNTERS if counts else Degree.TIMING

    def profile(self, subject: ProfileSubject) -> Profile:
        """Profile one subject; what cannot be had is left empty, never guessed."""
        timing = Degree.TIMING if self._timed else Degree.STATIC
        found, program = Profile(subject, self.device, timing), subject.program
        if self._counters is None or not self._timed:
            return replace(found, codes=self._codes(subject, ()))
        with ThreadPoolExecutor(1) as pool:  # the disassembler takes its half a second meanwhile
            pool.submit(_listing, program.cubin)
            counted = self._counters.count(program, counters_for(self.device.compute_capability))
        found = replace(found, codes=self._codes(subject, counted.launches))
        if not counted.launches:
            return replace(found, reason=counted.reason)
        durations = [launch.values.get(DURATION, 0.0) for launch in counted.launches]
        main = durations.index(max(durations))
        longest = counted.launches[main]
        symbol = program.lowered.get(longest.kernel, "")
        if len(subject.uses) == len(durations):  # a Python kernel's call makes any number of them
            resources, share = subject.uses[main]
            subject = replace(subject, main=main, resources=resources, occupancy=share)
        return replace(
            found,
            subject=subject,
            degree=Degree.COUNTERS,
            counters=longest.values,
            launch_counters=tuple(launch.values for launch in counted.launches),
            hot_lines=hot_lines(_listing(program.cubin), symbol, longest.samples, subject.lines),
        )

    def _codes(
        self, subject: ProfileSubject, counted: Sequence[LaunchCounts]
    ) -> tuple[MachineCode, ...]:
        program = subject.program
        names = dict.fromkeys(launch.kernel for launch in program.launches)
        known = not is_amd(self.device.architecture)  # the disassembler is NVIDIA's
        if not known or not names.keys() <= program.lowered.keys():
            return ()
        executed: dict[str, Counter[int]] = {}
        for launch in counted:
            executed.setdefault(launch.kernel, Counter()).update(launch.executed)
        symbols = {name: program.lowered[name] for name in names}
        return codes(_listing(program.cubin), symbols, subject.lines, executed)

    def close(self) -> None:
        if self._counters is not None:
            self._counters.close()


class Profiling:
    """Profile trials of any candidate; `timed`: their times are of the hardware profiled for."""

    def __init__(
        self, profiler: Profiler, evaluator_of: Callable[[Plan], Evaluator], *, timed: bool
    ) -> None:
        self._profiler, self.evaluator_of, self._timed = profiler, evaluator_of, timed

    def degree_in(self, session: Session) -> Degree:
        """Tell how deep profiles go; asking the tool takes seconds, a session's may say it."""
        counted = any(profile.degree is Degree.COUNTERS for profile in profiles(session))
        return Degree.COUNTERS if counted else self._profiler.degree

    def of(self, plan: Plan, trial: Trial, number: int = 0) -> Profiled | None:
        """Profile a correct trial of `plan`'s candidate; None where it is not compiled here."""
        if self._profiler.device.evaluator:
            return None
        spec = plan.spec
        if spec.is_callable and not self._timed:
            return None
        if spec.language is CUDA:
            spec = replace(spec, compile_options=(*spec.compile_options, *COMPILE_OPTIONS))
        evaluator = self.evaluator_of(replace(plan, spec=spec))
        workload = trial.workload
        pending = evaluator.start(workload, trial.config)
        program = evaluator.ready(pending)
        if isinstance(program, Outcome):
            return None
        uses = evaluator.uses(pending)
        resources, share = uses[0]
        around = spec.surroundings_of(workload)
        subject = ProfileSubject(
            program=program,
            lines=evaluator.render(workload, trial.config).lines,
            resources=resources,
            occupancy=share,
            time_us=trial.time_us if self._timed else None,
            traffic_bytes=spec.min_bytes.integer(workload.values),
            operations=spec.operations.integer(workload.values) if spec.operations else None,
            peak=spec.peak,
            surroundings=around.name if around else "",
            uses=uses,
        )
        profile = self._profiler.profile(subject)
        kind, findings = diagnose(profile)
        return Profiled(
            round=number,
            candidate=trial.candidate,
            workload=workload.key,
            config=dict(trial.config),
            degree=profile.degree,
            kind=kind,
            metrics=metrics_of(profile),
            findings=findings,
            reason=profile.reason,
            launches=tuple(_describe_launches(profile)),
        )

    def keep(self, plan: Plan, session: Session, number: int, trials: Sequence[Trial]) -> None:
        """Profile trials and note what came of it in a round, unless that is noted already."""
        known = {(profile.candidate, profile.workload) for profile in profiles(session)}
        for trial in trials:
            new = (trial.candidate, trial.workload.key) not in known
            if new and (profiled := self.of(plan, trial, number)) is not None:
                session.record_event(profiled)


def profiling_for(plan: Plan, device: Device, compiler: Compiler, stack: ExitStack) -> Profiling:
    """Open the profiler that goes deepest here."""
    profiled: Device = device
    if device.info.on_cpu:
        # On a CPU nothing can be said of a GPU's time, but all of the GPU's code.
        architecture = device.info.architecture
        target = target_info(architecture if is_amd(architecture) else NVIDIA_TARGET)
        profiled = UnavailableDevice(target)
        if not plan.spec.is_callable:  # of Python nothing is machine code before it runs
            compiler = open_compiler(None, architecture=target.architecture)
            stack.callback(compiler.close)
    timed = not device.info.on_cpu
    counters = device.counters() if "counters" in device.capabilities else None
    profiler = Profiler(profiled.info, counters, timed=timed)
    stack.callback(profiler.close)
    evaluators = partial(evaluator_of, compiler=compiler, device=profiled)
    return Profiling(profiler, evaluators, timed=timed)


def _describe_launches(profile: Profile) -> Iterator[LaunchFigures]:
    program = profile.subject.program
    counted = profile.launch_counters
    if len(counted) != len(program.launches):
        counted = ({},) * len(program.launches)
    for launch, (resources, held), counters in zip(
        program.launches, profile.subject.uses, counted, strict=True
    ):
        duration_ns = counters.get(DURATION)
        yield LaunchFigures(
            kernel=launch.kernel,
            blocks=prod(launch.grid),
            threads=launch.threads,
            registers=resources.registers,
            shared_bytes=resources.static_shared_bytes + launch.shared_bytes,
            resident=held.blocks if held else None,
            limiter=held.limiter if held else "",
            counted_us=None if duration_ns is None else duration_ns / 1e3,
        )


def worth_profiling(session: Session, plan: Plan, best: Mapping[Workload, Trial]) -> list[Trial]:
    """Choose the best trials of the heaviest workload and of the one that gained least."""
    baselines = session.baselines()
    times = {w: t.time_us for w, t in best.items() if t.time_us is not None}
    if not times:
        return []
    heaviest = max(times, key=lambda workload: plan.spec.min_bytes.integer(workload.values))
    slowest = min(times, key=lambda w: baselines[w].measurement.median_us / times[w])
    return [best[workload] for workload in dict.fromkeys((heaviest, slowest))]
