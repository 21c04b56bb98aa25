"""A recorded space: every valid config of one kernel on one GPU, with the trial that it gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tuner.device.foreign.measured import Answer, MeasuredSpace
from tuner.errors import InputError
from tuner.kernel import Workload
from tuner.search.pool import Pool
from tuner.space import Config, Parameter, SearchSpace
from tuner.trial import INITIAL, Measurement, Status, Trial

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
        """Name the space: the recording's name, and the workload where there are several."""
        return f"{self.name} {self.workload}".rstrip()

    @property
    def times_us(self) -> list[float | None]:
        """The time of every config, None where it failed."""
        return [trial.time_us for trial in self.trials.values()]

    @property
    def optimum_us(self) -> float:
        """The best time of any config."""
        return min(time for time in self.times_us if time is not None)

    @property
    def worst_us(self) -> float:
        """The worst time of any correct config: what a search has before it finds one."""
        return max(time for time in self.times_us if time is not None)

    @property
    def failed(self) -> int:
        """How many configs have no time."""
        return sum(time is None for time in self.times_us)


def space_of(measured: MeasuredSpace, path: Path) -> RecordedSpace:
    """Make the recorded space of a foreign file; its configs are those that the file holds.

    Raises `InputError` where no config is correct.
    """
    space = SearchSpace(measured.parameters)
    rows = pool_rows(measured.parameters, measured.answers)
    trials = {config: _trial(config, answer) for config, answer in measured.answers.items()}
    found = RecordedSpace(
        recording_name(path), path, NO_WORKLOAD, space, Pool(measured.parameters, rows), trials
    )
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


def pool_rows(
    parameters: tuple[Parameter, ...], configs: Iterable[Config]
) -> np.ndarray[tuple[int, int], np.dtype[np.uint16]]:
    """Encode configs as sorted rows of value indices, as a pool holds them."""
    lookups = [{value: i for i, value in enumerate(p.values)} for p in parameters]
    rows = [
        [lookup[config[p.name]] for p, lookup in zip(parameters, lookups, strict=True)]
        for config in configs
    ]
    return np.array(sorted(rows), dtype=np.uint16).reshape(len(rows), len(parameters))


def _trial(config: Config, answer: Answer) -> Trial:
    if answer.status is not Status.CORRECT or answer.time_us is None:
        return Trial(INITIAL, NO_WORKLOAD, config, answer.status, answer.reason)
    measured = Measurement((answer.time_us,), answer.calls, answer.sets, answer.stopped_early)
    return Trial(INITIAL, NO_WORKLOAD, config, Status.CORRECT, measurement=measured)
