"""A session's trials as Kernel Tuner's cache files and as T4 results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tuner.device.recorded.foreign import (
    BASELINE,
    Answer,
    MeasuredSpace,
    Own,
    device_info,
    l2_bytes_of,
    ticks,
)
from tuner.device.recorded.kernel_tuner_cache import cache_text
from tuner.device.recorded.recording import RecordedDeviceInfo, RecordedFinals
from tuner.device.recorded.t4 import t4_text
from tuner.model.config import Parameter
from tuner.model.errors import DeviceError, InputError, SessionError
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Status, Trial
from tuner.session.session import Session
from tuner.space.choices import search_space
from tuner.space.schema import validated
from tuner.space.yaml import parse

# Of a session's environment: told by fields of their own, or of no meaning for whoever replays it.
_TOLD = frozenset(
    {
        "device",
        "recorded",
        "on_cpu",
        "streaming_gbps",
        "architecture",
        "multiprocessors",
        "date",
        "recording",
        "watched_by",
    }
)
# What a run from the file states of itself must not be mistaken for what it was measured with.
_SOFTWARE = frozenset({"compiler", "commit", "python", "tune"})


def write_cache(
    directory: Path, path: Path, *, workload: str | None = None, candidate: str = INITIAL
) -> None:
    """Write the search trials of a session as one Kernel Tuner cache.

    `workload` is a key (`T=1024,D=14336`); without, the session may have only one. Raises
    `SessionError` where there is nothing to write and `InputError` where it cannot be written.
    """
    with Session.open(directory, read_only=True) as session:
        chosen = _workload(session, candidate, workload)
        _write(cache_text(measured_in(session, chosen, candidate)), path)


def write_t4(
    directory: Path, path: Path, *, workload: str | None = None, candidate: str = INITIAL
) -> None:
    """Write the search trials of a session as T4 results; as `write_cache`."""
    with Session.open(directory, read_only=True) as session:
        chosen = _workload(session, candidate, workload)
        _write(t4_text(measured_in(session, chosen, candidate)), path)


def write_both(directory: Path, folder: Path) -> tuple[Path, ...]:
    """Write a cache and T4 results for every candidate and workload of a session into a folder.

    `KERNEL-T1024-D14336.json` is the cache, with `_T4` before the ending the results; a candidate
    that an agent wrote stands after the kernel. Returns the paths. Raises as `write_cache` does.
    """
    written = []
    formats: tuple[tuple[str, Callable[[MeasuredSpace], str]], ...] = (
        ("", cache_text),
        ("_T4", t4_text),
    )
    with Session.open(directory, read_only=True) as session:
        for candidate, workload in _searched(session):
            measured = measured_in(session, workload, candidate)
            stem = _stem(session, candidate, workload)
            for ending, text in formats:
                path = folder / f"{stem}{ending}.json"
                _write(text(measured), path)
                written.append(path)
    if not written:
        raise _nothing(directory)
    return tuple(written)


def measured_in(session: Session, workload: Workload, candidate: str = INITIAL) -> MeasuredSpace:
    """Collect one candidate's trials on one workload; what failed in the finals has failed."""
    manifest = session.manifest
    info = _device(session)
    answers = {
        trial.config: _answer(session, trial)
        for trial in session.trials(candidate, workload)
        if trial.status is not Status.NOT_RECORDED
    }
    baseline = session.baselines().get(workload)
    if baseline is None or not answers:
        raise _nothing(session.directory)
    measured = baseline.measurement
    answer = Answer(
        Status.CORRECT,
        "",
        measured.median_us,
        measured.times_us,
        measured.calls_per_replay,
        measured.buffer_sets,
    )
    created = session.environment.get("date") or manifest.created
    own = Own(
        kernel=manifest.kernel,
        workload=workload.key,
        created=created,
        operators=dict(manifest.config.operators),
        device=info,
        baseline=answer.program(),
        finals=_finals(session, workload, candidate),
    )
    return MeasuredSpace(
        kernel=manifest.kernel,
        device=info.name,
        problem_size=tuple(workload.values.values()),
        parameters=_parameters(session, candidate),
        answers=answers,
        created=created,
        own=own,
    )


