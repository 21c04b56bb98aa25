"""From Kernel Tuner's files to the recording of one kernel, and from a session to such files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tuner.app.session_plan import unchanged_spec
from tuner.device.recorded.known_gpus import GPUS, known_gpu
from tuner.device.recorded.recording import (
    RecordedDeviceInfo,
    RecordedFinals,
    RecordedWorkload,
    Recording,
)
from tuner.extensions.study.kernel_tuner_files import (
    ForeignAnswer,
    MeasuredSpace,
    Own,
    cache_text,
    is_foreign,
    load_measured,
    t4_text,
    ticks,
)
from tuner.model.config import Config, SearchSpace
from tuner.model.errors import DeviceError, InputError, SessionError
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.surroundings import ALONE
from tuner.model.trial import INITIAL, Measurement, Status
from tuner.process.files import atomic_write, folders_made
from tuner.session.session import Session
from tuner.space.choices import search_space
from tuner.space.schema import validate_space
from tuner.space.surroundings import choose_surroundings
from tuner.space.yaml import parse

# What a recording keyed by configs calls the baseline: no config's key, which is a JSON object.
BASELINE = "baseline"
# Of a session's environment: in fields of their own, or of no meaning for whoever replays it.
_ELSEWHERE = frozenset(
    ("device", "recorded", "on_cpu", "streaming_gbps", "architecture", "multiprocessors")
) | frozenset(("date", "recording", "watched_by"))
# What a run from the file states of itself must not be mistaken for what it was measured with.
_SOFTWARE = frozenset({"compiler", "commit", "python", "tune"})
_RESUME = "run `tune --resume` on it until a workload has been searched"


class KernelTunerFiles:
    """Kernel Tuner's caches and T4 results; implements `ForeignFiles`."""

    def is_foreign(self, path: Path) -> bool:
        return is_foreign(path)

    def read(
        self,
        path: Path,
        spec: KernelSpec,
        operators: Mapping[str, str],
        workloads: Sequence[Workload] | None,
    ) -> Recording:
        from tuner.space.load import load_definition

        space = load_definition(spec.path, operators).space
        return recording_from(path, spec, space, operators, workloads)


FOREIGN = KernelTunerFiles()


def recording_from(
    path: Path,
    spec: KernelSpec,
    space: SearchSpace,
    operators: Mapping[str, str],
    workloads: Sequence[Workload] | None = None,
) -> Recording:
    """Read a foreign file as the recording of a kernel whose template has this space.

    `workloads` are those that will be asked for, None where that is not known. Raises
    `DeviceError` where parameters, GPU, workload or baseline do not fit.
    """
    measured = load_measured(path)
    try:
        return _recording(measured, spec, space, operators, workloads)
    except DeviceError as error:
        error.path = path
        raise


def _recording(
    measured: MeasuredSpace,
    spec: KernelSpec,
    space: SearchSpace,
    operators: Mapping[str, str],
    workloads: Sequence[Workload] | None,
) -> Recording:
    own = measured.own
    theirs = [parameter.name for parameter in measured.parameters]
    if set(theirs) != set(space.names):
        raise DeviceError(
            f"its parameters are {', '.join(theirs)}; those of the search space are "
            f"{', '.join(space.names)}",
            remedy="name the parameters of the search space and its template as the file does",
        )
    workload = _find_workload(measured, spec, workloads)
    values = [{value: value for value in parameter.values} for parameter in space.parameters]
    programs = {}
    for config, answer in measured.answers.items():
        # Values that the space lacks are out of its reach. 1, 1.0 and True are one value here; the
        # space says which of them is meant.
        pairs = [
            (name, known[config[name]])
            for name, known in zip(space.names, values, strict=True)
            if config[name] in known
        ]
        if len(pairs) == len(space.names) and answer.status is not Status.NOT_RECORDED:
            programs[Config(tuple(pairs)).key] = answer.program()
    if own is not None:
        programs[BASELINE], device = own.baseline, own.device
    else:
        if space.default is None:
            raise DeviceError(
                "holds no baseline, and the search space names no default config to stand in for "
                "it",
                remedy="give the search space a `default:` that is in the file",
            )
        stand_in = programs.get(space.default.key)
        if stand_in is None or stand_in.status is not Status.CORRECT:
            what = "has no answer for" if stand_in is None else f"says `{stand_in.status}` of"
            raise DeviceError(
                f"holds no baseline, and {what} the default config that would stand in for it: "
                f"{space.default}",
                remedy="give the search space another `default:`, one that is correct in the file",
            )
        programs[BASELINE], device = stand_in, device_info(measured.device)
        size = " x ".join(map(str, measured.problem_size)) or "not told"
        notes = {
            "timed_by": "another program (Kernel Tuner's file): by its own rules, which may leave "
            "inputs in the cache and count the launch; what it checked is not known",
            "recorded_kernel": measured.kernel or "not told",
            "recorded_problem_size": f"{size}, taken for {workload}",
            "baseline": "the file holds none: the space's default config stands in for it",
        }
        device = device.model_copy(update={"environment": {**device.environment, **notes}})
    recorded = RecordedWorkload(
        baseline=BASELINE,
        programs=programs,
        finals=own.finals if own else None,
        surroundings=own.surroundings if own else "",
    )
    return Recording(
        kernel=own.kernel if own else spec.name,
        created=measured.created,
        device=device,
        operators=dict(own.operators if own else operators),
        workloads={workload.key: recorded},
        keyed_by="config",
    )


