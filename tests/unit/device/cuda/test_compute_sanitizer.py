"""compute-sanitizer: its reports, who a finding belongs to, and every way in which it may end.

The tool itself needs a GPU (tests/gpu); here a script of its name says what a real one says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_tools import PRELUDE, alive, put_on_path, seen

from tuner.compiler.includes import UNIT_NAME
from tuner.device.base import Program
from tuner.device.cuda import sanitizer as compute_sanitizer
from tuner.device.cuda.sanitizer import (
    COMPILE_OPTIONS,
    ComputeSanitizer,
    Report,
    find_compute_sanitizer,
    read,
)
from tuner.device.cuda.tool_process import Arenas, environment
from tuner.model.errors import DeviceError
from tuner.model.kernel import KernelSpec, Launch, Workload
from tuner.model.trial import Status
from tuner.space.choices import refusal
from tuner.space.template import Rendered, map_errors

MakeSpec = Callable[..., KernelSpec]
DATA = Path(__file__).parent / "data"
MEMCHECK, RACECHECK, SYNCCHECK, INITCHECK, NOTHING_FOUND = (
    (DATA / f"{name}.txt").read_text(encoding="utf-8")
    for name in ("memcheck", "racecheck", "synccheck", "initcheck", "nothing_found")
)


SIGN = "========="
X_AND_Y = (("x", 139639341973504, 64), ("y", 4096, 512))


@pytest.mark.parametrize(
    ("text", "kind", "errors", "found"),
    [
        pytest.param(
            MEMCHECK,
            "memcheck",
            2,
            [
                "kernel.cu(12): memcheck: Invalid __global__ write of size 4 bytes by thread "
                "(1,0,0) in block (0,0,0), Access to 0x7f0051600040 is out of bounds and is 1 "
                "bytes after the nearest allocation at `x` of size 64 bytes",
                "kernel.cu(9): memcheck: Invalid __global__ read of size 4 bytes by thread "
                "(2,0,0) in block (0,0,0), Access at `y` + 4 bytes is misaligned and is inside "
                "the nearest allocation at `y` of size 8 bytes",
            ],
            id="a bad access names its line, thread and array",
        ),
        pytest.param(
            RACECHECK,
            "racecheck",
            1,
            [
                "kernel.cu(10): racecheck: Race reported between Write access\n"
                "  and Read access [508 hazards] at line 14 of kernel.cu\n"
                "  and Write access [4 hazards] at line 15 of kernel.cu"
            ],
            id="a race names every line, and a warning of one is none",
        ),
        pytest.param(
            SYNCCHECK,
            "synccheck",
            2,
            [
                "kernel.cu(60): synccheck: Barrier error detected. Divergent thread(s) in block "
                "by thread (32,0,0) in block (0,0,0)",
                "synccheck: Barrier error detected. Invalid arguments at "
                "__cuda_sm70_warpsync+0x30 by thread (0,0,0) in block (0,0,0)",
            ],
            id="a barrier names the line of the source and not of a header",
        ),
        pytest.param(
            INITCHECK,
            "initcheck",
            257,
            [
                "kernel.cu(41): initcheck: Uninitialized __global__ memory read of size 4 bytes "
                "by thread (31,0,0) in block (1,0,0), Address `y` + 252 bytes"
            ],
            id="an uninitialised read names the element",
        ),
    ],
)
def test_a_finding_says_where_and_what(text: str, kind: str, errors: int, found: list[str]) -> None:
    assert read(text, kind, SIGN, X_AND_Y) == Report(found, [], errors)


def test_every_line_maps_to_the_template() -> None:
    rendered = Rendered("", tuple(range(101, 200)))
    path = Path("scale.cu.j2")
    (access,) = read(INITCHECK, "initcheck", SIGN).findings
    assert map_errors(access, rendered, path, unit=UNIT_NAME).startswith(
        "scale.cu.j2:141: initcheck: Uninitialized"
    )
    (race,) = read(RACECHECK, "racecheck", SIGN).findings
    assert map_errors(race, rendered, path, unit=UNIT_NAME).splitlines() == [
        "scale.cu.j2:110: racecheck: Race reported between Write access",
        "  and Read access [508 hazards] at scale.cu.j2:114",
        "  and Write access [4 hazards] at scale.cu.j2:115",
    ]


@pytest.mark.parametrize(
    "trouble",
    [
        "Internal Sanitizer Error: The Sanitizer encountered an error while launching scale and "
        "didn't track the launch. Errors might go undetected.",
        "Error: Device not supported. Please refer to the documentation",
        "Warning: Detected overflow of tracked cuda::barrier structures.",
        "Something that this version has never said",
    ],
)
def test_what_the_tool_says_of_itself_is_no_finding_but_a_trouble(trouble: str) -> None:
    text = f"{NOTHING_FOUND}{SIGN} {trouble}\n"
    assert read(text, "memcheck", SIGN) == Report([], [trouble], 0)


def test_lines_without_the_secret_sign_say_nothing() -> None:
    assert read(MEMCHECK + NOTHING_FOUND, "memcheck", "tool-5f") == Report()
    real = NOTHING_FOUND.replace(SIGN, "tool-5f")
    assert read(f"printed {MEMCHECK}{real}", "memcheck", "tool-5f") == Report(errors=0)


def test_the_option_that_keeps_the_lines_may_be_passed() -> None:
    assert [refusal(option) for option in COMPILE_OPTIONS] == [None]


# Says what the real tool says, of programs whose `source_key` tells what they do.
TOOL = """\
{prelude}
options = sys.argv[1:-5]
kind = options[options.index("--tool") + 1]
tool = options[options.index("--prefix") + 1]
keys = [job.values[0].values[0] for job in jobs]
with open({log}, "a") as log:
    given = dict(pid=os.getpid(), keys=keys, sizes=sizes, written_only=written_only)
    print(json.dumps(given), file=log)

