"""The recorded spaces of `tune record`'s files, whose programs are keyed by what they compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tuner.comparing.spaces import RecordedSpace, recording_name, require_correct
from tuner.device.recording import RecordedWorkload, Recording, load_recording
from tuner.errors import InputError
from tuner.kernel import Workload
from tuner.search.pool import valid_configs
from tuner.space import Config
from tuner.space_file import Definition, workload_from_text
from tuner.target import Target
from tuner.template import Template
from tuner.trial import INITIAL, Status, Trial

# `tune record` leaves out what is decided without a GPU: whoever answers decides it again.
_UNRECORDED = "not in the recording: it does not compile or is over a limit"


def rendered_spaces(
    path: Path, find: Callable[[Path], Definition], asked: Sequence[str] = ()
) -> Iterator[RecordedSpace]:
    """Find the programs of all valid configs by rendering the kernel's template, uncompiled.

    `find` finds the recording's search space. `asked` are workloads as `--workload` takes them;
    without, those that the search space tunes and the recording holds, or else all of it. Raises
    `InputError` where recording and search space do not belong together.
    """
    recording = load_recording(path)
    definition = find(path)
    _require_same(path, recording, definition)
    template = Template.load(definition.spec.template)
    several = len(recording.workloads) > 1
    for workload in _workloads(path, recording, definition, asked):
        recorded = recording.workloads[workload.key]
        yield _rendered(path, recording, definition, template, workload, recorded, several)


def _rendered(
    path: Path,
    recording: Recording,
    definition: Definition,
    template: Template,
    workload: Workload,
    recorded: RecordedWorkload,
    several: bool,
) -> RecordedSpace:
    operators = recording.operators
    definition = definition.chosen(operators)
    spec = definition.spec
    target = Target(spec, operators, recording.device.info())
    names = target.names(workload)
    pool = valid_configs(definition.space, names)
    tried = recorded.tried()
    if tried is not None:
        pool = pool.restricted(tried)
    trials = {}
    for config in pool:
        launches = spec.candidate_launches({**names, **config})
        source = template.render({**workload.values, **operators, **config}).source
        trials[config] = _trial(recorded, workload, config, target.key(source, workload, launches))
    if not any(trial.status is not Status.LIMIT for trial in trials.values()):
        raise InputError(
            f"holds none of the {len(pool)} valid configs on {workload}",
            path=path,
            remedy=f"{spec.path} or its template has changed since: record it again",
        )
    space = RecordedSpace(recording_name(path), path, workload, definition.space, pool, trials)
    require_correct(space)
    return space


def _trial(recorded: RecordedWorkload, workload: Workload, config: Config, key: str) -> Trial:
    program = recorded.programs.get(key)
    if program is None:
        return Trial(INITIAL, workload, config, Status.LIMIT, _UNRECORDED)
    outcome = program.outcome()
    return Trial(
        INITIAL, workload, config, outcome.status, outcome.reason, measurement=outcome.measurement
    )


def _require_same(path: Path, recording: Recording, definition: Definition) -> None:
    if recording.kernel != definition.spec.name:
        raise InputError(
            f"is a recording of {recording.kernel}, and {definition.spec.path} is the search space "
            f"of {definition.spec.name}",
            path=path,
            remedy="name the right search space with --space",
        )


def _workloads(
    path: Path, recording: Recording, definition: Definition, asked: Sequence[str]
) -> list[Workload]:
    spec = definition.spec
    if not asked:
        tuned = [one for one in spec.tuned if one.key in recording.workloads]
        return tuned or [workload_from_text(spec, key) for key in recording.workloads]
    chosen = list(dict.fromkeys(workload_from_text(spec, text) for text in asked))
    for workload in chosen:
        if workload.key not in recording.workloads:
            raise InputError(
                f"has no measurements for workload {workload.key}",
                path=path,
                remedy="recorded workloads: " + " ".join(recording.workloads),
            )
    return chosen