def device_info(name: str) -> RecordedDeviceInfo:
    """Look a GPU up by its driver's name for it; raise `DeviceError` for an unknown one."""
    if (gpu := known_gpu(name)) is not None:
        return gpu.model_copy(update={"name": name})
    what = f"was made on {name}, whose numbers are not known"
    remedy = f"known are {', '.join(GPUS)}; `tune compare` replays a file of any GPU"
    if not name:
        what = "does not say on which GPU it was made"
        where = "at the top of a cache, in the `metadata` of T4 results"
        added = f'add `"device_name": "..."` as the GPU\'s driver calls it ({where})'
        remedy = f"{added}; {remedy}"
    raise DeviceError(what, remedy=remedy)


def _find_workload(
    measured: MeasuredSpace, spec: KernelSpec, asked: Sequence[Workload] | None
) -> Workload:
    """Decide which workload the file answers for: named in it, the only one, or of its size."""
    choices = [w for w in (spec.workloads if asked is None else asked) if not w.held_out]
    size = _without_ones(measured.problem_size)
    if measured.own is not None:
        workloads = [w for w in choices if w.key == measured.own.workload]
        unclear = f"the workload {measured.own.workload}, which is not asked for"
        remedy = f"ask for it with --workload {measured.own.workload}"
    else:
        of_size = [w for w in choices if size and _without_ones(w.values.values()) == size]
        workloads = choices if len(choices) == 1 else of_size
        named = choices or list(spec.tuned)
        told = " x ".join(map(str, measured.problem_size)) or "it does not tell"
        unclear = f"one problem size, {told}; which of {len(named)} workloads that is, is not clear"
        example = f", as in --workload {named[0].key}" if named else ""
        remedy = f"name the workload that was measured{example}"
    if len(workloads) != 1:
        raise DeviceError(f"holds {unclear}", remedy=remedy)
    others = [workload for workload in asked or () if workload != workloads[0]]
    if others:
        raise DeviceError(
            f"holds one workload, {workloads[0]}; this run asks for {len(others)} more",
            remedy=f"--workload {workloads[0].key} asks for that one alone",
        )
    return replace(workloads[0], held_out=False)


def _without_ones(sizes: Iterable[int]) -> list[int]:
    return sorted(size for size in sizes if size != 1)


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
        searched = dict.fromkeys((trial.candidate, trial.workload) for trial in session.trials())
        for candidate, workload in searched:
            measured = _measured_in(session, workload, candidate, space)
            shape = workload.key.replace("=", "").replace(",", "-")
            own = () if candidate == INITIAL else (candidate,)
            stem = "-".join((session.manifest.kernel, *own, shape))
            for end, text in ((".json", cache_text(measured)), ("_T4.json", t4_text(measured))):
                path = folder / f"{stem}{end}"
                try:
                    with folders_made([path]):
                        atomic_write(path, text)
                except OSError as error:
                    raise InputError(
                        f"cannot be written: {error.strerror or error}",
                        path=path,
                        remedy="choose another place with --kernel-tuner",
                    ) from error
                written.append(path)
    if not written:
        raise SessionError("holds no trial to export", path=directory, remedy=_RESUME)
    return tuple(written)


