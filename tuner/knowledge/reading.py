"""Read past searches from a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Select, Table, select

from tuner.knowledge.records import PastConfig, PastSearch, PastWorkload
from tuner.knowledge.rows import config_of, search_of, workload_of
from tuner.knowledge.schema import configs, searches, workloads

# Rows read at once: databases bound the names in one `in`.
_CHUNK = 500
# A store that was tampered with may hold any number.
MOST_CONFIGS = 64


def read_searches(connection: Connection, kernel: str | None, most: int) -> list[PastSearch]:
    """Read the newest `most` searches of a kernel, or of all, oldest first."""
    newest = select(searches).order_by(searches.c.created.desc(), searches.c.id.desc()).limit(most)
    if kernel is not None:
        newest = newest.where(searches.c.kernel == kernel)
    rows = _rows(connection, newest)[::-1]
    sizes = _grouped(connection, workloads, "search", [row["id"] for row in rows])
    numbers = [row["id"] for group in sizes.values() for row in group]
    tried = _grouped(connection, configs, "workload", numbers)
    made = (search_of(row, _workloads(sizes.get(row["id"], []), tried)) for row in rows)
    return [one for one in made if one is not None]


def _workloads(
    rows: list[Mapping[str, Any]], tried: Mapping[int, list[Mapping[str, Any]]]
) -> list[PastWorkload]:
    made = (workload_of(row, _configs(tried.get(row["id"], []))) for row in rows)
    return [one for one in made if one is not None]


def _configs(rows: list[Mapping[str, Any]]) -> list[PastConfig]:
    made = (config_of(row) for row in rows[:MOST_CONFIGS])
    return [one for one in made if one is not None]


def _grouped(
    connection: Connection, table: Table, column: str, numbers: list[int]
) -> dict[int, list[Mapping[str, Any]]]:
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for start in range(0, len(numbers), _CHUNK):
        chosen = table.c[column].in_(numbers[start : start + _CHUNK])
        for row in _rows(connection, select(table).where(chosen).order_by(table.c.id)):
            groups.setdefault(row[column], []).append(row)
    return groups


def _rows(connection: Connection, query: Select[Any]) -> list[Mapping[str, Any]]:
    return [dict(row) for row in connection.execute(query).mappings()]
