"""A recorded space: every valid config of one kernel on one GPU, with the trial that it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.device.base import CompileTarget
from tuner.device.recorded.foreign import ForeignAnswer, MeasuredSpace, is_foreign
from tuner.device.recorded.kernel_tuner_files import load_measured
from tuner.device.recorded.recording import RecordedWorkload, Recording, load_recording
from tuner.model.config import Config, SearchSpace
from tuner.model.errors import InputError
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Measurement, Status, Trial
from tuner.search.pool import Pool, valid_configs
from tuner.space.load import Definition, workload_from_text
from tuner.space.template import Template

NO_WORKLOAD = Workload(())


@dataclass(frozen=True, slots=True)
class RecordedSpace:
    """What a search is replayed over: the pool it may choose from and the trial of each config.

    `name` is the recording's; `workload` is `NO_WORKLOAD` where the recording holds only one.
    """

    name: str
    path: Path
    workload: Workload
    space: SearchSpace
    pool: Pool
    trials: Mapping[Config, Trial]

    @property
    def label(self) -> str:
        return f"{self.name} {self.workload}".rstrip()

    @property
    def times_us(self) -> list[float | None]:
        return [trial.time_us for trial in self.trials.values()]

    @property
    def optimum_us(self) -> float:
        return min(time for time in self.times_us if time is not None)

    @property
    def worst_us(self) -> float:
        """The worst time of any correct config: what a search has before it finds one."""
        return max(time for time in self.times_us if time is not None)

    @property
    def failed(self) -> int:
        return sum(time is None for time in self.times_us)


def space_of(measured: MeasuredSpace, path: Path) -> RecordedSpace:
    """Make the recorded space of a foreign file; its configs are those that the file holds.

    Raises `InputError` where no config is correct.
    """
    space = SearchSpace(measured.parameters)
    pool = Pool.of(measured.parameters, measured.answers)
    trials = {config: _trial(config, answer) for config, answer in measured.answers.items()}
    found = RecordedSpace(recording_name(path), path, NO_WORKLOAD, space, pool, trials)
    require_correct(found)
    return found


def require_correct(space: RecordedSpace) -> None:
    """Raise `InputError` for a space in which there is nothing to find."""
    if all(time is None for time in space.times_us):
        where = f" on {space.workload}" if space.workload.axes else ""
        raise InputError(
            f"none of its {len(space.trials)} configs is correct{where}",
            path=space.path,
            remedy="a search can be replayed where at least one config has a time",
        )


def recording_name(path: Path) -> str:
    """Name a recording by its file, without the endings."""
    return path.name.partition(".")[0] or path.name


def _trial(config: Config, answer: ForeignAnswer) -> Trial:
    if answer.status is not Status.CORRECT or answer.time_us is None:
        return Trial(INITIAL, NO_WORKLOAD, config, answer.status, answer.reason)
    measured = Measurement((answer.time_us,), answer.calls, answer.sets, answer.stopped_early)
    return Trial(INITIAL, NO_WORKLOAD, config, Status.CORRECT, measurement=measured)


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
    target = CompileTarget(spec, operators, recording.device.info())
    names = target.names(workload)
    pool = valid_configs(definition.space, names)
    tried = recorded.tried()
    if tried is not None:
        pool = pool.restricted(tried)
    trials = {}
    for config in pool:
        launches = spec.candidate_launches({**names, **config})
        source = template.render({**workload.values, **operators, **config}).source
        trials[config] = _rendered_trial(
            recorded, workload, config, target.key(source, workload, launches)
        )
    if not any(trial.status is not Status.RESOURCE_LIMIT for trial in trials.values()):
        raise InputError(
            f"holds none of the {len(pool)} valid configs on {workload}",
            path=path,
            remedy=f"{spec.path} or its template has changed since: record it again",
        )
    space = RecordedSpace(recording_name(path), path, workload, definition.space, pool, trials)
    require_correct(space)
    return space


def _rendered_trial(
    recorded: RecordedWorkload, workload: Workload, config: Config, key: str
) -> Trial:
    program = recorded.programs.get(key)
    if program is None:
        return Trial(INITIAL, workload, config, Status.RESOURCE_LIMIT, _UNRECORDED)
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


def load_spaces(
    path: Path, find: Callable[[Path], Definition], workloads: Sequence[str] = ()
) -> tuple[RecordedSpace, ...]:
    """Read a Kernel Tuner cache, T4 results or a recording of `tune record`.

    `find` finds the search space of the last kind, which names no configs. `workloads`
    chooses among those of a recording; a foreign file has one, which only ours name. Raises
    `DeviceError` for a file that cannot be read and `InputError` for one of no use.
    """
    if not is_foreign(path):
        return tuple(rendered_spaces(path, find, workloads))
    measured = load_measured(path)
    own = measured.own.workload if measured.own else None
    if workloads and set(workloads) != {own}:
        raise InputError(
            f"holds one workload, {own or 'which it does not name'}",
            path=path,
            remedy="--workload chooses among those of a recording of `tune record`: leave it out",
        )
    return (space_of(measured, path),)
