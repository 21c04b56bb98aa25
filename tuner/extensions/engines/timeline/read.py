"""Reading a timeline of either profiler: torch.profiler's JSON, and what nsys exports as SQLite."""

from __future__ import annotations

import gzip
import io
import json
import re
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TextIO
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tuner.extensions.engines.timeline.trace import Call, Shape, Trace, TracedLaunch
from tuner.model.errors import InputError
from tuner.model.kernel import Dim3
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
    tuple[
        str, int, Nanoseconds, Count, Count, Count, Count, Count, Count, Count, Count, Count, Count
    ]
)
_OTHER_ROW = TypeAdapter(tuple[int, Nanoseconds, Count, Count, Count])
_FORMATS = f"read are torch.profiler's JSON (.json, .json.gz) and nsys's SQLite: `{EXPORT}`"
_NODES = "nsys profile --trace=cuda --cuda-graph-trace=node ..."
GZIP = b"\x1f\x8b"
# Characters read at a time, and the longest event or header: one with a stack has some KiB.
PIECE = 1 << 20
LONGEST = 1 << 26
AGAIN = (
    "write it again: `with torch.profiler.profile(record_shapes=True) as p: ...`, "
    'then `p.export_chrome_trace("trace.json")`'
)
GPU_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_HOST_LAUNCH = frozenset({"cuda_runtime", "cuda_driver"})
_BLANK = re.compile(r"[ \t\n\r]*")

Time = Annotated[float, Field(allow_inf_nan=False)]


