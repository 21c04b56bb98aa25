"""Edits of a session that no run of `tune` makes; a stranger's session may hold any of them."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

Edit = Callable[[Path], object]
Change = Callable[[Any], object]


def database(session: Path) -> Path:
    return session / "session.db"


def sql(*statements: str) -> Edit:
    """Run statements on the database."""

    def edit(session: Path) -> None:
        with closing(sqlite3.connect(database(session))) as raw, raw:
            for statement in statements:
                raw.execute(statement)

    return edit


def header(column: str, change: Change) -> Edit:
    """Change the JSON of the manifest or the environment; what `change` returns takes its place."""

    def edit(session: Path) -> None:
        with closing(sqlite3.connect(database(session))) as raw, raw:
            (text,) = raw.execute(f"SELECT {column} FROM session").fetchone()  # noqa: S608
            content = json.loads(text)
            changed = change(content)
            made = content if changed is None else changed
            raw.execute(f"UPDATE session SET {column} = ?", (json.dumps(made),))  # noqa: S608

    return edit


def record(kind: str, change: Change) -> Edit:
    """Change the JSON of the first record of a kind."""

    def edit(session: Path) -> None:
        with closing(sqlite3.connect(database(session))) as raw, raw:
            query = "SELECT id, content FROM records WHERE kind = ? ORDER BY id"
            number, text = raw.execute(query, (kind,)).fetchone()
            content = json.loads(text)
            changed = change(content)
            made = json.dumps(content if changed is None else changed)
            raw.execute("UPDATE records SET content = ? WHERE id = ?", (made, number))

    return edit


def added(kind: str, content: object) -> Edit:
    """Append a record; text is taken as it is."""

    def edit(session: Path) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        with closing(sqlite3.connect(database(session))) as raw, raw:
            raw.execute("INSERT INTO records (kind, content) VALUES (?, ?)", (kind, text))

    return edit


def put(**values: object) -> Change:
    """Set keys of an object."""
    return lambda content: content.update(values)


def within(*path: str | int, to: object) -> Change:
    """Set what stands at a path of keys and positions."""

    def change(content: Any) -> None:
        for step in path[:-1]:
            content = content[step]
        content[path[-1]] = to

    return change


def replaced(text: bytes | Callable[[bytes], bytes]) -> Edit:
    """Write other bytes in place of the database."""

    def edit(session: Path) -> None:
        path = database(session)
        path.write_bytes(text(path.read_bytes()) if callable(text) else text)

    return edit


def sidecar(name: str, content: bytes) -> Edit:
    return lambda session: (session / name).write_bytes(content)


def recreated(*statements: str) -> Edit:
    """Put something else in place of the table of records, with its rows in `held`."""
    return sql("ALTER TABLE records RENAME TO held", *statements)


FOREVER = (
    "WITH RECURSIVE more(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM more) "
    "SELECT id, 'trial' AS kind, '[]' AS content FROM more"
)
DEEP = "[" * 100_000 + "]" * 100_000
WORKLOAD = {"axes": [["R", 1], ["N", 2048]], "held_out": False}
OUTSIDE = "../../../outside"

SCHEMA_EDITS: Mapping[str, Edit] = {
    "no table of records": sql("DROP TABLE records"),
    "no table of the session": sql("DROP TABLE session"),
    "a view in place of a table": recreated("CREATE VIEW records AS SELECT * FROM held"),
    "a view without end": recreated(f"CREATE VIEW records AS {FOREVER}"),
    "a view beside the tables": sql(f"CREATE VIEW more AS {FOREVER}"),
    "a trigger": sql("CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM session; END"),
    "a trigger without end": sql(
        "CREATE TRIGGER t AFTER UPDATE ON session BEGIN "  # noqa: S608
        f"INSERT INTO records (kind, content) SELECT kind, content FROM ({FOREVER}); END"
    ),
    "another table": sql("CREATE TABLE other (x)"),
    "a virtual table": sql("CREATE VIRTUAL TABLE other USING fts5(x)"),
    "an index over an expression": sql("CREATE INDEX i ON records (hex(content))"),
    "a generated column": sql("ALTER TABLE records ADD COLUMN g AS (hex(zeroblob(1000000000)))"),
    "a column more": sql("ALTER TABLE session ADD COLUMN more"),
    "a schema that is none": sql(
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = 'CREATE TABLE records (' WHERE name = 'records'",
    ),
    "a newer schema": sql("PRAGMA user_version = 999"),
    "a negative schema": sql("PRAGMA user_version = -1"),
    "another program's database": sql("PRAGMA application_id = 1"),
}
FILE_EDITS: Mapping[str, Edit] = {
    "no database": replaced(b"not a database" * 99),
    "an empty file": replaced(b""),
    "a truncated file": replaced(lambda content: content[: len(content) // 2]),
    "a header alone": replaced(lambda content: content[:100]),
    "an overwritten page": replaced(lambda c: c[:4096] + b"\xff" * 4096 + c[8192:]),
    "a journal that is none": sidecar(
        "session.db-journal", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" * 99
    ),
    "a WAL that is none": sidecar("session.db-wal", b"\x37\x7f\x06\x82" * 999),
    "a shared memory that is none": sidecar("session.db-shm", b"\xff" * 32768),
}
VALUE_EDITS: Mapping[str, Edit] = {
    "no header": sql("DELETE FROM session"),
    "two headers": sql(
        "INSERT INTO session SELECT 2, manifest, environment, state, seconds, writer FROM session"
    ),
    "a manifest of bytes": sql("UPDATE session SET manifest = x'ff00'"),
    "a manifest that is a number": sql("UPDATE session SET manifest = 3"),
    "a manifest that is no JSON": sql("UPDATE session SET manifest = '{'"),
    "a deep manifest": sql(f"UPDATE session SET manifest = '{DEEP}'"),  # noqa: S608
    "an environment that is a list": header("environment", lambda _: [1, 2]),
    "an environment of numbers": header("environment", put(device=3)),
    "a rate that is no number": header("environment", put(streaming_gbps="fast")),
    "a rate that is infinite": header("environment", put(streaming_gbps="inf")),
    "a date that is none": header("environment", put(date=7)),
    "an unknown state": sql("UPDATE session SET state = 'flying'"),
    "seconds that are text": sql("UPDATE session SET seconds = 'long'"),
    "seconds that are infinite": sql("UPDATE session SET seconds = 9e999"),
    "seconds below zero": sql("UPDATE session SET seconds = -5.0"),
    "a kernel's name that leads outside": header("manifest", put(kernel=OUTSIDE)),
    "a kernel's name with an escape": header("manifest", put(kernel="\x1b]0;pwned\x07")),
    "a moment that is none": header("manifest", put(created="yesterday")),
    "no workloads": header("manifest", within("config", "workloads", to=[])),
    "an axis that leads outside": header(
        "manifest", within("config", "workloads", 0, "axes", 0, 0, to=OUTSIDE)
    ),
    "a negative size": header("manifest", within("config", "workloads", 0, "axes", 0, 1, to=-1)),
    "a huge size": header("manifest", within("config", "workloads", 0, "axes", 0, 1, to=10**30)),
    "negative trials": header("manifest", within("config", "trials", to=-4)),
    "an unknown searcher": header("manifest", within("config", "searcher", to="magic")),
    "an unknown device": header("manifest", within("config", "device", to="toaster")),
    "a search space that is a folder": header("manifest", within("config", "space", to="/usr")),
    "a search space that is a device": header(
        "manifest", within("config", "space", to="/dev/zero")
    ),
    "a recording that is a device": header(
        "manifest", within("config", "device", to="recorded:/dev/zero")
    ),
    "a path with NUL": header("manifest", within("config", "space", to="a\0b")),
    "a record of bytes": sql("UPDATE records SET content = x'ff' WHERE id = 3"),
    "text that is not UTF-8": sql("UPDATE records SET content = CAST(x'ff' AS TEXT) WHERE id = 3"),
    "a kind of an unknown name": added("magic", {}),
    "a kind that is a number": sql("UPDATE records SET kind = 3 WHERE id = 3"),
    "a record that is no JSON": added("trial", "{"),
    "a deep record": added("event: said", f'{{"round": 1, "entry": {{"a": {DEEP}}}}}'),
    "a huge text": sql(
        "UPDATE records SET content = printf('%.*c', 300000000, 'x') WHERE id = 3"
    ),
    "a negative id": sql("UPDATE records SET id = -id"),
    "a baseline without times": record("baseline", within("measurement", "times_us", to=[])),
    "a baseline of NaN": record("baseline", within("measurement", "times_us", to=[float("nan")])),
    "a baseline of zero": record("baseline", within("measurement", "times_us", to=[0.0])),
    "a trial without times": record("trial", within(0, "measurement", "times_us", to=[])),
    "a trial of infinite time": record(
        "trial", within(0, "measurement", "times_us", to=[float("inf")])
    ),
    "a trial of negative time": record("trial", within(0, "measurement", "times_us", to=[-1.0])),
    "a trial that ended at NaN": record("trial", within(1, to=float("nan"))),
    "a trial twice": sql(
        "INSERT INTO records (kind, content) SELECT kind, content FROM records WHERE kind = 'trial'"
    ),
    "a trial of an unknown candidate": record("trial", within(0, "candidate", to="r9")),
    "a candidate that is its own parent": record("candidate", put(parent="initial")),
    "a candidate of an unknown parent": record("candidate", put(parent="r9")),
    "a candidate that leads outside": added(
        "candidate",
        {"name": OUTSIDE, "template_text": "", "space_text": "", "parent": "initial"},
    ),
    "a comparison without rounds": record("comparison", put(rounds=[])),
    "a comparison of short rounds": record("comparison", put(rounds=[[1.0]])),
    "a comparison of zeros": record(
        "comparison", lambda c: c.update(rounds=[[0.0] * len(row) for row in c["rounds"]])
    ),
    "a comparison of huge times": record(
        "comparison", lambda c: c.update(rounds=[[1e308] * len(row) for row in c["rounds"]])
    ),
    "a result of speedup 0": record("result", put(speedup=0.0, tuned_us=0.0, interval=[0, 0])),
    "a result of speedup NaN": record("result", put(speedup=float("nan"))),
    "a result of an unknown candidate": record("result", put(candidate="r9")),
    "a result of an unknown workload": record("result", within("workload", "axes", 0, 1, to=77)),
    "a result of a config that is none": record("result", within("config", to={"items_": []})),
    "a result whose axis leads outside": record(
        "result", within("workload", "axes", 0, 0, to=OUTSIDE)
    ),
    "a withdrawal of nothing": added("withdrawal", {"workload": {"axes": [["X", 1]]}}),
    "energy over no time": added(
        "energy",
        {"workload": WORKLOAD, "kind": "idle", "window": {"energy_j": 1.0, "seconds": 0.0}},
    ),
    "an end that says nothing": added(
        "event: said", {"round": 1, "entry": {"type": "reply"}}
    ),
    "an entry without a type": added("event: said", {"round": 1, "entry": {}}),
    "a negative round": added(
        "event: outcome", {"round": -1, "outcome": {"speedup": 1.0, "over_base": None}}
    ),
    "an outcome of nothing": added(
        "event: outcome", {"round": 1, "outcome": {"speedup": 0.0, "over_base": -1.0}}
    ),
    "a candidate that nobody wrote": added(
        "event: candidate", {"round": 1, "name": "r1", "attempt": 1}
    ),
    "a profile of nothing": added(
        "event: profile",
        {
            "round": 0, "candidate": "r9", "workload": "?", "config": {}, "degree": "full",
            "kind": "memory", "metrics": {"x": 1.0}, "findings": [],
        },
    ),
    "a search that ended nowhere": added(
        "event: search ended", {"round": 0, "candidate": "r9", "workload": "?", "trials": -1}
    ),
}  # fmt: skip


def link(name: str) -> Edit:
    """Put a link to a file outside in a place of the session's."""

    def edit(session: Path) -> None:
        outside = session.parent / "outside" / "mine"
        outside.parent.mkdir(exist_ok=True)
        place = session / name
        if place.is_dir():
            for one in place.iterdir():
                one.unlink()
            place.rmdir()
        elif place.exists():
            outside.write_bytes(place.read_bytes())
        else:
            outside.write_text("mine", encoding="utf-8")
        place.unlink(missing_ok=True)
        place.symlink_to(outside.parent if name in ("tuned", "rounds") else outside)

    return edit


def fifo(name: str) -> Edit:
    def edit(session: Path) -> None:
        (session / name).unlink(missing_ok=True)
        os.mkfifo(session / name)

    return edit


PLACES = ("session.db", "session.db-wal", "session.lock", "optuna.journal")
LINKS: Mapping[str, Edit] = {
    **{f"a link in place of {name}": link(name) for name in (*PLACES, "tuned")},
    **{f"a FIFO in place of {name}": fifo(name) for name in PLACES},
}
