"""Several programs verified on the same inputs: each gets the verdict that it would get alone."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from host_programs import cached_compiler
from idle_runner import IdleRunner

from tests.support.simulated_device import SimulatedDevice
from tuner.compiler.base import CompileRequest
from tuner.device.base import DeviceInfo, Outcome, Program, verify_all
from tuner.device.inputs import INPUT_KINDS, NORMAL
from tuner.device.layout import Arena
from tuner.device.verify.verified_device import VerifiedDevice
from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.cpu.device import HostDevice
from tuner.model.errors import DeviceError
from tuner.model.kernel import ChosenScratch, KernelSpec, Launch, Workload
from tuner.model.trial import Correctness, Status

MakeSpec = Callable[..., KernelSpec]
DOUBLE = (("y", "float32", ("T",), "output"), ("x", "float32", ("T",), "input"))
SMALL, LARGE = Workload.of({"T": 64}), Workload.of({"T": 640})
INFO = DeviceInfo("a GPU", "sm_90a", (9, 0), 132, 1, 1.0, recorded=False)
RIGHT = "y[i] = 2.0f * x[i];"
BODIES = {
    "right": RIGHT,
    "wrong in one element": RIGHT + " if (i == 5) y[i] = x[i];",
    "crashes": RIGHT + " if (i == 7) *reinterpret_cast<volatile int*>(8) = 1;",
    "hangs": RIGHT + " for (volatile int go = 1; go;) {}",
    "writes out of bounds": RIGHT + " if (i == 0) y[640 * 4096] = 1.0f;",
    "changes its input": RIGHT + " const_cast<float*>(x)[i] = 1.0f;",
    "right in other words": "y[i] = x[i] + x[i];",
    # As if all inputs were those of the first time that its process sees.
    "keeps its first results": (
        "static float kept[64]; static int filled[64];"
        "if (!filled[i]) { kept[i] = 2.0f * x[i]; filled[i] = 1; } y[i] = kept[i];"
    ),
}


@pytest.fixture(scope="module")
def compiler() -> Iterator[HostCompiler]:
    with cached_compiler() as compiler:
        yield compiler


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    "name",
    ["crashes", "hangs", "writes out of bounds", "changes its input", "keeps its first results"],
)
def test_each_gets_the_verdict_that_it_would_get_alone(
    compiler: HostCompiler, make_spec: MakeSpec, name: str
) -> None:
    programs = {}
    for one in ("right", "wrong in one element", name, "right in other words"):
        head = 'extern "C" __global__ void run(float* y, const float* x) {'
        source = f"{head} const int i = threadIdx.x; {BODIES[one]} }}"
        result = compiler.submit(CompileRequest(source, ("run",), "sm_90a")).result()
        launches = (Launch("run", (1, 1, 1), (64, 1, 1)),)
        programs[one] = Program(one, SMALL, launches, result.cubin, result.lowered)
    with closing(HostDevice(make_spec(*DOUBLE), {}, run_timeout_s=1.0)) as device:
        together = dict(zip(programs, verify_all(device, list(programs.values())), strict=True))
        alone = device.verify(programs[name])
    for one in ("right", "right in other words"):
        assert together[one].status is Status.CORRECT, together[one].reason
        assert together[one].correctness is not None
        assert set(together[one].correctness.input_kinds) == set(INPUT_KINDS)
    assert together["wrong in one element"].status is Status.INCORRECT
    assert "y[5] is" in together["wrong in one element"].reason
    assert together[name].status is alone.status is not Status.CORRECT
    if name != "keeps its first results":  # from inputs of one kind there, of another here
        assert together[name].reason.split("(")[0] == alone.reason.split("(")[0]


class Process:
    """A verifier's process that notes what it prepares, and finds a kind wrong for one program."""

    def __init__(self) -> None:
        self.prepared: list[tuple[str, int]] = []
        self.ran: list[tuple[str, str]] = []
        self.opened: list[str] = []
        self.wrong: tuple[str, str] = ("", "")

    def call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        if method == "open_arena":
            self.opened.append(arguments[0].key)
            return Arena(arguments[0].key, arguments[1], None, None)
        if method == "prepare":
            self.prepared.append(arguments[1:3])
        if method.startswith("check"):
            wrong = self.ran[-1] == self.wrong
            return Correctness(not wrong, (self.ran[-1][1],), reason="is wrong" if wrong else "")
        return True


