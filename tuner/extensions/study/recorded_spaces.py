"""A recorded space: every valid config of one kernel on one GPU, with the trial that it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.app.locate import look_for_space
from tuner.app.plan import read_space
from tuner.device.base import CompileTarget, Outcome
from tuner.device.recorded.recording import Recording, load_recording
from tuner.extensions.study.kernel_tuner_files import MeasuredSpace, is_foreign, load_measured
from tuner.model.config import Config, SearchSpace
from tuner.model.errors import InputError
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Measurement, Status, Trial
from tuner.search.pool import Pool, valid_configs
from tuner.space.callables import load_template
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
    def place(self) -> str:
        return f" on {self.workload}" if self.workload.axes else ""

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
    trials = {}
    for config, answer in measured.answers.items():
        status, measurement = answer.status, None
        if status is Status.CORRECT and answer.time_us is not None:
            times_us = (answer.time_us,)
            measurement = Measurement(times_us, answer.calls, answer.sets, answer.stopped_early)
        reason = "" if measurement else answer.reason
        trials[config] = Trial(
            INITIAL, NO_WORKLOAD, config, status, reason, measurement=measurement
        )
    pool = Pool.of(measured.parameters, measured.answers)
    space = SearchSpace(measured.parameters)
    return _require_solvable(
        RecordedSpace(recording_name(path), path, NO_WORKLOAD, space, pool, trials)
    )


def _require_solvable(space: RecordedSpace) -> RecordedSpace:
    if all(time is None for time in space.times_us):
        raise InputError(
            f"none of its {len(space.trials)} configs is correct{space.place}",
            path=space.path,
            remedy="a search can be replayed where at least one config has a time",
        )
    return space


def recording_name(path: Path) -> str:
    """Name a recording by its file, without the endings."""
    return path.name.partition(".")[0] or path.name


def recorded_spaces(
    path: Path, space: Path | None = None, workloads: Sequence[str] = ()
) -> tuple[RecordedSpace, ...]:
    """Read a recording's spaces, with the search space that belongs to it or is given."""

    def find(recording: Path) -> Definition:
        if space is not None:
            return read_space(space)
        # It is named after `<folder>/recordings/<gpu>/<kernel>.json.xz`.
        folders = recording.resolve().parents
        kernel = folders[min(2, len(folders) - 1)] / f"{recording_name(recording)}.cu"
        found = look_for_space(kernel, Path.cwd())
        if found is None:
            raise InputError(
                f"there is no search space named {kernel.stem}.yaml, which says what was recorded",
                path=recording,
                remedy="name it with --space",
            )
        return read_space(found)

    return load_spaces(path, find, workloads)


# `tune record` leaves out what is decided without a GPU: whoever answers decides it again.
_UNRECORDED = "not in the recording: it does not compile or is over a limit"


def load_spaces(
    path: Path, find: Callable[[Path], Definition], workloads: Sequence[str] = ()
) -> tuple[RecordedSpace, ...]:
    """Read a Kernel Tuner cache, T4 results or a recording of `tune record`.

    `find` finds the search space of the last kind, which names no configs. `workloads`, as
    `--workload` takes them, chooses among those of a recording; without, those that the search
    space tunes and the recording holds, or else all of it. A foreign file has one, which only ours
    name. Raises `DeviceError` for a file that cannot be read and `InputError` for one of no use.
    """
    if is_foreign(path):
        measured = load_measured(path)
        own = measured.own.workload if measured.own else None
        if workloads and set(workloads) != {own}:
            raise InputError(
                f"holds one workload, {own or 'which it does not name'}",
                path=path,
                remedy="--workload chooses among those of a recording of `tune record`: "
                "leave it out",
            )
        return (space_of(measured, path),)
    recording, definition = load_recording(path), find(path)
    if recording.kernel != definition.spec.name:
        raise InputError(
            f"is a recording of {recording.kernel}, and {definition.spec.path} is the search space "
            f"of {definition.spec.name}",
            path=path,
            remedy="name the right search space with --space",
        )
    spec, recorded_workloads = definition.spec, recording.workloads
    if workloads:
        chosen = list(dict.fromkeys(workload_from_text(spec, text) for text in workloads))
    else:
        tuned = [one for one in spec.tuned if one.key in recorded_workloads]
        chosen = tuned or [workload_from_text(spec, key) for key in recorded_workloads]
    for workload in chosen:
        if workload.key not in recorded_workloads:
            raise InputError(
                f"has no measurements for workload {workload.key}",
                path=path,
                remedy="recorded workloads: " + " ".join(recorded_workloads),
            )
    template = load_template(spec, definition.space)
    return tuple(_render_all(path, recording, definition, template, one) for one in chosen)


def _render_all(
    path: Path, recording: Recording, definition: Definition, template: Template, workload: Workload
) -> RecordedSpace:
    """Find the programs of all valid configs by rendering the template, uncompiled."""
    recorded, operators = recording.workloads[workload.key], recording.operators
    definition = definition.chosen(operators)
    spec = definition.spec
    target = CompileTarget(spec, operators, recording.device.info())
    names = target.names(workload)
    pool = valid_configs(definition.space, names)
    if (tried := recorded.list_tried()) is not None:
        pool = pool.restricted(tried)
    trials = {}
    for config in pool:
        launches = spec.candidate_launches({**names, **config})
        written = {**workload.values, **operators, **config}
        source = template.render(written, definition.space.derived).source
        program = recorded.programs.get(target.key(source, workload, launches, config))
        outcome = program.outcome() if program else Outcome(Status.RESOURCE_LIMIT, _UNRECORDED)
        said = outcome.status, outcome.reason
        trials[config] = Trial(INITIAL, workload, config, *said, measurement=outcome.measurement)
    if all(trial.status is Status.RESOURCE_LIMIT for trial in trials.values()):
        raise InputError(
            f"holds none of the {len(pool)} valid configs on {workload}",
            path=path,
            remedy=f"{spec.path} or its template has changed since: record it again",
        )
    name = recording_name(path)
    return _require_solvable(RecordedSpace(name, path, workload, definition.space, pool, trials))