def end(errors, code):
    print(tool, "ERROR SUMMARY:", errors, "errors")
    sys.exit(code)

print(tool, "COMPUTE-SANITIZER", flush=True)
if {unsupported}:
    print(tool, "Error: Device not supported.")
    end(0, 1)
say("ready")
late, errors = [], 0
for what in keys:
    say("arrays", arrays=[])
    found = [tool + " Invalid __global__ write of size 4 bytes",
             tool + "     at scale+0x10 in kernel.cu:3",
             tool + "     by thread (0,0,0) in block (0,0,0)", tool]
    if what.startswith("hangs"):
        hang()
    if what == "dies":
        sys.exit(3)
    if what == "refused":
        say("failed", error="CUDA_ERROR_INVALID_VALUE", shortage=False)
        continue
    if what == "too large":
        say("failed", error="CUDA_ERROR_OUT_OF_MEMORY", shortage=True)
        continue
    if what == "untracked":
        print(tool, "Internal Sanitizer Error: it didn't track the launch.", flush=True)
    if what == "breaks":
        print("\\n".join(found), flush=True)
        say("failed", error="CUDA_ERROR_LAUNCH_FAILED", shortage=False)
        end(1, 97)
    if what == "is only counted":
        errors += 3
    if what == "has no summary":
        say("done")
        sys.exit(0)
    if what == "found late":
        late += found
        errors += 1
    say("done")
if late:
    print("\\n".join(late), flush=True)
