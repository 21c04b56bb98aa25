"""Everything a report shows, as plain values, and how it is read from a session."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.analysis.roofline import peak_gflops
from tuner.compiler.includes import reachable_files
from tuner.device.inputs import EXTREME, LEFT_OUT, split_kind
from tuner.model.config import Config
from tuner.model.errors import ExpressionError, InputError, SessionError, TunerError
from tuner.model.expressions import Expression
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.settings import Objective
from tuner.model.statistics import average_speedup
from tuner.model.trial import (
    INITIAL,
    TUNE,
    Accuracy,
    Check,
    Comparison,
    Energy,
    PeerTrial,
    Resources,
    Result,
    Status,
    Trial,
    Variant,
)
from tuner.model.trial import fastest as timed_trials
from tuner.process.files import read_text
from tuner.report.mutation_score import MutationScore, load_score
from tuner.session.events import (
    Event,
    HomesChosen,
    MachineCodeCompared,
    Profiled,
    ReferenceTimed,
    SearchEnded,
    SpacePruned,
    TimeSpent,
)
from tuner.session.session import CandidateRecord, Session
from tuner.space.choices import search_space
from tuner.space.load import load_definition, read_definition
from tuner.space.schema import validate_space
from tuner.space.yaml import parse
from tuner.tuning.progress import mean_speedup
from tuner.tuning.run import undecided_of

if TYPE_CHECKING:
    from tuner.dispatch.table import CurvePoint, DispatchTable
    from tuner.report.rounds import AuthorData, RoundData

# What is defined on the `host` device, or on any CPU, and for no GPU.
_TELLS_HOST = re.compile(r"__CUDA_ON_HOST__|\bON_HOST_\w|\b__(?:x86_64|aarch64)__")
_SHOWN_ELSEWHERE = frozenset({"device", "recorded", "on_cpu", "date", "streaming_gbps"})


@dataclass(frozen=True, slots=True)
class Declared:
    """What the search space says of the verification.

    `varying` names the outputs whose bits may differ between runs; `extremes` says of inputs how
    far their extremes go, and why no further, and `constants` the inputs that nobody may write
    near the kernel. The texts that are `asking` what runs them may have other code on a GPU.
    """

    edge_cases: tuple[Workload, ...] = ()
    varying: tuple[str, ...] = ()
    extremes: Mapping[str, str] = field(default_factory=dict)
    constants: tuple[str, ...] = ()
    asking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate with its template, and its mean speedup over the baseline by the search's times.

    `speedup` is None where no config of it ran correctly.
    """

    name: str
    parent: str | None
    speedup: float | None
    template: str


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Which variant serves which shape, with the measurements that might save a variant.

    `curve` says what fewer variants gain, and all.
    """

    table: DispatchTable
    curve: tuple[CurvePoint, ...] = ()
    wanted: tuple[tuple[Workload, Variant], ...] = ()


@dataclass(frozen=True, slots=True)
class ReportData:
    """One run, ready to be shown.

    `records` pairs each trial of the search with the seconds into the run at which it ended, in
    that order; `finals` are the finalists' trials, with all checks.
    `measured_on` is the date of the measurements, empty where unknown. Mappings from workloads
    use `Workload.key`: `traffic_bytes` and `operations` are those of one operator call,
    `dynamic_shared_bytes` is keyed by candidate, workload and `Config.key`. `notes` say what had
    to be left out. `checks` are all of the session's, in order; `mutation` is what `tune mutate`
    left there, and `declared` None where the search space is not what it was. `author`,
    `candidates`, `rounds` and `profiles` say what an agent did. `energies` are windows of the GPU's
    energy counter, and `objective` is what the winners were chosen by. `early_ends` are searches
    that did not use their budget up, and `undecided` says of workloads why they were given up.
    `pruned` says what each search left out as slow, None that nothing was to be left out.
    `dispatch` says which variant serves which shape, `peers` what
    became of each peer on each workload, `surroundings` by their names what runs before and after
    the operator there. `homes` says which of several devices timed a workload, the last one for
    the finals, and `reference_us` what each of them took for the baseline on
    `reference_workload`. `compute_roof` is the declared peak and its GFLOP/s. `time_spent` says
    of each run where its seconds went.
    `default` is the first space's, `baseline_bits` digests what the baseline made,
    `baseline_accuracy` tells of its outputs whose tolerance is measured, and `keep_bits`
    says whether only configs with the default's bits could win; `kept_rows` has those of the class
    that was chosen where rows are invariant, and by `weights` sizes count there. `mix` says how
    often each workload comes, where their time in all is what counts.
    """

    kernel: str
    device: str
    recorded: bool
    results: tuple[Result, ...] = ()
    records: tuple[tuple[Trial, float], ...] = ()
    finals: tuple[Trial, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    baselines_us: Mapping[str, float] = field(default_factory=dict)
    baseline_source: str = ""
    tuned_sources: Mapping[str, str] = field(default_factory=dict)
    streaming_gbps: float | None = None
    traffic_bytes: Mapping[str, int] = field(default_factory=dict)
    operations: Mapping[str, int] = field(default_factory=dict)
    compute_roof: tuple[str, float] | None = None
    dynamic_shared_bytes: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    default: Config | None = None
    baseline_bits: Mapping[str, str] = field(default_factory=dict)
    baseline_accuracy: tuple[Accuracy, ...] = ()
    keep_bits: bool = False
    kept_rows: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    mix: Mapping[Workload, float] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    searcher: str = ""
    seed: int | None = None
    seconds: float = 0.0
    measured_on: str = ""
    session: str = ""
    finished: bool = True
    on_cpu: bool = False
    evaluator: str = ""
    verified_by: str = TUNE
    notes: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    mutation: MutationScore | None = None
    declared: Declared | None = None
    author: AuthorData | None = None
    candidates: tuple[Tried, ...] = ()
    rounds: tuple[RoundData, ...] = ()
    profiles: tuple[Profiled, ...] = ()
    energies: tuple[Energy, ...] = ()
    objective: Objective = "time"
    early_ends: tuple[SearchEnded, ...] = ()
    undecided: Mapping[str, str] = field(default_factory=dict)
    pruned: tuple[SpacePruned, ...] | None = ()
    homes: tuple[HomesChosen, ...] = ()
    reference_us: Mapping[str, float] = field(default_factory=dict)
    reference_workload: str = ""
    time_spent: tuple[TimeSpent, ...] = ()
    dispatch: Dispatch | None = None
    peers: tuple[PeerTrial, ...] = ()
    surroundings: Mapping[str, str] = field(default_factory=dict)
    machine_code: tuple[MachineCodeCompared, ...] = ()

    @property
    def trials(self) -> tuple[Trial, ...]:
        return tuple(trial for trial, _ in self.records)

    @property
    def tuned(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if not result.workload.held_out)

    @property
    def held_out(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.workload.held_out)

    @property
    def of_cuda(self) -> bool:
        """Tell whether it is of a kernel in CUDA, which has surroundings and tools of its own."""
        return self.environment.get("architecture", "sm_").startswith("sm_")

    def average(self, results: Sequence[Result], speedups: Sequence[float] = ()) -> float:
        """Average the results' speedups, or others of theirs, as the run judges them."""
        before = [self.mix[result.workload] * result.baseline_us for result in results if self.mix]
        return average_speedup(speedups or [result.speedup for result in results], before)

    def counts(self) -> dict[Status, int]:
        """Count the search's trials by status, every status named."""
        counted = Counter(trial.status for trial in self.trials)
        return {status: counted[status] for status in Status}

    def by_workload(self) -> dict[Workload, tuple[Trial, ...]]:
        groups: dict[Workload, list[Trial]] = {}
        for trial in self.trials:
            groups.setdefault(trial.workload, []).append(trial)
        return {workload: tuple(trials) for workload, trials in groups.items()}

    @property
    def searched(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(trial.candidate for trial in self.trials))

    @property
    def several(self) -> bool:
        return len(self.searched) > 1

    @property
    def named(self) -> bool:
        """Whether a result has to say whose config it is."""
        return any(result.candidate != INITIAL for result in self.results)

    def wins(self) -> dict[str, int]:
        """Count the workloads that each candidate serves, those of most workloads first."""
        served = Counter(r.candidate for r in self.results if not r.baseline_wins)
        return dict(served.most_common())

    def ranking(self) -> tuple[str, ...]:
        """Order the candidates: those that serve most workloads first, then the fastest."""
        known = {candidate.name: candidate.speedup or 0.0 for candidate in self.candidates}
        wins = self.wins()
        names = dict.fromkeys((*known, *self.searched))
        return tuple(sorted(names, key=lambda name: (-wins.get(name, 0), -known.get(name, 0.0))))

    def baseline_us(self, workload: Workload) -> float | None:
        """Find the baseline's time as the search saw it, else as the final comparison did."""
        compared = (result.baseline_us for result in self.results if result.workload == workload)
        return self.baselines_us.get(workload.key, next(compared, None))

    def shared_bytes(self, trial: Trial) -> int | None:
        """Sum static and dynamic shared memory per block; the static alone where no trial's
        dynamic is known.
        """
        key = trial.candidate, trial.workload.key, trial.config.key
        dynamic = self.dynamic_shared_bytes.get(key)
        if trial.resources is None or (dynamic is None and self.dynamic_shared_bytes):
            return dynamic
        return trial.resources.static_shared_bytes + (dynamic or 0)