def read(path: Path) -> Trace:
    """Read a timeline, in the order of its launches; raise `InputError` for anything else."""
    try:
        with open_regular(path) as file:
            head = file.read(256)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    if not head:
        raise InputError("an empty file", path=path, remedy=_FORMATS)
    if head.startswith(SQLITE):
        return _read_nsys(path)
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise InputError("a report of nsys, not an export of it", path=path, remedy=f"`{EXPORT}`")
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(GZIP) or text[:1] in (b"{", b"["):
        return read_chrome(path)
    raise InputError(f"not a timeline: it begins with {head[:16]!r}", path=path, remedy=_FORMATS)


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
            return Trace.of(path, _launches(database, tables), *_gpu(database, tables))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise _damage_error(path, f"a row has {first['input']!r:.80}: {first['msg']}") from error
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise _damage_error(path, str(error)) from error


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
    known = _or_null(has, "deviceId", "streamId", "globalPid", "graphNodeId", *_SIZES)
    kernels = database.execute(
        f"SELECT coalesce(s.value, 'unnamed'), start, end - start, {known} FROM {_KERNELS} "  # noqa: S608
        f"LEFT JOIN StringIds s ON s.id = {name}"
    )
    for row in kernels:
        kernel, start_ns, ns, device, stream, process, node, *sizes = _KERNEL_ROW.validate_python(
            row
        )
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
            process=process,
        )
    for table, label in ((_COPIES, "Memcpy"), (_FILLS, "Memset"), (_GRAPHS, "CUDA graph")):
        if table in tables:
            known = _or_null(tables[table], "deviceId", "streamId", "globalPid")
            found = database.execute(f"SELECT start, end - start, {known} FROM {table}")  # noqa: S608
            for row in found:
                start_ns, ns, device, stream, process = _OTHER_ROW.validate_python(row)
                yield TracedLaunch(
                    name=label,
                    start_us=start_ns / 1e3,
                    us=ns / 1e3,
                    device=device or 0,
                    stream=stream or 0,
                    process=process,
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


class _Told(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Launched(_Told):
    external: int | None = Field(None, alias="External id")
    correlation: int | None = None
    device: int = 0
    stream: int = 0
    grid: Dim3 | None = None
    block: Dim3 | None = None


class _Work(_Told):
    name: str
    ts: Time
    dur: Annotated[Time, Field(ge=0)]
    pid: int | str | None = None
    args: _Launched = _Launched.model_construct()


class _Called(_Told):
    external: int | None = Field(None, alias="External id")
    correlation: int | None = None
    dims: list[object] = Field([], alias="Input Dims")
    values: list[object] = Field([], alias="Concrete Inputs")
    types: list[str] = Field([], alias="Input type")


class _HostCall(_Told):
    name: str = ""
    args: _Called = _Called.model_construct()


class _Events:
    """Collects what events tell; which operator launched a kernel is known at the end only."""

    def __init__(self) -> None:
        self.gpu = ""
        self._works: list[tuple[TracedLaunch, int | None, int | None]] = []
        # The same texts and sizes come again and again, each time as another object.
        self._same: dict[object, Any] = {}
        self._operators: dict[int, Call | None] = {}
        self._replays: set[int] = set()

    def add(self, event: object) -> None:
        """Take one event; raise `ValidationError` for one that is not as the profiler writes it."""
        if not isinstance(event, dict):
            return
        category = str(event.get("cat"))
        if category in GPU_WORK:
            work = _Work.model_validate(event)
            details, once = work.args, self._same.setdefault
            launch = TracedLaunch(
                name=once(work.name, work.name),
                start_us=work.ts,
                us=work.dur,
                grid=once(details.grid, details.grid),
                block=once(details.block, details.block),
                device=details.device,
                stream=details.stream,
                process=work.pid,
            )
            self._works.append((launch, details.external, details.correlation))
        elif category == "cpu_op":
            self._add_operator(_HostCall.model_validate(event))
        elif category in _HOST_LAUNCH:
            host = _HostCall.model_validate(event)
            if "GraphLaunch" in host.name and host.args.correlation is not None:
                self._replays.add(host.args.correlation)

    def add_devices(self, devices: object) -> None:
        """Take the name of the first GPU."""
        if isinstance(devices, list) and devices and isinstance(devices[0], dict):
            self.gpu = str(devices[0].get("name", ""))

    def launches(self) -> Iterator[TracedLaunch]:
        for launch, external, correlation in self._works:
            if correlation in self._replays:
                yield replace(launch, replayed=True)
            elif external is not None and (call := self._operators.get(external)) is not None:
                yield replace(launch, call=call)
            else:
                yield launch

    def _add_operator(self, operator: _HostCall) -> None:
        key = operator.args.external
        if key is None:
            return
        inputs = operator.args
        shapes, values = tuple(map(_shape, inputs.dims)), tuple(map(str, inputs.values))
        call = Call(operator.name, shapes, values, tuple(inputs.types))
        call = self._same.setdefault(call, call)
        # Traces of several processes in one file count their operators anew.
        same = self._operators.get(key, call) == call
        self._operators[key] = call if same else None


def read_chrome(path: Path) -> Trace:
    """Read a Chrome trace of torch.profiler, gzipped or not; raise `InputError` for anything else.

    The text is parsed piece by piece. Kept are the GPU's work and one record for each different
    operator and shape: some 0.5 KB a kernel, 0.1 KB an operator's call.
    """
    events, seen = _Events(), 0
    with _open_text(path) as file, _told_apart(path):
        for event in _members(_Text(file, path), events):
            try:
                events.add(event)
            except ValidationError as error:
                first = error.errors(include_url=False, include_context=False)[0]
                where = ".".join(map(str, first["loc"]))
                what = f"event {seen}: `{where}` is {first['input']!r:.80}: {first['msg']}"
                raise InputError(what, path=path, remedy=AGAIN) from error
            seen += 1
    trace = Trace.of(path, events.launches(), events.gpu)
    if not trace.launches:
        raise InputError(
            f"a trace of {seen:,} events, none of them on a GPU",
            path=path,
            remedy="profile with ProfilerActivity.CUDA among the activities, on a machine with a "
            "GPU, and end the profile after torch.cuda.synchronize()",
        )
    return trace


class _Text:
    """JSON text of which only a part is in memory."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._decoder = json.JSONDecoder(strict=False)
        self._text, self._at, self._ended = "", 0, False

    def peek(self) -> str:
        """Skip blanks and return the next character, "" at the end."""
        while True:
            if blank := _BLANK.match(self._text, self._at):
                self._at = blank.end()
            if self._at < len(self._text) or not self._more(PIECE):
                return self._text[self._at : self._at + 1]

    def take(self, wanted: str) -> str:
        """Take one of the wanted characters; raise `ValueError` for another."""
        found = self.peek()
        if not found:
            raise EOFError
        if found not in wanted:
            raise ValueError(f"{found!r} stands where {' or '.join(wanted)} should")
        self._at += 1
        return found

    def value(self) -> object:
        """Take the next value, of any kind."""
        self.peek()
        piece = PIECE
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
                # A number that ends where the text in memory does may go on.
                if end < len(self._text) or self._ended:
                    self._at = end
                    return value
            except json.JSONDecodeError as error:
                # The text ends where more of it was expected: in a string, a word or between them.
                left = len(error.doc.rstrip()) - error.pos
                cut_off = error.msg.startswith("Unterminated") or left < len("false")
                if self._ended and cut_off:
                    raise EOFError from error
                if self._ended or len(self._text) - self._at > LONGEST:
                    raise ValueError(error.msg) from error
            self._more(piece)
            piece *= 2

    def _more(self, length: int) -> bool:
        read = self._file.read(length)
        self._text, self._at = self._text[self._at :] + read, 0
        self._ended = not read
        return bool(read)


def _members(text: _Text, events: _Events) -> Iterator[object]:
    """Yield the events of a list, or of `traceEvents` of an object, and tell of the GPUs."""
    if text.peek() == "[":
        yield from _items(text)
        return
    found = False
    for _ in _each(text, "{", "}"):
        key = text.value()
        text.take(":")
        if key == "traceEvents" and text.peek() == "[":
            found = True
            yield from _items(text)
        elif key == "deviceProperties":
            events.add_devices(text.value())
        else:
            text.value()
    if not found:
        raise LookupError


def _items(text: _Text) -> Iterator[object]:
    for _ in _each(text, "[", "]"):
        yield text.value()


def _each(text: _Text, opening: str, closing: str) -> Iterator[None]:
    """Stop before each member of a list or an object, and take what stands between them."""
    text.take(opening)
    if text.peek() == closing:
        text.take(closing)
        return
    yield
    while text.take(f",{closing}") != closing:
        yield


@contextmanager
def _open_text(path: Path) -> Iterator[TextIO]:
    with open_regular(path) as file:
        if file.peek(2).startswith(GZIP):
            with gzip.open(file, "rt", encoding="utf-8-sig", errors="replace") as unpacked:
                yield unpacked
        else:
            yield io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace")


@contextmanager
def _told_apart(path: Path) -> Iterator[None]:
    """Say in the user's words why a file is no trace."""
    try:
        yield
    except EOFError as error:
        raise InputError(
            "the JSON ends in the middle: the profiler was still writing, or the copy is cut off",
            path=path,
            remedy=AGAIN,
        ) from error
    except LookupError as error:
        raise InputError(
            "JSON without `traceEvents`: not a trace", path=path, remedy=AGAIN
        ) from error
    except (ValueError, RecursionError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"not a trace in JSON: {error}", path=path, remedy=AGAIN) from error


def _shape(dims: object) -> Shape:
    """Read the sizes of one input; a list of tensors has none of its own."""
    if not isinstance(dims, list) or not all(isinstance(size, int) for size in dims):
        return ()
    return tuple(dims)
