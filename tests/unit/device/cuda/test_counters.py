"""Nsight Compute: how it is run, and every way in which that may end.

The tool itself needs a GPU (tests/gpu); here a script of its name does what a real one does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fake_ncu_report import STALL, put_module
from fake_tools import PRELUDE, alive, put_on_path, seen
from faults import wait_until

from tuner.device.base import Counted, LaunchCounts, Outcome, Program
from tuner.device.cuda import counters as counters_module
from tuner.device.cuda import ncu_report
from tuner.device.cuda.counters import (
    PERMISSION_TEXT,
    NsightCompute,
    find_ncu,
    raw_counters,
    source_counts,
    trouble,
    unknown_counters,
)
from tuner.device.layout import Arena, lay_out
from tuner.model.kernel import KernelSpec, Launch, Workload
from tuner.model.trial import Status

Count = Callable[..., Counted]
Place = Callable[[Program], Arena | Outcome]

# Counts what programs do whose `source_key` tells it: a report has their launches as pages show
# them and as the module reads them.
TOOL = """\
import json, sys

options = dict(a[2:].partition("=")[::2] for a in sys.argv[1:] if a.startswith("--"))

def print_raw(launches):
    print('"ID","Kernel Name",' + ",".join('"%s"' % name for name in launches[0][1]))
    print('"","",' + ",".join('"unit"' for _ in launches[0][1]))
    for n, (kernel, counters) in enumerate(launches):
        cells = ['"%d"' % n, '"%s(float *)"' % kernel, *map('"{}"'.format, counters.values())]
        print(",".join(cells))

if "import" in options:
    with open({log}, "a") as log:
        print(json.dumps(dict(key="page " + options["page"])), file=log)
    launches = json.load(open(options["import"]))["shown"]
    if options["page"] == "raw":
        print_raw(launches)
    for kernel, _ in launches if options["page"] == "source" else []:
        print('"Kernel Name","%s(float *)"' % kernel)
        print('"Address","Source","# Samples","Instructions Executed"')
        print('"0x7000","LDG","2","64"')
        print('"0x7010","EXIT","6","8"')
    sys.exit(0)

{prelude}
programs = [job.values[0].values for job in jobs]
what, kernels = programs[-1][0], [launch.values[0] for launch in programs[-1][2]]
names = options["metrics"].split(",")
with open({log}, "a") as log:
    given = dict(pid=os.getpid(), key=what, jobs=len(jobs), sizes=sizes, options=options)
    given["environment"] = {k: os.environ.get(k) for k in ("LC_ALL", "NV_COMPUTE_PROFILER_X")}
    print(json.dumps(dict(given, names=names)), file=log)

if {silent}:
    print("libnvidia-ml.so.1: cannot open shared object file", file=sys.stderr)
    sys.exit(127)
if {refused}:
    print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", flush=True)
if "lacking" in names:
    print("==ERROR== Failed to find metric regex:^lacking")
    sys.exit(1)
say("ready")
for job in jobs:
    say("arrays", arrays=[])
    if what == "hangs":
        hang()
    if what == "refused":
        say("failed", error="CUDA_ERROR_INVALID_VALUE", shortage=False)
    else:
        print('==PROF== Profiling "scale": 0%....50%....', end="", flush=True)
        say("done")
if {refused} or what == "refused":
    print("==WARNING== No kernels were profiled.")
    sys.exit(0)
if what == "loses one":
    kernels = kernels[1:]
counters = dict.fromkeys(names + ["launch__grid_size"], "1,000")
if what == "no values":
    counters = dict.fromkeys(names, "n/a")
launches = [(kernel, counters) for kernel in kernels]
metrics = {name: {"value": 1e3 if text == "1,000" else text} for name, text in counters.items()}
for name, counts in (("inst_executed", [64, 8]), ({stall}, [2, 6])) if what != "no places" else ():
    metrics[name] = {"value": sum(counts), "instances": counts, "ids": [0x7000, 0x7010]}
