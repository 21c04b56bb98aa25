"""Both profilers' files become the same launches; what is no timeline is told apart."""

from __future__ import annotations

import gzip
import json
import sqlite3
import tracemalloc
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from timelines import (
    CLOSED_GRAPH,
    COPIES,
    LAYER,
    eager_layer,
    graph_launch,
    kernel,
    nsys_export,
    operator,
    replayed_layer,
    torch_trace,
)

from tuner.extensions.engines.timeline import read as reading
from tuner.extensions.engines.timeline.read import read
from tuner.extensions.engines.timeline.trace import Call, Trace, TracedLaunch, base_name
from tuner.model.errors import InputError


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read(path)
    assert caught.value.exit_code == 2
    assert caught.value.path == path
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def test_a_kernel_has_its_grid_its_stream_and_the_operator_that_launched_it(path: Path) -> None:
    events = [
        operator(4, "sgl_kernel::silu_and_mul", [[3, 8], [3, 16]], **{"Input type": ["a", "b"]}),
        kernel("void act<1>()", 10.0, 2.5, grid=[3, 1, 1], block=[64, 2, 1], stream=9, external=4),
    ]
    trace = read(torch_trace(path, events))
    call = Call("sgl_kernel::silu_and_mul", ((3, 8), (3, 16)), ("", ""), ("a", "b"))
    launch = TracedLaunch("void act<1>()", 10.0, 2.5, (3, 1, 1), (64, 2, 1), 0, 9, call)
    assert trace == Trace(path, (launch,), "NVIDIA H200")


def test_launches_come_in_the_order_of_time(path: Path) -> None:
    events = [kernel("b", 20.0, 1.0), kernel("a", 10.0, 1.0)]
    assert [one.name for one in read(torch_trace(path, events)).launches] == ["a", "b"]


def test_copies_and_fills_are_work_too_and_annotations_are_not(path: Path) -> None:
    copy = kernel("Memcpy HtoD (Pageable -> Device)", 0.0, 1.0) | {"cat": "gpu_memcpy"}
    del copy["args"]["grid"], copy["args"]["block"]
    note = kernel("ProfilerStep#3", 0.0, 100.0) | {"cat": "gpu_user_annotation"}
    (launch,) = read(torch_trace(path, [copy, note])).launches
    assert (launch.name, launch.grid) == ("Memcpy HtoD (Pageable -> Device)", None)


def test_a_graphs_kernels_belong_to_no_operator_even_inside_one(path: Path) -> None:
    events = [
        operator(4, "sgl_kernel::silu_and_mul", [[3, 8], [3, 16]]),
        graph_launch(77),
        kernel("k", 10.0, 1.0, external=4, correlation=77),
    ]
    (launch,) = read(torch_trace(path, events)).launches
    assert launch.replayed
    assert launch.call is None


def test_operators_of_several_processes_with_one_number_are_nobodys(path: Path) -> None:
    calls = [operator(4, "aten::mm", [[8, 8]]), operator(4, "aten::mm", [[9, 9]])]
    (launch,) = read(torch_trace(path, [*calls, kernel("k", 1.0, 1.0, external=4)])).launches
    assert launch.call is None


def test_a_list_of_tensors_has_no_shape_of_its_own(path: Path) -> None:
    events = [operator(4, "aten::cat", [[[2, 3], [4, 3]], []]), kernel("k", 1.0, 1.0, external=4)]
    (launch,) = read(torch_trace(path, events)).launches
    assert launch.call == Call("aten::cat", ((), ()), ("", ""))