def fastest(trials: tuple[Trial, ...], count: int | None = None) -> tuple[Trial, ...]:
    """Sort the fully timed correct trials by time, each variant once; keep the first `count`."""
    unique: dict[Variant, Trial] = {}
    for trial in timed_trials(trials, full=True):
        unique.setdefault(trial.variant, trial)
    return tuple(unique.values())[:count]


def is_of_cpu(result: Result) -> bool:
    return result.resources == Resources(registers=None)  # `host` reports nothing


def roofline_of(result: Result) -> float | None:
    """Give the share of the streaming rate that a result reaches, None where none is known.

    A CPU is nowhere near the roofline of its memory. Between neighbours inputs lie in the L2,
    which no rate of the memory bounds: there only a time alone has a share.
    """
    around = bool(result.surroundings) and result.alone_us is None
    return None if around or is_of_cpu(result) else result.roofline_share


def stopped_early(trial: Trial) -> bool:
    """Tell a trial whose measurement was cut short: its time only ranks it."""
    return trial.measurement is not None and trial.measurement.stopped_early


def load(directory: Path) -> ReportData:
    """Read a finished or interrupted session; raise `SessionError` where there is none.

    The search space and the kernel may be gone or changed since: then what depends on them is
    left out, and a note says so.
    """
    with Session.open(directory, read_only=True) as session:
        spec, notes = _unchanged_spec(session)
        return from_session(session, spec, notes)