read = [[kernel + "(float *)", metrics] for kernel in kernels]
ranges = "of a later tool" if what == "later" else "ranges"
with open(options["export"] + ".ncu-rep", "w") as report:
    json.dump({"shown": launches, ranges: [read]}, report)
if options.get("page") == "raw" and what != "prints no page":
    print()
    print_raw(launches)
""".replace("{prelude}", PRELUDE).replace("{stall}", repr(STALL.format("wait")))
DATA = Path(__file__).parent / "data"
RAW, SOURCE, NO_PERMISSION = (
    (DATA / f"ncu_{name}.txt").read_text(encoding="utf-8")
    for name in ("raw", "source", "no_permission")
)
WORKLOAD, OTHER = Workload.of({"T": 8}), Workload.of({"T": 3})
LAUNCHES = tuple(Launch(name, (1, 1, 1), (32, 1, 1)) for name in ("scale", "sum"))


@pytest.fixture
def spec(make_spec: Callable[..., KernelSpec]) -> KernelSpec:
    return make_spec(("y", "float32", ("T",), "output"), ("x", "float32", ("T",), "input"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def put_tool(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def put(*, refused: bool = False, silent: bool = False) -> None:
        put_on_path(
            "ncu", TOOL, tmp_path, monkeypatch, log=str(log), refused=refused, silent=silent
        )
        monkeypatch.setattr(ncu_report, "NSIGHT_FOLDER", tmp_path / "opt")

    return put


@pytest.fixture
def place(spec: KernelSpec) -> Place:
    def place(program: Program) -> Arena | Outcome:
        if program.source_key == "finds no room":
            return Outcome(Status.RESOURCE_LIMIT, "no room")
        layout = lay_out(spec, program.workload.values)
        return Arena(program.workload.key, layout, b"handle", None)

    return place


@pytest.fixture
def opened(put_tool: Callable[..., None], place: Place) -> Iterator[NsightCompute]:
    put_tool()
    counters = NsightCompute(0, place)
    yield counters
    counters.close()


@pytest.fixture
def count(opened: NsightCompute) -> Count:
    def count(key: str, *names: str, workload: Workload = WORKLOAD) -> Counted:
        return opened.count(Program(key, workload, LAUNCHES), names or ("a__b.sum",))

    return count


def test_each_launch_has_what_was_asked_for_and_its_samples(count: Count) -> None:
    counted = count("honest", "a__b.sum", "c__d.pct")
    assert counted.reason == ""
    assert [launch.kernel for launch in counted.launches] == ["scale", "sum"]
    for launch in counted.launches:
        assert launch.values == {"a__b.sum": 1000.0, "c__d.pct": 1000.0}
        assert launch.samples == {0x00: 2, 0x10: 6}
        assert launch.executed == {0x00: 64, 0x10: 8}


def test_a_second_call_is_counted_with_the_clocks_left_alone_and_english_numbers(
    count: Count, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NV_COMPUTE_PROFILER_X", "1")
    count("honest")
    given = seen(log)[0]
    assert given["jobs"] == 2
    expected = {
        **{"launch-skip": "2", "launch-count": "2", "replay-mode": "kernel"},
        **{"clock-control": "none", "cache-control": "all"},
    }
    assert given["options"].items() >= expected.items()
    assert given["environment"] == {"LC_ALL": "C", "NV_COMPUTE_PROFILER_X": None}


def test_it_is_tried_on_a_kernel_once(opened: NsightCompute, count: Count, log: Path) -> None:
    assert opened.refusal() == ""
    assert opened.refusal() == ""
    count("honest")
    assert [one["key"] for one in seen(log)] == ["probe", "honest", "page source"]
    assert seen(log)[0]["options"]["launch-skip"] == "0"


def test_a_profile_starts_the_tool_twice_and_shows_that_it_works(
    opened: NsightCompute, count: Count, log: Path
) -> None:
    assert count("honest").launches
    assert opened.refusal() == ""
    assert [one["key"] for one in seen(log)] == ["honest", "page source"]
    assert count("prints no page").launches == count("honest").launches
    assert [one["key"] for one in seen(log)][2:4] == ["prints no page", "page raw"]


@pytest.fixture
def module(tmp_path: Path, opened: NsightCompute) -> Iterator[None]:
    """What NVIDIA's tool brings, beside the one that is opened."""
    put_module(tmp_path)
    yield
    for name in ("ncu_report", "_ncu_report"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("module")
def test_with_its_module_a_profile_starts_the_tool_once_and_prints_nothing(
    count: Count, log: Path
) -> None:
    counted = count("honest", "a__b.sum", "lacking", "c__d.pct")
    values = {"a__b.sum": 1000.0, "c__d.pct": 1000.0}
    places = {0x00: 2, 0x10: 6}, {0x00: 64, 0x10: 8}
    assert counted.launches == tuple(LaunchCounts(n, values, *places) for n in ("scale", "sum"))
    assert [one["key"] for one in seen(log)] == ["honest", "honest"]
    assert not any("page" in one["options"] for one in seen(log))


@pytest.mark.usefixtures("module")
def test_what_the_module_cannot_read_is_printed_from_then_on(count: Count, log: Path) -> None:
    first, second = count("later"), count("later")
    assert first == second
    assert first.launches[1].executed == {0x00: 64, 0x10: 8}
    assert [one["key"] for one in seen(log)] == [
        *("later", "page raw", "page source"),
        *("later", "page source"),
    ]


@pytest.mark.usefixtures("module")
def test_places_that_the_module_does_not_know_are_printed(count: Count, log: Path) -> None:
    assert count("no places").launches[0].samples == {0x00: 2, 0x10: 6}
    assert [one["key"] for one in seen(log)] == ["no places", "page source"]


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("loses one", "Nsight Compute counted 1 of 2 launches"),
        ("no values", "Nsight Compute gave no values"),
    ],
)
def test_its_module_gives_the_same_reasons(count: Count, key: str, reason: str) -> None:
    assert count(key) == Counted(reason=reason)