end(errors, 97 if errors else 0)
""".replace("{prelude}", PRELUDE)
WORKLOAD, OTHER = Workload.of({"T": 8}), Workload.of({"T": 3})


@pytest.fixture
def spec(make_spec: MakeSpec) -> KernelSpec:
    return make_spec(("y", "float32", ("T",), "output"), ("x", "float32", ("T",), "input"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def put_tool(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def put(*, unsupported: bool = False) -> None:
        given = {"log": str(log), "unsupported": unsupported}
        put_on_path("compute-sanitizer", TOOL, tmp_path, monkeypatch, **given)

    return put


@pytest.fixture
def watch(
    put_tool: Callable[..., None], spec: KernelSpec
) -> Callable[..., list[tuple[Status, str]]]:
    put_tool()

    def watch(*programs: str | Program, kind: str = "memcheck") -> list[tuple[Status, str]]:
        watcher = ComputeSanitizer(kind, 0, Arenas(spec, {}))
        listed = [made(one) if isinstance(one, str) else one for one in programs]
        outcomes = watcher.watch(listed)
        watcher.close()
        return [(outcome.status, outcome.reason) for outcome in outcomes]

    return watch


def made(key: str, workload: Workload = WORKLOAD) -> Program:
    return Program(key, workload, (Launch("scale", (1, 1, 1), (32, 1, 1)),))


def runs(log: Path) -> list[list[str]]:
    """The programs of every process of the tool, in order."""
    return [one["keys"] for one in seen(log)]


Watch = Callable[..., list[tuple[Status, str]]]
FOUND = (
    Status.INCORRECT,
    "kernel.cu(3): memcheck: Invalid __global__ write of size 4 bytes "
    "by thread (0,0,0) in block (0,0,0)",
)
RIGHT = (Status.CORRECT, "")


def test_honest_programs_share_one_process(watch: Watch, log: Path) -> None:
    assert watch("a", "b", "c") == [RIGHT] * 3
    assert runs(log) == [["a", "b", "c"]]
    assert watch() == []


def test_arrays_are_drawn_once_a_workload(watch: Watch, log: Path, spec: KernelSpec) -> None:
    assert watch(made("a"), made("b", OTHER), made("c"), kind="initcheck") == [RIGHT] * 3
    (given,) = seen(log)
    assert given["sizes"][0] == given["sizes"][2] >= 2 * spec.footprint_bytes(WORKLOAD)
    assert given["written_only"]
    watch("a", kind="racecheck")
    assert not seen(log)[-1]["written_only"]


@pytest.mark.parametrize("bad", ["breaks", "found late"])
def test_where_something_is_found_each_program_is_tried_alone(
    watch: Watch, log: Path, bad: str
) -> None:
    """Where the context breaks, and where a finding is told during another program."""
    assert watch("a", bad, "b") == [RIGHT, FOUND, RIGHT]
    assert runs(log) == [["a", bad, "b"], ["a"], [bad], ["b"]]


def test_other_failures_have_their_own_status(watch: Watch) -> None:
    outcomes = watch(
        *("a", "refused", "dies", "too large", "untracked", "is only counted", "has no summary")
    )
    assert outcomes[0] == RIGHT
    assert outcomes[1] == (Status.LAUNCH, "memcheck: CUDA_ERROR_INVALID_VALUE")
    assert outcomes[2][0] is Status.LAUNCH
    assert "the process ended before the kernel did: exit code 3" in outcomes[2][1]
    assert outcomes[3] == (Status.NOT_RECORDED, "memcheck: CUDA_ERROR_OUT_OF_MEMORY")
    assert outcomes[4][0] is Status.NOT_RECORDED
    assert "didn't track the launch" in outcomes[4][1]
    assert outcomes[5] == (Status.INCORRECT, "memcheck: 3 errors, which are not described")
    assert outcomes[6] == (Status.NOT_RECORDED, "memcheck gave no verdict: exit code 0")


def test_a_machine_on_which_the_tool_cannot_work_is_no_verdict(
    put_tool: Callable[..., None], watch: Watch, log: Path
) -> None:
    put_tool(unsupported=True)
    outcomes = watch("a", "b")
    assert {status for status, _ in outcomes} == {Status.NOT_RECORDED}
    assert "did not start: Error: Device not supported." in outcomes[0][1]
    assert runs(log) == [["a", "b"]]


@pytest.mark.slow
def test_a_hang_is_no_verdict_and_is_ended_with_all_that_it_started(
    watch: Watch, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_sanitizer, "START_TIMEOUT_S", 3.0)
    monkeypatch.setattr(compute_sanitizer, "JOB_TIMEOUT_S", 0.5)
    started = time.monotonic()
    outcomes = watch("a", "hangs", "b")
    assert time.monotonic() - started < 60
    # How long all had: alone it is not tried again.
    assert outcomes == [RIGHT, (Status.NOT_RECORDED, "memcheck: no end within 4.5 s"), RIGHT]
    assert runs(log) == [["a", "hangs", "b"], ["a"], ["b"]]
    statuses = [status for status, _ in watch("hangs", "hangs too", "b")]
    assert statuses == [Status.NOT_RECORDED] * 3
    assert runs(log)[3:] == [["hangs", "hangs too", "b"], ["hangs too"]]
    for one in seen(log):
        assert not alive(one["pid"]), f"process group {one['pid']} still runs"


def test_no_variable_of_the_environment_switches_the_tool_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NV_COMPUTE_SANITIZER_BINARY_PATCHING", "0")
    kept = environment(compute_sanitizer._VARIABLES)
    assert not [name for name in kept if name.startswith("NV_")]


def test_the_newest_cuda_is_found_unless_path_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATH", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    named, found = tmp_path / "cuda-9.2", tmp_path / "found"
    for folder in (named / "bin", found):
        folder.mkdir(parents=True)
        (folder / "compute-sanitizer").write_text("#!/bin/sh\n", encoding="utf-8")
    monkeypatch.setenv("CUDA_HOME", str(named))
    assert find_compute_sanitizer() != named / "bin" / "compute-sanitizer"  # cannot be executed
    (named / "bin" / "compute-sanitizer").chmod(0o755)
    assert find_compute_sanitizer() == named / "bin" / "compute-sanitizer"
    (named / "bin" / "libsanitizer-collection.so").touch()
    assert find_compute_sanitizer() != named / "bin" / "compute-sanitizer"  # lacks its launcher
    (named / "bin" / "TreeLauncherSubreaper").touch()
    assert find_compute_sanitizer() == named / "bin" / "compute-sanitizer"
    (found / "compute-sanitizer").chmod(0o755)
    monkeypatch.setenv("PATH", str(found))
    assert find_compute_sanitizer() == found / "compute-sanitizer"


def test_without_the_tool_there_is_an_error_with_a_remedy(
    spec: KernelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_sanitizer, "find_compute_sanitizer", lambda: None)
    with pytest.raises(DeviceError, match="was not found") as caught:
        ComputeSanitizer("memcheck", 0, Arenas(spec, {}))
    assert caught.value.remedy is not None
    assert "CUDA_HOME" in caught.value.remedy