def from_session(
    session: Session, spec: KernelSpec | None = None, notes: tuple[str, ...] = ()
) -> ReportData:
    """Collect what a session holds; `spec` adds the roofline and the diff.

    Of the session's environment, `device` names the GPU, `recorded` is `true` or `false`, `date`
    is when a recording was made and `streaming_gbps` is the roofline's rate.
    """
    manifest, environment = session.manifest, session.environment
    config = manifest.config
    recorded = environment.get("recorded") == "true" or config.device.startswith("recorded")
    on_cpu = environment.get("on_cpu") == "true"
    records = session.records()
    references = session.events(ReferenceTimed)
    # Several devices end in any order.
    places = {workload: place for place, workload in enumerate(config.workloads)}
    checked = {w.key: baseline.correctness for w, baseline in session.baselines().items()}
    rate = None
    with suppress(ValueError):
        stated = float(environment.get("streaming_gbps", ""))
        rate = stated if 0 < stated < inf else None
    results = session.results()
    compared = [
        event
        for event in session.events(MachineCodeCompared)
        if any(event.is_of(result) for result in results)
    ]
    shown = {f"operator {name}": value for name, value in config.operators.items()}
    shown |= {k: v for k, v in environment.items() if k not in _SHOWN_ELSEWHERE}
    data = ReportData(
        kernel=manifest.kernel,
        device=environment.get("device", config.device),
        recorded=recorded,
        results=tuple(sorted(results, key=lambda one: places.get(one.workload, 0))),
        records=tuple((record.trial, record.elapsed_s) for record in records),
        finals=tuple(session.trials(stage="finals")),
        comparisons=tuple(session.comparisons()),
        baselines_us={w.key: b.measurement.median_us for w, b in session.baselines().items()},
        tuned_sources=dict(_tuned_sources(session)),
        # The roofline is a GPU's: on a CPU, time goes where no kernel can save any.
        streaming_gbps=None if on_cpu else rate,
        dynamic_shared_bytes=dict(_find_shared_sizes([one.trial for one in records], session)),
        default=_read_default(session),
        baseline_bits={
            key: correctness.bits
            for key, correctness in checked.items()
            if correctness and correctness.bits
        },
        baseline_accuracy=tuple(
            accuracy
            for correctness in checked.values()
            if correctness
            for _, accuracy in correctness.accuracy
        ),
        keep_bits=config.keep_bits,
        kept_rows=session.kept_rows,
        mix=config.weights,
        environment=shown,
        command=shlex.join(manifest.command),
        searcher=config.searcher,
        seed=config.seed,
        seconds=session.seconds,
        measured_on=environment.get("date", "") if recorded else manifest.created.partition("T")[0],
        session=str(session.directory),
        finished=session.state == "complete",
        notes=notes,
        on_cpu=on_cpu,
        evaluator=environment.get("evaluator", ""),
        verified_by=session.verified_by,
        checks=tuple(session.checks()),
        mutation=load_score(session.directory),
        candidates=tuple(
            Tried(c.name, c.parent, mean_speedup(session, c.name), c.template_text)
            for c in session.candidates()
        ),
        energies=tuple(session.energies()),
        objective=config.objective,
        early_ends=tuple(session.events(SearchEnded)),
        undecided=undecided_of(session),
        pruned=tuple(session.events(SpacePruned)) if config.prune else None,
        homes=tuple(session.events(HomesChosen)),
        reference_us={k: us for reference in references for k, us in reference.times_us.items()},
        reference_workload=references[0].workload if references else "",
        time_spent=tuple(session.events(TimeSpent)),
        # Who is faster, of variants or peers, no CPU can say.
        dispatch=None if on_cpu else _dispatch(session),
        peers=() if on_cpu else tuple(session.peers()),
        # The last comparison of each workload's winner; those of earlier winners are over.
        machine_code=tuple({comparison.workload: comparison for comparison in compared}.values()),
    )
    if config.rounds or any(event.round > 0 for event in session.events(Event)):
        # Imported here: most runs have no agent, and need none of its modules.
        from tuner.report.rounds import author_of, rounds
        from tuner.session.rounds import profiles

        author, profiled = author_of(session), tuple(profiles(session))
        data = replace(data, author=author, rounds=rounds(session), profiles=profiled)
    return data if spec is None else _with_spec(data, session, spec)