class Runner(IdleRunner):
    """Runs nothing; notes which program was to run on which kind of input."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def run_once(self, program: Program, order: int, *, nan: bool = True) -> str:
        kind, _ = self._process.prepared[-1]
        self._process.ran.append((program.source_key, kind))
        return ""


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def device(process: Process, make_spec: MakeSpec) -> VerifiedDevice:
    spec = make_spec(*DOUBLE)
    return VerifiedDevice(INFO, spec, process, Runner(process))  # type: ignore[arg-type]


def some(workload: Workload = SMALL, names: str = "abcde") -> Sequence[Program]:
    return [Program(name, workload, ()) for name in names]


def test_all_get_the_same_inputs_of_each_kind_and_take_turns_in_another_order(
    device: VerifiedDevice, process: Process
) -> None:
    outcomes = device.verify_together(some())
    assert [one.status for one in outcomes] == [Status.CORRECT] * 5
    assert Counter(kind for kind, _ in process.prepared) == dict.fromkeys(INPUT_KINDS, 5)
    assert len({seed for _, seed in process.prepared}) == len(INPUT_KINDS), "one of each kind"
    assert process.prepared[-1][0] == NORMAL
    orders = {"".join(name for name, kind in process.ran if kind == one) for one in INPUT_KINDS[1:]}
    assert len(orders) > 1, "the same for all of five kinds is one case in 120 to the fourth"


def test_one_that_fails_is_not_run_again_and_the_others_are(
    device: VerifiedDevice, process: Process
) -> None:
    process.wrong = ("c", "zeros")
    outcomes = dict(zip("abcde", device.verify_together(some()), strict=True))
    wrong = {name for name, one in outcomes.items() if one.status is not Status.CORRECT}
    assert (wrong, outcomes["c"].reason) == ({"c"}, "is wrong")
    ran = Counter(name for name, _ in process.ran)
    assert ran["a"] == ran["b"] == ran["d"] == ran["e"] == len(INPUT_KINDS) + 1 > ran["c"]


def test_peers_and_who_sizes_its_scratch_are_verified_alone(
    device: VerifiedDevice, process: Process
) -> None:
    peer = replace(some(names="p")[0], peer="pytorch")
    sized = replace(some(names="s")[0], scratch=(ChosenScratch("partial", (4, 4)),))
    mixed = [peer, *some(names="ab"), sized]
    assert {one.status for one in device.verify_together(mixed)} == {Status.CORRECT}
    ran = [name for name, _ in process.ran]
    assert {*ran[: -2 * len(INPUT_KINDS) - 1]} == {"a", "b"}
    last = ran[-2 * len(INPUT_KINDS) - 1 :]
    assert last == ["p"] * len(INPUT_KINDS) + ["s"] * (len(INPUT_KINDS) + 1)


def test_each_workload_is_opened_once_and_outcomes_keep_their_order(
    device: VerifiedDevice, process: Process
) -> None:
    process.wrong = ("b", NORMAL)
    mixed = [
        one for pair in zip(some(SMALL, "abc"), some(LARGE, "xyz"), strict=True) for one in pair
    ]
    outcomes = verify_all(device, mixed)
    assert [one.status is Status.CORRECT for one in outcomes] == [
        True,
        True,
        False,
        True,
        True,
        True,
    ]
    assert process.opened == [SMALL.key, LARGE.key]


def test_a_device_that_cannot_is_asked_for_one_after_the_other() -> None:
    asked: list[str] = []

    class OneByOne(SimulatedDevice):
        def verify(self, program: Program) -> Outcome:
            asked.append(program.source_key)
            return Outcome(Status.CORRECT)

    device = OneByOne(lambda program: 1.0)
    assert len(verify_all(device, [*some(), *some(LARGE, "xy")])) == 7
    assert asked == list("abcdexy")
    assert verify_all(device, []) == []


class Little(Process):
    """A verifier's process on a GPU of so many bytes."""

    def __init__(self, room_bytes: int) -> None:
        super().__init__()
        self._room_bytes = room_bytes

    def call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        if method == "open_arena" and arguments[1].total_bytes > self._room_bytes:
            raise MemoryError("no room")
        return super().call(method, *arguments, timeout_s=timeout_s)


def test_scratch_that_finds_no_room_is_its_own_fault_whoever_came_before(
    make_spec: MakeSpec,
) -> None:
    spec = make_spec(*DOUBLE, ("partial", "float32", ("SPLITS", "T"), "scratch"))
    small, large = (
        replace(one, scratch=(ChosenScratch("partial", (rows, 64)),))
        for one, rows in zip(some(names="sl"), (1, 1 << 20), strict=True)
    )
    for order in ((large, small), (small, large), (large, large, small)):
        process = Little(1 << 20)
        device = VerifiedDevice(INFO, spec, process, Runner(process))  # type: ignore[arg-type]
        found = [device.verify(one).status for one in order]
        wanted = {"s": Status.CORRECT, "l": Status.RESOURCE_LIMIT}
        assert found == [wanted[one.source_key] for one in order]
    process = Little(64)
    device = VerifiedDevice(INFO, spec, process, Runner(process))  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="not enough memory for T=64"):
        device.verify(large)