def test_a_gzipped_trace_and_a_bare_list_are_the_same(path: Path, tmp_path: Path) -> None:
    plain = read(replayed_layer(path))
    packed, bare = tmp_path / "trace.json.gz", tmp_path / "bare.json"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    bare.write_text(json.dumps(json.loads(path.read_text())["traceEvents"]))
    assert read(packed).launches == read(bare).launches == plain.launches


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_it_does_not_matter_where_the_pieces_of_the_text_end(
    path: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read(eager_layer(path))
    monkeypatch.setattr(reading, "PIECE", piece)
    assert read(path) == whole


def test_a_long_trace_is_never_in_memory_as_a_whole(path: Path) -> None:
    stack = {"ph": "X", "cat": "python_function", "name": "f" * 4000, "ts": 0.0, "dur": 1.0}
    size = torch_trace(path, [*[stack] * 4000, kernel("k", 0.0, 1.0)]).stat().st_size
    tracemalloc.start()
    try:
        assert len(read(path).launches) == 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size > 16_000_000
    assert peak < 8_000_000


def test_nsys_tells_the_same_as_torch_but_for_shapes(tmp_path: Path) -> None:
    kernels = [(name, 1000 * n, 1000 * n + 500, grid) for n, (name, grid, *_) in enumerate(LAYER)]
    trace = read(nsys_export(tmp_path / "trace.sqlite", kernels, COPIES, node=3))
    assert (trace.gpu, trace.memory_gbps) == ("NVIDIA H200", 4917.0)
    first, second = trace.launches[:2]
    assert first == TracedLaunch(
        LAYER[0][0], 0.0, 0.5, (LAYER[0][1], 1, 1), (128, 1, 1), 0, 7, replayed=True
    )
    assert second.start_us == 1.0


def test_a_graph_that_nsys_did_not_look_into_is_one_launch(tmp_path: Path) -> None:
    trace = read(nsys_export(tmp_path / "trace.sqlite", [("k", 0, 1000, 1)], CLOSED_GRAPH))
    assert [(one.name, one.us) for one in trace.launches] == [("k", 1.0), ("CUDA graph", 4.0)]


def test_a_launch_counts_until_the_next_of_its_stream_begins(path: Path) -> None:
    long = kernel("long", 0.0, 5e6)
    others = [kernel("short", 100.0 * n, 20.0) for n in range(1, 9)]
    elsewhere = [kernel("other", 50.0, 1000.0, stream=8), {**kernel("c", 10.0, 500.0), "pid": 1}]
    trace = read(torch_trace(path, [long, *others, *elsewhere]))
    assert {one.name: one.us for one in trace.launches} == {
        **{"long": 100.0, "short": 20.0},
        **{"other": 1000.0, "c": 500.0},
    }
    assert (trace.cut, trace.kernel_us) == (1, 100.0 + 8 * 20.0 + 1500.0)
    exported = nsys_export(path.with_suffix(".sqlite"), [("long", 0, 900, 1), ("k", 100, 200, 1)])
    assert [one.us for one in read(exported).launches] == [0.1, 0.1]


def test_idle_time_is_what_no_kernel_of_a_gpu_covers(path: Path) -> None:
    first = [kernel("a", 0.0, 10.0), kernel("b", 5.0, 10.0, stream=8), kernel("c", 20.0, 5.0)]
    other = [kernel("a", 100.0, 10.0, device=1)]
    trace = read(torch_trace(path, [*first, *other]))
    assert (trace.kernel_us, trace.busy_us, trace.span_us) == (35.0, 30.0, 35.0)
    assert trace.idle_share == pytest.approx(5 / 35)


@pytest.mark.parametrize(
    "name",
    [
        "void (anonymous namespace)::act<__nv_bfloat16, ((anonymous namespace)::K)0, true>(P<1>)",
        "void <unnamed>::act<__nv_bfloat16, (<unnamed>::K)0, (bool)1>(<unnamed>::P)",
        "act",
        "std::enable_if_t<(8 > 0), void> act<c10::BFloat16, &(float silu<float>(float const&))>()",
    ],
)
def test_a_kernel_has_one_name_however_its_template_is_written(name: str) -> None:
    assert base_name(name) == "act"


def test_a_profile_of_the_cpu_alone_is_told(path: Path) -> None:
    said = refusal(torch_trace(path, [operator(1, "aten::mm", [[8, 8]])]))
    assert "a trace of 1 events, none of them on a GPU" in said
    assert "ProfilerActivity.CUDA" in said


def test_torchs_own_profile_of_the_cpu_is_told() -> None:
    path = Path(__file__).parent / "data" / "cpu_of_torch_2_11.json"
    assert "a trace of 13 events, none of them on a GPU" in refusal(path)


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_cut_off_trace_is_told(path: Path, share: float) -> None:
    text = eager_layer(path).read_text()
    path.write_text(text[: int(share * len(text))])
    assert "the JSON ends in the middle" in refusal(path)


def test_a_cut_off_gzip_is_told(path: Path, tmp_path: Path) -> None:
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(eager_layer(path).read_bytes())[:-30])
    assert "the JSON ends in the middle" in refusal(packed)


