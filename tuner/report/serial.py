"""The one serializer of what `--json` prints: values as JSON has them, numbers rounded once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.report.formatting import round_value


def plain(value: object) -> object:
    """Make a value of JSON: floats rounded as they are told, workloads and configs by their names.

    What a config holds is kept to the last digit.
    """
    if isinstance(value, float):
        return round_value(value)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Workload):
        return value.values
    if isinstance(value, Config):
        return dict(value)
    if isinstance(value, Mapping):
        return {name: plain(inside) for name, inside in value.items()}
    if isinstance(value, Iterable):
        return [plain(inside) for inside in value]
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def pick(source: object, names: str, **others: object) -> dict[str, object]:
    """Make an object of some attributes, by name; `KEY=PATH.TO.NAME` renames, `others` come last.

    What belongs to nothing is null.
    """
    pairs = [name.partition("=") for name in names.split()]
    found = {key: reduce(_of, (name or key).split("."), source) for key, _, name in pairs}
    return {key: plain(value) for key, value in {**found, **others}.items()}


def pick_each(sources: Iterable[object], names: str) -> list[dict[str, object]]:
    return [pick(source, names) for source in sources]


def _of(source: object, name: str) -> object:
    return None if source is None else getattr(source, name)
