"""Reading a timeline of either profiler: torch.profiler's JSON, and what nsys exports as SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from pydantic import Field, TypeAdapter, ValidationError

from tuner.extensions.engines.timeline.chrome import GZIP, read_chrome
from tuner.extensions.engines.timeline.trace import Trace, TracedLaunch
from tuner.model.errors import InputError
from tuner.process.files import open_regular

SQLITE = b"SQLite format 3\0"
EXPORT = "nsys export --type sqlite --output trace.sqlite REPORT.nsys-rep"
_KERNELS, _COPIES, _FILLS, _GRAPHS = (
    f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
)
_SIZES = tuple(f"{what}{axis}" for what in ("grid", "block") for axis in "XYZ")
Count = Annotated[int, Field(ge=0)] | None
Nanoseconds = Annotated[int, Field(ge=0)]
_KERNEL_ROW = TypeAdapter(
    tuple[str, int, Nanoseconds, Count, Count, Count, Count, Count, Count, Count, Count, Count]
)
_OTHER_ROW = TypeAdapter(tuple[int, Nanoseconds, Count, Count])
_NODES = "nsys profile --trace=cuda --cuda-graph-trace=node ..."


def read(path: Path) -> Trace:
    """Read a timeline, in the order of its launches; raise `InputError` for anything else."""
    try:
        with open_regular(path) as file:
            head = file.read(256)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    if not head:
        raise InputError("an empty file", path=path, remedy=_formats())
    if head.startswith(SQLITE):
        return _read_nsys(path)
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise InputError("a report of nsys, not an export of it", path=path, remedy=f"`{EXPORT}`")
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(GZIP) or text[:1] in (b"{", b"["):
        return read_chrome(path)
    raise InputError(f"not a timeline: it begins with {head[:16]!r}", path=path, remedy=_formats())


def _formats() -> str:
    return f"read are torch.profiler's JSON (.json, .json.gz) and nsys's SQLite: `{EXPORT}`"


def _read_nsys(path: Path) -> Trace:
    address = f"file:{quote(str(path.resolve()))}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            found = database.execute(
                "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c "
                "WHERE m.type = 'table'"
            )
            tables: dict[str, set[str]] = {}
            for table, column in found:
                tables.setdefault(table, set()).add(column)
            _require_launches(path, database, tables)
            launches = sorted(_launches(database, tables), key=lambda one: one.start_us)
            gpu, rate = _gpu(database, tables)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise _damage_error(path, f"a row has {first['input']!r:.80}: {first['msg']}") from error
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise _damage_error(path, str(error)) from error
    return Trace(path, tuple(launches), gpu, rate)


def _damage_error(path: Path, what: str) -> InputError:
    message, remedy = f"not a whole export of nsys: {what}", f"export it again: `{EXPORT}`"
    return InputError(message, path=path, remedy=remedy)


def _require_launches(
    path: Path, database: sqlite3.Connection, tables: dict[str, set[str]]
) -> None:
    """Refuse what has no kernels; tables without rows are not written."""
    if "StringIds" not in tables:
        some = ", ".join(sorted(tables)[:5]) or "none"
        message = f"an SQLite database of something else than nsys; its tables: {some}"
        raise InputError(message, path=path, remedy=f"`{EXPORT}`")
    if _rows(database, tables, _KERNELS):
        needed = {"start", "end"} - tables[_KERNELS]
        if needed or not {"demangledName", "shortName"} & tables[_KERNELS]:
            missing = ", ".join(sorted(needed)) or "demangledName"
            message = f"{_KERNELS} has no column {missing}"
            raise InputError(message, path=path, remedy="export it with nsys 2021.1 or later")
        return
    graphs = _rows(database, tables, _GRAPHS)
    message, remedy = "no GPU kernels in it", "`nsys profile --trace=cuda ...`"
    if graphs:
        message = f"{graphs:,} CUDA graphs ran, and their kernels were not recorded"
        remedy = f"profile again with `{_NODES}`"
    raise InputError(message, path=path, remedy=remedy)


def _rows(database: sqlite3.Connection, tables: dict[str, set[str]], table: str) -> int:
    if table not in tables:
        return 0
    (count,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
    return int(count)


def _launches(database: sqlite3.Connection, tables: dict[str, set[str]]) -> Iterator[TracedLaunch]:
    has = tables[_KERNELS]
    name = "demangledName" if "demangledName" in has else "shortName"
    known = _or_null(has, "deviceId", "streamId", "graphNodeId", *_SIZES)
    kernels = database.execute(
        f"SELECT coalesce(s.value, 'unnamed'), start, end - start, {known} FROM {_KERNELS} "  # noqa: S608
        f"LEFT JOIN StringIds s ON s.id = {name}"
    )
    for row in kernels:
        kernel, start_ns, ns, device, stream, node, *sizes = _KERNEL_ROW.validate_python(row)
        x, y, z, *block = (size or 1 for size in sizes)
        yield TracedLaunch(
            name=kernel,
            start_us=start_ns / 1e3,
            us=ns / 1e3,
            grid=None if None in sizes else (x, y, z),
            block=None if None in sizes else (block[0], block[1], block[2]),
            device=device or 0,
            stream=stream or 0,
            replayed=bool(node),
        )
    for table, label in ((_COPIES, "Memcpy"), (_FILLS, "Memset"), (_GRAPHS, "CUDA graph")):
        if table in tables:
            known = _or_null(tables[table], "deviceId", "streamId")
            found = database.execute(f"SELECT start, end - start, {known} FROM {table}")  # noqa: S608
            for row in found:
                start_ns, ns, device, stream = _OTHER_ROW.validate_python(row)
                yield TracedLaunch(
                    label, start_ns / 1e3, ns / 1e3, device=device or 0, stream=stream or 0
                )


def _or_null(has: set[str], *columns: str) -> str:
    """List columns, NULL for those that an older export does not have."""
    return ", ".join(column if column in has else "NULL" for column in columns)


def _gpu(database: sqlite3.Connection, tables: dict[str, set[str]]) -> tuple[str, float | None]:
    has = tables.get("TARGET_INFO_GPU", set())
    if "name" not in has:
        return "", None
    row = database.execute(
        f"SELECT name, {_or_null(has, 'memoryBandwidth')} FROM TARGET_INFO_GPU LIMIT 1"  # noqa: S608
    ).fetchone()
    name, rate = row or ("", None)
    return str(name or ""), rate / 1e9 if isinstance(rate, int) and rate > 0 else None