def test_an_event_with_a_wrong_time_is_named(path: Path) -> None:
    said = refusal(torch_trace(path, [kernel("k", 1.0, 1.0), kernel("k", 1.0, -5.0)]))
    assert "event 1: `dur` is -5.0" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "an empty file"),
        (b"kernel,us\nk,3\n", "not a timeline: it begins with b'kernel,us"),
        (b'{"schemaVersion": 1}', "JSON without `traceEvents`"),
        (b'{"traceEvents": [}, {"ph": "X"}]}', "not a trace in JSON: Expecting value"),
        (b'{"traceEvents" []}', "'[' stands where : should"),
        (b"\x1f\x8bno gzip at all", "not a trace in JSON"),
        (b"SQLite format 3\0 and no more", "not a whole export of nsys"),
    ],
)
def test_what_is_no_timeline_is_told_apart(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert said in refusal(path)


def test_a_report_of_nsys_is_to_be_exported_first(tmp_path: Path) -> None:
    path = tmp_path / "trace.nsys-rep"
    path.write_bytes(b"\x00\x01report")
    assert "nsys export --type sqlite" in refusal(path)


def test_a_database_of_something_else_is_told_by_its_tables(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE trials (number INTEGER)")
        database.commit()
    assert "something else than nsys; its tables: trials" in refusal(path)


def test_an_export_without_kernels_is_told(tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "trace.sqlite", [])
    assert "no GPU kernels in it" in refusal(path)


def test_an_export_of_closed_graphs_alone_says_how_to_open_them(tmp_path: Path) -> None:
    said = refusal(nsys_export(tmp_path / "trace.sqlite", [], CLOSED_GRAPH))
    assert "1 CUDA graphs ran, and their kernels were not recorded" in said
    assert "--cuda-graph-trace=node" in said


def test_an_export_with_a_column_missing_names_it(tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "trace.sqlite", [("k", 0, 1, 1)])
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN end TO stop")
        database.commit()
    assert "has no column end" in refusal(path)


def test_a_kernel_that_ends_before_it_starts_is_told(tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "trace.sqlite", [("k", 5000, 1000, 1)])
    assert "not a whole export of nsys: a row has -4000" in refusal(path)


def test_a_category_that_is_no_text_is_passed_over(path: Path) -> None:
    odd = kernel("k", 0.0, 1.0) | {"cat": {}}
    assert len(read(torch_trace(path, [odd, kernel("k", 1.0, 1.0)])).launches) == 1


@pytest.mark.parametrize("profiler", ["torch", "nsys"])
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, profiler: str) -> None:
    kernels = [(name, 1000 * n, 1000 * n + 500, grid) for n, (name, grid, *_) in enumerate(LAYER)]
    whole = tmp_path / "whole"
    nsys_export(whole, kernels, COPIES) if profiler == "nsys" else eager_layer(whole)
    content, draw = whole.read_bytes(), np.random.default_rng(7)
    for _ in range(300):
        damaged, place = bytearray(content), draw.integers(16, len(content))
        damaged[place : place + draw.integers(40)] = draw.bytes(draw.integers(3))
        whole.write_bytes(damaged)
        with suppress(InputError):
            assert read(whole).launches
