"""NVIDIA's `ncu_report` as its documentation describes it; a report is JSON, ranges of launches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

ENTRY, EXECUTED = "launch__function_pcs", "inst_executed"
STALL = "smsp__pcsamp_warps_issue_stalled_{}_not_issued"


class IMetric:
    def __init__(self, value: Any = None, instances: Any = (), ids: Any = None) -> None:
        self._value, self._instances, self._ids = value, instances, ids

    def value(self, idx: int | None = None) -> Any:
        return self._value if idx is None else self._instances[idx]

    def as_uint64(self, *instance: int) -> int:
        value = self.value(*instance)
        return int(value) if isinstance(value, int | float) else 0

    def num_instances(self) -> int:
        return len(self._instances)

    def correlation_ids(self) -> IMetric | None:
        return None if self._ids is None else IMetric(instances=self._ids)


class IAction:
    NameBase_FUNCTION, NameBase_DEMANGLED, NameBase_MANGLED = range(3)

    def __init__(self, name: str, metrics: dict[str, Any]) -> None:
        self._name, self._metrics = name, metrics

    def name(self, name_base: int = NameBase_FUNCTION) -> str:
        return self._name if name_base == self.NameBase_DEMANGLED else self._name.partition("(")[0]

    def metric_names(self) -> tuple[str, ...]:
        return tuple(self._metrics)

    def metric_by_name(self, metric_name: str) -> IMetric | None:
        stored = self._metrics.get(metric_name)
        return None if stored is None else IMetric(**stored)


class IRange:
    def __init__(self, actions: list[Any]) -> None:
        self._actions = actions

    def num_actions(self) -> int:
        return len(self._actions)

    def action_by_idx(self, idx: int) -> IAction | None:
        return IAction(*self._actions[idx]) if idx < len(self._actions) else None


class IContext:
    def __init__(self, ranges: list[Any]) -> None:
        self._ranges = ranges

    def num_ranges(self) -> int:
        return len(self._ranges)

    def range_by_idx(self, idx: int) -> IRange | None:
        return IRange(self._ranges[idx]) if idx < len(self._ranges) else None


def load_report(file_name: str) -> IContext:
    try:
        return IContext(json.loads(Path(file_name).read_text(encoding="utf-8"))["ranges"])
    except (ValueError, KeyError) as error:
        raise RuntimeError(f"{file_name} is no report") from error


def put_module(folder: Path, *, head: str = "import _ncu_report\n") -> Path:
    """Lay it under a folder of the tool, to begin with `head` and a library beside it."""
    place = folder / "extras" / "python"
    place.mkdir(parents=True)
    (place / "_ncu_report.py").touch()
    file = Path(shutil.copy(__file__, place / "ncu_report.py"))
    future = "from __future__ import annotations\n"
    text = file.read_text(encoding="utf-8").replace(future, future + head, 1)
    file.write_text(text, encoding="utf-8")
    return place
