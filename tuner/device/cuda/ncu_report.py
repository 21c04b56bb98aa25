"""Read a report of Nsight Compute with NVIDIA's module beside it, faster than the tool's pages.

The module is https://docs.nvidia.com/nsight-compute/PythonReportInterface/index.html; values are in
base units, as pages have them where they are asked to.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner.compiler.command import NSIGHT_FOLDER, version_of
from tuner.device.base import LaunchCounts

_MODULE = "ncu_report"
_ENTRY = "launch__function_pcs"
# These have a value for each address of an instruction; of the samples, for those that have some.
_EXECUTED = "inst_executed"
_STALLED, _NOT_ISSUED = "smsp__pcsamp_warps_issue_stalled_", "_not_issued"
# What it raises where it is of another Python or older than what is called here, or cannot read.
_FAILURES = (
    *(ImportError, SyntaxError, AttributeError, LookupError, OSError),
    *(RuntimeError, SystemError, TypeError, ValueError),
)


class ReportReader:
    """Read reports of `tool`, as long as a module of it can."""

    def __init__(self, tool: Path | None) -> None:
        self._tool = tool

    @property
    def serves(self) -> bool:
        return self._module is not None

    def read(self, report: Path, names: Sequence[str]) -> list[LaunchCounts] | None:
        """Return each launch's counts, in order; None, and from then on, where the module fails.

        Without executions by address samples have no offset: nothing tells where the kernel starts.
        """
        if self._module is None:
            return None
        try:
            context = self._module.load_report(str(report))
            streams = map(context.range_by_idx, range(context.num_ranges()))
            actions = (s.action_by_idx(n) for s in streams for n in range(s.num_actions()))
            return [_read_launch(action, names) for action in actions]
        except _FAILURES:
            self._module = None
            return None

    @cached_property
    def _module(self) -> ModuleType | None:
        places = (folder / "extras" / "python" for folder in _list_folders(self._tool))
        there = (place for place in places if (place / f"{_MODULE}.py").is_file())
        return next(filter(None, map(_import_from, there)), None)


def _list_folders(tool: Path | None) -> Iterator[Path]:
    if tool is None:
        return
    tool = tool.resolve()
    yield from tool.parents[:3]  # it may be the program itself, in target/PLATFORM
    # In CUDA's `bin` is a script. A newer module reads what an older tool wrote.
    installed = [*tool.parents[1].glob("nsight-compute-*"), *NSIGHT_FOLDER.glob("[0-9]*")]
    yield from sorted(installed, key=version_of, reverse=True)


def _import_from(folder: Path) -> ModuleType | None:
    sys.path.insert(0, str(folder))  # for the library beside it, too
    try:
        return importlib.import_module(_MODULE)
    except _FAILURES:
        return None
    finally:
        sys.path.remove(str(folder))


def _read_launch(action: Any, names: Iterable[str]) -> LaunchCounts:
    metrics = ((name, action.metric_by_name(name)) for name in names)
    read = {name: metric.value() for name, metric in metrics if metric is not None}
    numbers = {name: value for name, value in read.items() if isinstance(value, int | float)}
    values = {name: float(value) for name, value in numbers.items() if math.isfinite(value)}
    reasons = [name for name in action.metric_names() if name.startswith(_STALLED)]
    # Where warps were sampled alone there are no samples of cycles in which nothing was issued.
    not_issued = [name for name in reasons if name.endswith(_NOT_ISSUED)] or reasons
    executed = _count_by_address(action, [_EXECUTED])
    samples = _count_by_address(action, not_issued if executed else [])
    start = _find_start(action, executed)
    by_offset = (
        {address - start: count for address, count in counts.items() if count}
        for counts in (samples, executed)
    )
    return LaunchCounts(action.name(action.NameBase_DEMANGLED), values, *by_offset)


def _count_by_address(action: Any, names: Iterable[str]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for metric in map(action.metric_by_name, names):
        if metric is not None and (addresses := metric.correlation_ids()) is not None:
            for n in range(metric.num_instances()):
                counts[addresses.as_uint64(n)] += metric.as_uint64(n)
    return counts


def _find_start(action: Any, executed: Iterable[int]) -> int:
    """Find the kernel's first address: every warp executes it, and what it calls may lie below."""
    entry = action.metric_by_name(_ENTRY)
    start = entry.as_uint64(0) if entry is not None and entry.num_instances() else -1
    return start if start in executed else min(executed, default=0)