def _read_default(session: Session) -> Config | None:
    for first in session.candidates()[:1]:
        with suppress(TunerError):  # written by another version
            document = parse(first.space_text, Path(first.name))
            return search_space(document, validate_space(document)).default
    return None


def _with_spec(data: ReportData, session: Session, spec: KernelSpec) -> ReportData:
    operations, workloads = spec.operations, [result.workload for result in data.results]
    return replace(
        data,
        baseline_source=read_text(spec.source),
        traffic_bytes={w.key: spec.min_bytes.integer(w.values) for w in workloads},
        operations={w.key: operations.integer(w.values) for w in workloads} if operations else {},
        weights={w.key: spec.weight_of(w) for w in session.manifest.config.workloads},
        compute_roof=_compute_roof(spec.peak, session.environment),
        surroundings={surrounding.name: str(surrounding) for surrounding in spec.surroundings},
        declared=Declared(
            spec.edge_cases,
            varying=tuple(
                argument.name for argument in spec.arguments if not argument.deterministic
            ),
            extremes={name: str(limit) for name, limit in spec.extreme_limits.items()}
            | _fitted_extremes(session),
            constants=spec.constants,
            asking=_asking(spec, session),
        ),
    )


def _asking(spec: KernelSpec, session: Session) -> tuple[str, ...]:
    """Name what can choose other code on the CPU: the source, templates, and what they include."""
    texts = {spec.source.name: read_text(spec.source)}
    texts |= {
        f"template {candidate.name}": candidate.template_text for candidate in session.candidates()
    }
    folders = tuple(map(str, spec.include_dirs))
    reached = {path for text in texts.values() for path in reachable_files(text, folders)}
    texts |= {path.name: read_text(path) for path in reached}
    return tuple(sorted(name for name, text in texts.items() if _TELLS_HOST.search(text)))