def _measured_in(
    session: Session, workload: Workload, candidate: str, space: Path | None
) -> MeasuredSpace:
    """Collect one candidate's trials on one workload; what failed in the finals has failed."""
    manifest, device = session.manifest, _device_of(session)
    answers = {}
    for trial in session.trials(candidate, workload):
        final = session.trial(candidate, workload, trial.config, stage="finals")
        last = trial if final is None or final.status is Status.CORRECT else final
        if trial.status is Status.NOT_RECORDED:
            continue
        answer = ForeignAnswer(last.status)
        if last.status is Status.CORRECT and last.measurement is not None:
            answer = replace(
                _answer_of(last.measurement), stopped_early=last.measurement.stopped_early
            )
        answers[trial.config] = replace(answer, reason=last.reason, seconds=trial.seconds)
    baseline = session.baselines().get(workload)
    if baseline is None or not answers:
        raise SessionError("holds no trial to export", path=session.directory, remedy=_RESUME)
    created = session.environment.get("date") or manifest.created
    (text,) = (record.space_text for record in session.candidates() if record.name == candidate)
    document = parse(text, session.directory / f"{candidate}.yaml")
    own = Own(
        kernel=manifest.kernel,
        workload=workload.key,
        created=created,
        operators=dict(manifest.config.operators),
        device=device,
        baseline=_answer_of(baseline.measurement).program(),
        finals=_finals(session, workload, candidate),
        surroundings=_surroundings(session, workload, space),
    )
    return MeasuredSpace(
        kernel=manifest.kernel,
        device=device.name,
        problem_size=tuple(workload.values.values()),
        parameters=search_space(document, validate_space(document)).parameters,
        answers=answers,
        created=created,
        own=own,
    )


def _answer_of(measured: Measurement) -> ForeignAnswer:
    return ForeignAnswer(
        Status.CORRECT,
        time_us=measured.median_us,
        samples_us=measured.times_us,
        calls=measured.calls_per_replay,
        sets=measured.buffer_sets,
    )


def _finals(session: Session, workload: Workload, candidate: str) -> RecordedFinals | None:
    """Keep the rounds of the last comparison, of this candidate's configs."""
    comparisons = [
        comparison
        for comparison in session.comparisons()
        if comparison.workload == workload and comparison.paired
    ]
    finalists = comparisons[-1].finalists if comparisons else ()
    columns = [k for k, v in enumerate(finalists, 1) if v.candidate == candidate]
    if not columns:
        return None
    kept, isolated = (0, *columns), comparisons[-1].isolated_us or (None,) * (len(finalists) + 1)
    return RecordedFinals(
        programs=(BASELINE, *(finalists[k - 1].config.key for k in columns)),
        rounds=tuple(tuple(ticks(row[k]) for k in kept) for row in comparisons[-1].rounds),
        isolated=tuple(None if (us := isolated[k]) is None else ticks(us) for k in kept),
        alone=tuple(ticks(comparisons[-1].alone_us[k]) for k in kept if comparisons[-1].alone_us),
    )


def _surroundings(session: Session, workload: Workload, space: Path | None) -> str:
    """Say what the times were measured in; only the user's own file tells its sizes."""
    config = session.manifest.config
    first = next(candidate for candidate in session.candidates() if candidate.name == INITIAL)
    document = parse(first.space_text, config.space)
    if not document.data.get("surroundings") or config.surroundings == ALONE:
        return ""
    around = choose_surroundings(
        unchanged_spec(session, space), config.surroundings
    ).surroundings_of(workload)
    return around.content if around else ""


def _device_of(session: Session) -> RecordedDeviceInfo:
    known = session.environment
    name = known.get("device", "")
    if known.get("on_cpu") == "true":
        raise SessionError(
            "was run on a CPU, whose times say nothing of a GPU's",
            path=session.directory,
            remedy="export a session that was measured on a GPU or answered from a recording",
        )
    # Of a session that answered from a recording, what the recording was made with comes first.
    software = {f"recorded_{name}": known[name] for name in sorted(_SOFTWARE) if name in known}
    kept = {name: value for name, value in known.items() if name not in _ELSEWHERE | _SOFTWARE}
    gpu = known_gpu(name)
    try:
        architecture, number = known["architecture"], known["architecture"].strip("sm_a")
        return RecordedDeviceInfo(
            name=name,
            architecture=architecture,
            compute_capability=(int(number[:-1]), int(number[-1])),
            multiprocessors=int(known["multiprocessors"]),
            l2_bytes=0 if gpu is None else gpu.l2_bytes,
            streaming_gbps=float(known["streaming_gbps"]),
            environment={**software, **kept},
        )
    except (KeyError, ValueError, IndexError) as error:
        raise SessionError(
            "does not hold the numbers of its GPU", path=session.directory
        ) from error
