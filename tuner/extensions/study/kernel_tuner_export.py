"""A session's trials as Kernel Tuner's cache files and as T4 results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tuner.app.session_plan import unchanged_spec
from tuner.device.recorded.recording import RecordedDeviceInfo, RecordedFinals
from tuner.extensions.study.foreign import (
    BASELINE,
    ForeignAnswer,
    MeasuredSpace,
    Own,
    l2_bytes_of,
    ticks,
)
from tuner.extensions.study.kernel_tuner_files import cache_text, t4_text
from tuner.model.errors import InputError, SessionError
from tuner.model.kernel import Workload
from tuner.model.surroundings import ALONE
from tuner.model.trial import INITIAL, Measurement, Status, Trial
from tuner.process.files import atomic_write, folders_made
from tuner.session.session import Session
from tuner.space.choices import search_space
from tuner.space.schema import validated
from tuner.space.surroundings import chosen
from tuner.space.yaml import parse

# Of a session's environment: in fields of their own, or of no meaning for whoever replays it.
_ELSEWHERE = frozenset(
    ("device", "recorded", "on_cpu", "streaming_gbps", "architecture", "multiprocessors")
) | frozenset(("date", "recording", "watched_by"))
# What a run from the file states of itself must not be mistaken for what it was measured with.
_SOFTWARE = frozenset({"compiler", "commit", "python", "tune"})
_RESUME = "run `tune --resume` on it until a workload has been searched"


def write_both(directory: Path, folder: Path, space: Path | None = None) -> tuple[Path, ...]:
    """Write a cache and T4 results for every candidate and workload of a session into a folder.

    `KERNEL-T1024-D14336.json` is the cache, with `_T4` before the ending the results; a candidate
    that an agent wrote stands after the kernel. `space` is the session's search space where it is
    no longer where it was. Returns the paths. Raises `SessionError` where there is nothing to
    write, and where surroundings stand in a file that has changed, and `InputError` where it
    cannot be written.
    """
    written: list[Path] = []
    with Session.open(directory, read_only=True) as session:
        searched = dict.fromkeys((one.candidate, one.workload) for one in session.trials())
        for candidate, workload in searched:
            measured = measured_in(session, workload, candidate, space)
            shape = workload.key.replace("=", "").replace(",", "-")
            own = () if candidate == INITIAL else (candidate,)
            stem = "-".join((session.manifest.kernel, *own, shape))
            cache, t4 = folder / f"{stem}.json", folder / f"{stem}_T4.json"
            _write(cache_text(measured), cache)
            _write(t4_text(measured), t4)
            written += (cache, t4)
    if not written:
        raise SessionError("holds no trial to export", path=directory, remedy=_RESUME)
    return tuple(written)


def measured_in(
    session: Session, workload: Workload, candidate: str, space: Path | None = None
) -> MeasuredSpace:
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
        raise SessionError("holds no trial to export", path=session.directory, remedy=_RESUME)
    created = session.environment.get("date") or manifest.created
    (text,) = (one.space_text for one in session.candidates() if one.name == candidate)
    document = parse(text, session.directory / f"{candidate}.yaml")
    own = Own(
        kernel=manifest.kernel,
        workload=workload.key,
        created=created,
        operators=dict(manifest.config.operators),
        device=info,
        baseline=_measured(Status.CORRECT, baseline.measurement).program(),
        finals=_finals(session, workload, candidate),
        surroundings=_surroundings(session, workload, space),
    )
    return MeasuredSpace(
        kernel=manifest.kernel,
        device=info.name,
        problem_size=tuple(workload.values.values()),
        parameters=search_space(document, validated(document)).parameters,
        answers=answers,
        created=created,
        own=own,
    )


def _answer(session: Session, trial: Trial) -> ForeignAnswer:
    final = session.trial(trial.candidate, trial.workload, trial.config, stage="finals")
    last = trial if final is None or final.status is Status.CORRECT else final
    if last.status is not Status.CORRECT or last.measurement is None:
        return ForeignAnswer(last.status, last.reason, seconds=trial.seconds)
    return replace(
        _measured(last.status, last.measurement, last.reason),
        stopped_early=last.measurement.stopped_early,
        seconds=trial.seconds,
    )


def _measured(status: Status, measured: Measurement, reason: str = "") -> ForeignAnswer:
    return ForeignAnswer(
        status,
        reason,
        measured.median_us,
        measured.times_us,
        measured.calls_per_replay,
        measured.buffer_sets,
    )


def _finals(session: Session, workload: Workload, candidate: str) -> RecordedFinals | None:
    """Keep the rounds of the last comparison, of this candidate's configs."""
    found = [one for one in session.comparisons() if one.workload == workload and one.paired]
    finalists = found[-1].finalists if found else ()
    columns = [k for k, v in enumerate(finalists, 1) if v.candidate == candidate]
    if not columns:
        return None
    kept, isolated = (0, *columns), found[-1].isolated_us or (None,) * (len(finalists) + 1)
    return RecordedFinals(
        programs=(BASELINE, *(finalists[k - 1].config.key for k in columns)),
        rounds=tuple(tuple(ticks(row[k]) for k in kept) for row in found[-1].rounds),
        isolated=tuple(None if (us := isolated[k]) is None else ticks(us) for k in kept),
        alone=tuple(ticks(found[-1].alone_us[k]) for k in kept if found[-1].alone_us),
    )


def _surroundings(session: Session, workload: Workload, space: Path | None) -> str:
    """Say what the times were measured in; only the user's own file tells its sizes."""
    config = session.manifest.config
    own = next(one for one in session.candidates() if one.name == INITIAL)
    document = parse(own.space_text, config.space)
    if not document.data.get("surroundings") or config.surroundings == ALONE:
        return ""
    around = chosen(unchanged_spec(session, space), config.surroundings).surroundings_of(workload)
    return around.content if around else ""


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
    except (KeyError, ValueError, IndexError) as error:
        raise SessionError(
            "does not hold the numbers of its GPU", path=session.directory
        ) from error


def _environment(known: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in known.items() if name not in _ELSEWHERE | _SOFTWARE}
    software = {f"recorded_{name}": known[name] for name in sorted(_SOFTWARE) if name in known}
    # Of a session that answered from a recording, what the recording was made with comes first.
    return {**software, **kept}


def _write(text: str, path: Path) -> None:
    try:
        with folders_made([path]):
            atomic_write(path, text)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}",
            path=path,
            remedy="choose another place with --kernel-tuner",
        ) from error
