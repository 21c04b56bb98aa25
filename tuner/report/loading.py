"""Reading a session, and the files that it was made from, into what a report shows."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tuner.model.errors import ExpressionError, TunerError
from tuner.model.expressions import Expression
from tuner.model.kernel import DEVICE_NAMES, KernelSpec, Workload
from tuner.model.trial import Trial
from tuner.report.data import Declared, EarlyEnd, ReportData, fastest
from tuner.report.rounds import author_of, rounds, tried
from tuner.report.sections.dispatch import dispatch_of
from tuner.session.events import SearchEnded
from tuner.session.records import file_sha
from tuner.session.session import Candidate, Session
from tuner.space.choices import optional
from tuner.space.load import load_definition
from tuner.space.schema import validated
from tuner.space.yaml import parse
from tuner.tuning.profiling import profiles

_SHOWN_ELSEWHERE = frozenset({"device", "recorded", "on_cpu", "date", "streaming_gbps"})


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
    from tuner.mutation.examine import load_score

    manifest, environment = session.manifest, session.environment
    recorded = environment.get("recorded") == "true" or manifest.config.device.startswith(
        "recorded"
    )
    on_cpu = environment.get("on_cpu") == "true"
    created = manifest.created.partition("T")[0]
    records = tuple((record.trial, record.elapsed_s) for record in session.records())
    results = tuple(session.results())
    workloads = [result.workload for result in results]
    data = ReportData(
        kernel=manifest.kernel,
        device=environment.get("device", manifest.config.device),
        recorded=recorded,
        results=results,
        records=records,
        finals=tuple(session.trials(stage="finals")),
        comparisons=tuple(session.comparisons()),
        baselines_us={
            workload.key: baseline.measurement.median_us
            for workload, baseline in session.baselines().items()
        },
        baseline_source="" if spec is None else _text(spec.source),
        tuned_sources=dict(_tuned_sources(session, workloads)),
        # The roofline is a GPU's: on a CPU, time goes where no kernel can save any.
        streaming_gbps=None if on_cpu else _number(environment.get("streaming_gbps", "")),
        environment={**_operators(manifest.config.operators), **_remaining(environment)},
        command=shlex.join(manifest.command),
        searcher=manifest.config.searcher,
        seed=manifest.config.seed,
        seconds=session.seconds,
        measured_on=environment.get("date", "") if recorded else created,
        session=str(session.directory),
        finished=session.state == "complete",
        notes=notes,
        on_cpu=on_cpu,
        checks=tuple(session.checks()),
        mutation=load_score(session.directory),
        author=author_of(session),
        candidates=tried(session),
        rounds=rounds(session),
        profiles=tuple(profiles(session)),
        energies=tuple(session.energies()),
        objective=manifest.config.objective,
        early_ends=tuple(_early_ends(session)),
        dispatch=dispatch_of(session),
        peers=tuple(session.peers()),
    )
    data = replace(data, dynamic_shared_bytes=dict(_dynamic_shared(data, session)))
    return data if spec is None else _with_spec(data, spec, workloads)


def _early_ends(session: Session) -> Iterator[EarlyEnd]:
    for one in session.events(SearchEnded):
        yield EarlyEnd(one.candidate, one.workload, one.trials, one.expected_gain)


def _operators(choices: Mapping[str, str]) -> dict[str, str]:
    return {f"operator {name}": value for name, value in choices.items()}


def _remaining(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k not in _SHOWN_ELSEWHERE}


def _with_spec(data: ReportData, spec: KernelSpec, workloads: Sequence[Workload]) -> ReportData:
    operations = spec.operations
    return replace(
        data,
        traffic_bytes={w.key: spec.min_bytes.integer(w.values) for w in workloads},
        operations={w.key: operations.integer(w.values) for w in workloads} if operations else {},
        declared=_declared(spec),
    )


def _declared(spec: KernelSpec) -> Declared:
    varying = (one.name for one in spec.arguments if not one.deterministic)
    nonfinite = (one.name for one in spec.arguments if one.nonfinite)
    return Declared(spec.edge_cases, tuple(varying), tuple(nonfinite))


def _unchanged_spec(session: Session) -> tuple[KernelSpec | None, tuple[str, ...]]:
    path = session.manifest.config.space
    left_out = "the roofline and the difference to the baseline are left out"
    try:
        spec = load_definition(path, session.manifest.config.operators).spec
        before = {path: session.manifest.space_sha, spec.source: session.manifest.source_sha}
        changed = [str(file) for file, sha in before.items() if file_sha(file) != sha]
    except (TunerError, OSError) as error:
        return None, (f"The search space cannot be read any more, so {left_out}: {error}",)
    if changed:
        names = " and ".join(changed)
        return None, (f"Changed since this session: {names}; {left_out}.",)
    return spec, ()


def _tuned_sources(session: Session, workloads: Sequence[Workload]) -> Iterator[tuple[str, str]]:
    for workload in workloads:
        path = session.variant_path(workload)
        if path.exists():
            yield workload.key, _without_header(_text(path), session.manifest.kernel)


def _without_header(source: str, kernel: str) -> str:
    """Drop the lines that tell the variants apart, so that equal code is shown once."""
    header = (f"// {kernel}, tuned for ", "// config: ", "// compile with: ")
    lines = source.splitlines(keepends=True)
    while lines and lines[0].startswith(header):
        del lines[0]
    return "".join(lines)


def _dynamic_shared(
    data: ReportData, session: Session
) -> Iterator[tuple[tuple[str, str, str], int]]:
    sizes = {one.name: _shared_sizes(one) for one in session.candidates()}
    for workload, trials in data.by_workload().items():
        for trial in fastest(trials):
            shared = _largest(trial, sizes.get(trial.candidate))
            if shared is not None:
                yield (trial.candidate, workload.key, trial.config.key), shared


def _shared_sizes(candidate: Candidate) -> tuple[Expression, ...] | None:
    """Read what the candidate's own launches ask for; None where its space cannot be read."""
    try:
        document = parse(candidate.space_text, Path(candidate.name))
        model = validated(document)
        names = {*model.axes, *DEVICE_NAMES, *model.parameters}
        found = [
            optional(document, one.shared_memory, names, "launch", i, "shared_memory")
            for i, one in enumerate(model.launch)
        ]
    except TunerError:
        return None
    return tuple(size for size in found if size is not None)


def _largest(trial: Trial, sizes: Sequence[Expression] | None) -> int | None:
    names = {**trial.workload.values, **trial.config}
    try:
        return None if sizes is None else max((size.integer(names) for size in sizes), default=0)
    except ExpressionError:
        return None  # it needs a number of the device, which a session does not hold


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None