def _answer(session: Session, trial: Trial) -> Answer:
    final = session.trial(trial.candidate, trial.workload, trial.config, stage="finals")
    last = trial if final is None or final.status is Status.CORRECT else final
    measured = last.measurement
    if last.status is not Status.CORRECT or measured is None:
        return Answer(last.status, last.reason, seconds=trial.seconds)
    return Answer(
        last.status,
        last.reason,
        measured.median_us,
        measured.times_us,
        measured.calls_per_replay,
        measured.buffer_sets,
        measured.stopped_early,
        trial.seconds,
    )


def _finals(session: Session, workload: Workload, candidate: str) -> RecordedFinals | None:
    """Keep the rounds of the last comparison, of this candidate's configs."""
    found = [one for one in session.comparisons() if one.workload == workload and one.paired]
    if not found:
        return None
    last = found[-1]
    columns = [k for k, v in enumerate(last.finalists, 1) if v.candidate == candidate]
    if not columns:
        return None
    kept = (0, *columns)
    isolated = last.isolated_us or (None,) * (len(last.finalists) + 1)
    return RecordedFinals(
        programs=(BASELINE, *(last.finalists[k - 1].config.key for k in columns)),
        rounds=tuple(tuple(ticks(row[k]) for k in kept) for row in last.rounds),
        isolated=tuple(None if (us := isolated[k]) is None else ticks(us) for k in kept),
    )


def _parameters(session: Session, candidate: str) -> tuple[Parameter, ...]:
    (text,) = (one.space_text for one in session.candidates() if one.name == candidate)
    document = parse(text, session.directory / f"{candidate}.yaml")
    return search_space(document, validated(document)).parameters


def _device(session: Session) -> RecordedDeviceInfo:
    known = session.environment
    name = known.get("device", "")
    if known.get("on_cpu") == "true":
        raise SessionError(
            "was run on a CPU, whose times say nothing of a GPU's",
            path=session.directory,
            remedy="export a session that was measured on a GPU or answered from a recording",
        )
    try:
        architecture, number = known["architecture"], known["architecture"].strip("sm_a")
        return RecordedDeviceInfo(
            name=name,
            architecture=architecture,
            compute_capability=(int(number[:-1]), int(number[-1])),
            multiprocessors=int(known["multiprocessors"]),
            l2_bytes=l2_bytes_of(name),
            streaming_gbps=float(known["streaming_gbps"]),
            environment=_environment(known),
        )
    except (KeyError, ValueError, IndexError):
        return _from_data_sheet(session, name)


def _from_data_sheet(session: Session, name: str) -> RecordedDeviceInfo:
    """Sessions of the first version told the GPU's name only."""
    try:
        info = device_info(name)
    except DeviceError as error:
        raise SessionError(
            f"does not hold the numbers of its GPU: it {error.message}", path=session.directory
        ) from error
    notes = {**info.environment, **_environment(session.environment)}
    return info.model_copy(update={"environment": notes})


def _environment(known: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in known.items() if name not in _TOLD | _SOFTWARE}
    software = {f"recorded_{name}": known[name] for name in sorted(_SOFTWARE) if name in known}
    # Of a session that answered from a recording, what the recording was made with comes first.
    return {**software, **kept}


def _searched(session: Session) -> Iterator[tuple[str, Workload]]:
    yield from dict.fromkeys((trial.candidate, trial.workload) for trial in session.trials())


def _workload(session: Session, candidate: str, asked: str | None) -> Workload:
    found = {workload.key: workload for name, workload in _searched(session) if name == candidate}
    if not found:
        raise _nothing(session.directory)
    if asked is None and len(found) == 1:
        return next(iter(found.values()))
    if asked is None or asked not in found:
        what = "holds several workloads" if asked is None else f"has no trials on {asked}"
        raise SessionError(what, path=session.directory, remedy=f"searched were: {' '.join(found)}")
    return found[asked]


def _nothing(directory: Path) -> SessionError:
    return SessionError(
        "holds no trial to export",
        path=directory,
        remedy="run `tune --resume` on it until a workload has been searched",
    )


def _stem(session: Session, candidate: str, workload: Workload) -> str:
    shape = workload.key.replace("=", "").replace(",", "-")
    parts = (session.manifest.kernel, "" if candidate == INITIAL else candidate, shape)
    return "-".join(part for part in parts if part)


def _write(text: str, path: Path) -> None:
    unfinished = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}",
            path=path,
            remedy="choose another place with --kernel-tuner",
        ) from error
