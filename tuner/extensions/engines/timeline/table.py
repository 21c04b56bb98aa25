"""The rows of a timeline: what each operator takes, and what tuning it could give to the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os.path import relpath
from pathlib import Path

from tuner.extensions.engines.timeline.operators import UNKNOWN, Label, rules
from tuner.extensions.engines.timeline.read import read
from tuner.extensions.engines.timeline.trace import TracedLaunch, base_name
from tuner.model.errors import ExpressionError, InputError
from tuner.model.kernel import Workload
from tuner.model.statistics import Interval, floor_us
from tuner.space.load import Definition, workload_from_text

NAME_LENGTH = 40
# Axes that a shape has in no file's name: of these a model runs with many, or no trace says them.
OF_STEPS = frozenset({"M", "EP"})


@dataclass(frozen=True, slots=True)
class KernelUse:
    """One kernel with one grid: how often it ran, and for how long in all."""

    name: str
    grid: tuple[int, int, int] | None
    calls: int
    us: float


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest that a session compared with what production calls: a config, or a peer.

    `speedup` is over that, or over the baseline where nobody said what production calls.
    """

    name: str
    us: float
    speedup: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Row:
    """What belongs together: an operator on one workload, or a kind of other work.

    `calls` counts the operator's calls where that is known, else launches. `floor_us` is the
    least that its bytes take, and `at_most` the share of all kernel time that a kernel as fast as
    that would save: both None where the workload or the bandwidth is not known. `best` is what
    sessions know of it, `after_us` what a call takes in a trace of afterwards.
    """

    label: Label
    kernels: tuple[KernelUse, ...]
    calls: int
    us: float
    share: float
    floor_us: float | None = None
    best: Best | None = None
    after_us: float | None = None

    @property
    def name(self) -> str:
        known = self.label.operator or self.label.kind
        return short(self.kernels[0].name) if known == UNKNOWN else known

    @property
    def per_call_us(self) -> float:
        return self.us / self.calls

    @property
    def gained(self) -> float | None:
        """The share of all kernel time that was saved since."""
        if self.after_us is None or not self.us:
            return None
        return self.share * (1.0 - self.after_us / self.per_call_us)

    @property
    def at_most(self) -> float | None:
        if self.floor_us is None:
            return None
        slack_us = max(self.per_call_us - self.floor_us, 0.0)
        return self.share * slack_us / self.per_call_us if slack_us else 0.0


@dataclass(frozen=True, slots=True)
class TuneCommand:
    """The arguments of a run that tunes one operator for the workloads that the step has.

    `at_most` is the share of all kernel time that its rows could save, None where none is known.
    """

    words: tuple[str, ...]
    at_most: float | None


def rows_of(
    launches: Iterable[tuple[TracedLaunch, Label]],
    spaces: Mapping[str, Definition],
    gbps: float | None,
) -> tuple[Row, ...]:
    """Sum launches up, the largest share first; shares are of the sum of all their times."""
    uses: dict[object, dict[tuple[str, object], KernelUse]] = {}
    kinds: dict[object, Label] = {}
    launches_of: dict[str, int] = {}
    for launch, label in launches:
        whole = replace(label, launches=1)
        group = (whole, launch.name if label.kind == UNKNOWN else "")
        kinds[group] = whole
        launches_of[launch.name] = label.launches
        of_group = uses.setdefault(group, {})
        key = launch.name, launch.grid
        used = of_group.get(key) or KernelUse(launch.name, launch.grid, 0, 0.0)
        of_group[key] = replace(used, calls=used.calls + 1, us=used.us + launch.us)
    total = sum(use.us for one in uses.values() for use in one.values())
    rows = []
    for name, by_grid in uses.items():
        label = kinds[name]
        kernels = sorted(by_grid.values(), key=lambda use: -use.us)
        us = sum(use.us for use in kernels)
        # Launches of one call may have different grids.
        counts = Counter[int]()
        for use in kernels:
            counts[launches_of[use.name]] += use.calls
        calls = sum(count // n for n, count in counts.items() if n)
        least_us = None
        if (definition := spaces.get(label.operator)) and label.workload is not None and gbps:
            with suppress(ExpressionError):
                spec = definition.chosen(dict(label.choices)).spec
                least_us = floor_us(spec.min_bytes.integer(label.workload.values), gbps)
        calls = calls or max(use.calls for use in kernels)
        share = us / total if total else 0.0
        rows.append(Row(label, tuple(kernels), calls, us, share, least_us))
    return tuple(sorted(rows, key=lambda row: (-row.us, row.name)))


def commands_of(rows: Iterable[Row], spaces: Mapping[str, Definition]) -> tuple[TuneCommand, ...]:
    """Make a command for each operator and choice with known workloads, most to gain first."""
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[Row]] = {}
    for row in rows:
        if row.label.workload is not None and row.label.operator in spaces:
            groups.setdefault((row.label.operator, row.label.choices), []).append(row)
    commands = []
    for (operator, choices), found in groups.items():
        words = [relpath(spaces[operator].spec.source)]
        for name, value in choices:
            words += ["--operator", f"{name}={value}"]
        for workload in dict.fromkeys(row.label.workload for row in found):
            words += ["--workload", workload.key if workload else ""]
        known = [row.at_most for row in found if row.at_most is not None]
        commands.append(TuneCommand(tuple(words), sum(known) if known else None))
    return tuple(sorted(commands, key=lambda command: -(command.at_most or 0.0)))


def stated_workloads(texts: Iterable[str], spaces: Mapping[str, Definition]) -> dict[str, Workload]:
    """Read `OPERATOR:T=64,H=4096`; raise `InputError` for an unknown operator or a wrong size."""
    stated: dict[str, Workload] = {}
    for text in texts:
        operator, colon, sizes = text.partition(":")
        if not colon or operator not in spaces:
            remedy = f"write OPERATOR:T=64,H=4096; here are {', '.join(sorted(spaces)) or 'none'}"
            raise InputError(
                f"{text!r} names no operator whose search space is here", remedy=remedy
            )
        if operator in stated:
            raise InputError(f"{operator} is given two workloads", remedy="give each operator one")
        stated[operator] = workload_from_text(spaces[operator].spec, sizes)
    return stated


def without_shapes(rows: Iterable[Row]) -> tuple[Row, ...]:
    """List the rows of operators whose workload is not known."""
    return tuple(row for row in rows if row.label.operator and row.label.workload is None)


def traffic_of(traces: Sequence[Path]) -> dict[tuple[str, frozenset[str]], float]:
    """Sum how long operators run in traces with shapes, whatever the number of tokens is.

    Raises `InputError` where no trace has shapes of any operator.
    """
    took: dict[tuple[str, frozenset[str]], float] = {}
    for path in traces:
        for launch in read(path).launches:
            label = rules().label(launch)
            if label.workload is not None:
                axes = ((axis, size) for axis, size in label.workload.axes if axis not in OF_STEPS)
                shape = label.operator, frozenset(f"{axis}={size}" for axis, size in axes)
                took[shape] = took.get(shape, 0.0) + launch.us
    if traces and not took:
        raise InputError(
            "no shapes of any operator in it",
            path=traces[0],
            remedy="profile with record_shapes=True and without CUDA graphs",
        )
    return took


def short(name: str) -> str:
    """Cut a kernel's name down to a cell of a table."""
    plain = base_name(name)
    return plain if len(plain) <= NAME_LENGTH else f"{plain[: NAME_LENGTH - 3]}..."