def test_inputs_are_drawn_for_each_workload(count: Count, log: Path, spec: KernelSpec) -> None:
    count("honest")
    count("honest", workload=OTHER)
    first, second = (one for one in seen(log) if "sizes" in one)
    assert first["sizes"][0] == first["sizes"][1] >= spec.footprint_bytes(WORKLOAD)
    assert second["sizes"][0] >= spec.footprint_bytes(OTHER)


def test_a_counter_that_the_chip_lacks_costs_only_itself(count: Count, log: Path) -> None:
    counted = count("honest", "a__b.sum", "lacking", "c__d.pct")
    assert [launch.values.keys() for launch in counted.launches] == [{"a__b.sum", "c__d.pct"}] * 2
    assert [len(one["names"]) for one in seen(log) if "names" in one] == [3, 2]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("refused", "failed under Nsight Compute: CUDA_ERROR_INVALID_VALUE"),
        ("loses one", "Nsight Compute counted 1 of 2 launches"),
        ("no values", "Nsight Compute gave no values"),
        ("finds no room", "no room"),
    ],
)
def test_a_program_without_counts_has_a_reason(count: Count, key: str, reason: str) -> None:
    assert count(key) == Counted(reason=reason)
    assert count("honest").launches  # the others keep theirs


def test_a_hang_is_ended_with_all_that_it_started(
    count: Count, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert count("honest").launches
    monkeypatch.setattr(counters_module, "TIMEOUT_S", 1.0)
    started = time.monotonic()
    assert count("hangs").reason == "Nsight Compute did not end within 1 s"
    assert time.monotonic() - started < 60
    group = seen(log)[-1]["pid"]
    # On a busy machine what was killed takes a moment to be gone.
    wait_until(lambda: not alive(group), "the end of all that it started")


def test_without_permission_there_is_a_remedy_and_nothing_more_is_run(
    put_tool: Callable[..., None], place: Place, log: Path
) -> None:
    put_tool(refused=True)
    counters = NsightCompute(0, place)
    for _ in range(2):
        counted = counters.count(Program("a", WORKLOAD, LAUNCHES), ["a__b.sum"])
        assert counted.reason == PERMISSION_TEXT
    assert counters.refusal() == PERMISSION_TEXT
    assert [one["key"] for one in seen(log)] == ["a", "probe"]
    counters.close()


def test_a_tool_that_does_not_start_says_why(
    put_tool: Callable[..., None], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_tool(silent=True)
    with closing(NsightCompute(0, place)) as counters:
        assert counters.refusal() == (
            "Nsight Compute did not start: libnvidia-ml.so.1: cannot open shared object file"
        )
    monkeypatch.setattr(counters_module, "find_ncu", lambda: None)
    with closing(NsightCompute(0, place)) as missing:
        assert "CUDA_HOME" in missing.refusal()
        assert not missing.count(Program("a", WORKLOAD, LAUNCHES), ["a__b.sum"]).launches


def test_the_tool_on_path_comes_first(put_tool: Callable[..., None], tmp_path: Path) -> None:
    put_tool()
    assert find_ncu() == tmp_path / "bin" / "ncu"


def test_closing_removes_the_report(opened: NsightCompute, count: Count) -> None:
    count("honest")
    folder = opened._file.parent
    assert opened._file.is_file()
    opened.close()
    assert not folder.exists()


def test_each_launch_has_its_counters() -> None:
    assert raw_counters(RAW) == [
        (
            "scale(float *, const float *, int)",
            {"dram__bytes.sum": 1234567.0, "lts__t_sector_hit_rate.pct": 12.5},
        ),
        ("other<4>(float *)", {"dram__bytes.sum": 2500.0}),
    ]


@pytest.mark.parametrize("cell", ["n/a", "", "nan", "inf", "65,77", "(1, 2, 3)", "1.234.567"])
def test_what_is_no_plain_number_is_left_out(cell: str) -> None:
    ((_, counters), _) = raw_counters(RAW.replace("1,234,567", cell))
    assert "dram__bytes.sum" not in counters


@pytest.mark.parametrize("text", ["", NO_PERMISSION, RAW.partition('"0"')[0]])
def test_a_text_without_launches_has_none(text: str) -> None:
    assert raw_counters(text) == []
    assert source_counts(text) == []


def test_samples_and_executions_are_counted_from_the_start_of_the_code() -> None:
    assert source_counts(SOURCE) == [
        LaunchCounts(
            "scale(float *, const float *, int)",
            {},
            {0x00: 2, 0x10: 1050},
            {0x00: 4096, 0x10: 4096},
        ),
        LaunchCounts("other<4>(float *)", {}, {0x00: 4}),
    ]


def test_missing_permission_is_told_with_its_remedy() -> None:
    assert trouble(NO_PERMISSION) == PERMISSION_TEXT
    assert "NVreg_RestrictProfilingToAdminUsers=0" in PERMISSION_TEXT


def test_the_first_error_that_explains_something_is_given() -> None:
    cause = "Profiling failed because a driver resource was unavailable."
    text = (
        "==WARNING== Backing up device memory in system memory.\n"
        '==ERROR== Failed to profile "scale" in process 411\n'
        f"==ERROR== {cause}\n"
        "==WARNING== No kernels were profiled.\n"
    )
    assert trouble(text) == cause
    assert trouble(RAW) == ""


@pytest.mark.parametrize(
    "name", ["regex:^sm__no_such\\.sum$", "regex:^sm__no_such.sum", "sm__no_such.sum"]
)
def test_a_counter_that_a_chip_lacks_is_named(name: str) -> None:
    assert unknown_counters(f"==ERROR== Failed to find metric {name}\n") == ["sm__no_such.sum"]
    assert unknown_counters(RAW) == []