def _fitted_extremes(session: Session) -> dict[str, str]:
    """Say of which workloads the extremes end where the baseline is right, and how to state it."""
    found = {}
    for workload, baseline in session.baselines().items():
        for kind in baseline.correctness.input_kinds if baseline.correctness else ():
            name, largest = split_kind(kind)
            if name == f"{EXTREME}{LEFT_OUT}" or (name == EXTREME and isfinite(largest)):
                line = f"extreme: {{largest: {largest:g}, reason: ...}}"
                line = line if isfinite(largest) else "extreme: {reason: ...}"
                found[f"all inputs of {workload}"] = (
                    f"{kind.removeprefix(EXTREME).strip()}: with larger ones the baseline is "
                    f"wrong; where that is meant, write `{line}` at the inputs"
                )
    return found


def _compute_roof(peak: str, environment: Mapping[str, str]) -> tuple[str, float] | None:
    match = re.fullmatch(r"sm_(\d+)(\d)a?", environment.get("architecture", ""))
    multiprocessors = environment.get("multiprocessors", "")
    if not peak or match is None or not multiprocessors.isdecimal():
        return None
    capability = int(match[1]), int(match[2])
    gflops = peak_gflops(capability, int(multiprocessors), peak)
    return None if gflops is None else (peak, gflops)


def _dispatch(session: Session) -> Dispatch | None:
    """Make the table as `tune export` does; None where there is none."""
    if not session.comparisons():
        return None
    from tuner.dispatch.table import SessionDispatch, SetSelection, wanted_for

    config = session.manifest.config
    try:
        choice = SetSelection(config.variants_within, config.max_variants)
        dispatch = SessionDispatch(session, choice)
    except InputError:
        return None
    return Dispatch(dispatch.table, dispatch.curve(), wanted_for(dispatch))


def _unchanged_spec(session: Session) -> tuple[KernelSpec | None, tuple[str, ...]]:
    config = session.manifest.config
    left_out = "the roofline and the difference to the baseline are left out"
    try:
        spec = load_definition(config.space, config.operators, invariant=config.invariant).spec
        changed = session.manifest.list_changes(spec, kernel_only=True)
    except (TunerError, OSError) as error:
        return None, (f"The search space cannot be read any more, so {left_out}: {error}",)
    if changed:
        return None, (f"Changed since this session: {' and '.join(changed)}; {left_out}.",)
    return spec, ()


def _tuned_sources(session: Session) -> Iterator[tuple[str, str]]:
    """Read the variants without the lines that tell them apart: equal code is shown once."""
    kernel, comment = session.manifest.kernel, session.language.comment
    said = (f"{kernel}, tuned for ", "config: ", "compile with: ")
    header = tuple(f"{comment} {one}" for one in said)
    for result in session.results():
        path = session.variant_path(result.workload)
        try:
            lines = read_text(path, follow=False).splitlines(keepends=True)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SessionError(f"cannot be read: {error.strerror}", path=path) from error
        yield result.workload.key, "".join(dropwhile(lambda row: row.startswith(header), lines))


def _find_shared_sizes(
    trials: Sequence[Trial], session: Session
) -> Iterator[tuple[tuple[str, str, str], int]]:
    operators = session.manifest.config.operators
    sizes = {
        candidate.name: _shared_sizes(candidate, operators) for candidate in session.candidates()
    }
    for trial in timed_trials(trials, full=True):
        asked = sizes.get(trial.candidate)
        if asked is None:
            continue
        names = {**trial.workload.values, **operators, **trial.config}
        try:
            shared = max((size.integer(names) for size in asked), default=0)
        except ExpressionError:
            continue  # it needs a number of the device, which a session does not hold
        yield (trial.candidate, trial.workload.key, trial.config.key), shared


def _shared_sizes(
    candidate: CandidateRecord, operators: Mapping[str, str]
) -> list[Expression] | None:
    """Read what the candidate's own launches ask for; None where its space cannot be read."""
    try:
        document = parse(candidate.space_text, Path(candidate.name))
        launches = read_definition(document, operators).spec.launch
    except TunerError:
        return None
    return [launch.shared_memory for launch in launches if launch.shared_memory is not None]
