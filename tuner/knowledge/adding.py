"""Write past searches to a store, and delete them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sqlalchemy import Connection, Table, delete, insert, select

from tuner.knowledge.records import PastSearch
from tuner.knowledge.schema import configs, searches, workloads


def add_search(connection: Connection, found: PastSearch) -> bool:
    """Add a search with all it found; False where it is there already."""
    uid = found.uid
    if connection.execute(select(searches.c.id).where(searches.c.uid == uid)).first():
        return False
    row = {
        "uid": uid,
        "kernel": found.kernel,
        "operators": json.dumps(dict(found.operators), sort_keys=True),
        "device": found.device,
        "architecture": found.architecture,
        "candidate": found.candidate,
        "template_sha": found.template_sha,
        "parameters": json.dumps(found.parameters),
        "tuner_version": found.tuner_version,
        "created": found.created,
        "state": found.state,
    }
    search = _inserted(connection, searches, row)
    for one in found.workloads:
        axes = {"axes": json.dumps(one.workload.axes), "baseline_us": one.baseline_us}
        made = _inserted(connection, workloads, {"search": search, **axes})
        rows = [
            {
                "workload": made,
                "config": _pairs(config.config),
                "status": config.status.value,
                "time_us": config.time_us,
            }
            for config in one.configs
        ]
        if rows:
            connection.execute(insert(configs), rows)
    return True


def forget_searches(connection: Connection, kernel: str, device: str | None) -> int:
    """Delete the searches of a kernel, on all devices or one; return how many there were."""
    chosen = select(searches.c.id).where(searches.c.kernel == kernel)
    if device is not None:
        chosen = chosen.where(searches.c.device == device)
    of_workloads = select(workloads.c.id).where(workloads.c.search.in_(chosen))
    connection.execute(delete(configs).where(configs.c.workload.in_(of_workloads)))
    connection.execute(delete(workloads).where(workloads.c.search.in_(chosen)))
    # MySQL cannot delete from the table that it chooses by.
    numbers = list(connection.execute(chosen).scalars())
    connection.execute(delete(searches).where(searches.c.id.in_(numbers)))
    return len(numbers)


def _inserted(connection: Connection, table: Table, row: Mapping[str, object]) -> int:
    key = connection.execute(insert(table), dict(row)).inserted_primary_key
    assert key is not None
    return int(key[0])


def _pairs(values: Mapping[str, object]) -> str:
    return json.dumps(list(values.items()))
