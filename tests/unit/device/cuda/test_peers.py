"""Peers in a reference file, and their launcher on host memory in place of a GPU's."""

from __future__ import annotations

import ctypes
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from tests.support.fake_torch import FakeTorch
from tuner.device.base import Program
from tuner.device.callables import checked_results
from tuner.device.cuda import peers
from tuner.device.cuda.driver import CudaError, LaunchArguments
from tuner.device.cuda.peers import (
    MOST_OF_MEMORY,
    WARM_UP_CALLS,
    PeerHome,
    PeerLauncher,
    PeerLaunchers,
)
from tuner.device.layout import lay_out
from tuner.device.reference import (
    PeerError,
    chosen_peers,
    load_peers,
    load_production,
    peer_program,
    require_gpu,
    torch_operators,
)
from tuner.model.errors import DeviceError, KernelError
from tuner.model.kernel import CALL, KernelSpec, Launch, Workload
from tuner.model.trial import Status

WORKLOAD = Workload.of({"T": 8})
ARGUMENTS = (
    ("y", "bfloat16", ("T",), "output"),
    ("z", "float8_e4m3", ("T",), "output"),
    ("x", "float32", ("T",), "input"),
    ("state", "int32", ("T",), "inout"),
)
STREAM = 77
FILE = """
def reference(xp, inputs, axes):
    return {}

def torch_peer(tensors, axes, SCALE="1"):
    import torch
    tensors["state"].array += 1
    tensors["z"].array[:] = axes["T"]
    return {"y": torch.Tensor(tensors["x"].array.astype("uint16") * int(SCALE), torch.bfloat16)}

def absent(tensors, axes, SCALE="1"):
    import a_package_that_is_not_installed

def unmeant(tensors, axes, SCALE="1"):
    raise NotImplementedError("only without SCALE")

def failing(tensors, axes, SCALE="1"):
    raise RuntimeError("operation not permitted when stream is capturing")

def listing(tensors, axes, SCALE="1"):
    return [tensors["y"]]

def narrow(tensors, axes, SCALE="1"):
    return {"y": tensors["x"]}

def unknown(tensors, axes, SCALE="1"):
    return {"x": tensors["x"]}

def plain(tensors, axes, SCALE="1"):
    return {"y": tensors["y"].array}

peers = {
    "torch": torch_peer, "absent": absent, "unmeant": unmeant, "failing": failing,
    "listing": listing, "narrow": narrow, "unknown": unknown, "plain": plain,
}
"""


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "example.py"
        path.write_text(dedent(text).lstrip())
        return path

    return write


def test_a_file_without_peers_has_none(file: Callable[[str], Path]) -> None:
    assert load_peers(file("x = 1")) == {}
    with pytest.raises(KernelError, match=r"names no peers\n.*leave --peers out"):
        chosen_peers(file("x = 1"), ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\npeers = [1]", "`peers` is a list, not a dict"),
        ("\npeers = {'a b': print}", "the name 'a b'"),
        ("\npeers = {1: print}", "the name 1"),
        ("\npeers: dict = {'a': 1}", "the peer 'a' is a int, no function"),
    ],
)
def test_a_mistake_is_told_with_its_line(
    file: Callable[[str], Path], text: str, message: str
) -> None:
    path = file("x = 1" + text)
    with pytest.raises(KernelError) as caught:
        load_peers(path)
    assert message in caught.value.message
    assert (caught.value.path, caught.value.line) == (path, 2)
    assert "peers = {" in str(caught.value.remedy)


def test_all_are_chosen_or_some_in_the_order_given(file: Callable[[str], Path]) -> None:
    path = file("x = 1\n\npeers = {'a': print, 'b': print, 'c': print}")
    assert chosen_peers(path, ()) == ("a", "b", "c")
    assert chosen_peers(path, ("c", "a", "c")) == ("c", "a")
    with pytest.raises(KernelError, match=r"example.py:3: has no peer named 'foo'\n.*: a, b, c"):
        chosen_peers(path, ("a", "foo"))


def test_the_cpu_runs_none() -> None:
    require_gpu("auto")
    with pytest.raises(DeviceError, match=r"not on --device host\n.*--device cuda"):
        require_gpu("host")


def test_a_program_is_known_by_its_name_and_the_files_text(file: Callable[[str], Path]) -> None:
    path = file("peers = {}")
    one, other = peer_program("a", path, WORKLOAD), peer_program("b", path, WORKLOAD)
    assert (one.peer, one.cubin, one.launches) == ("a", b"", ())
    assert one.key != other.key
    assert one == peer_program("a", path, WORKLOAD)
    assert one.key != peer_program("a", file("peers = {1: 2}"), WORKLOAD).key


def test_an_error_reaches_the_other_process_with_its_status() -> None:
    error = PeerError("no", status=Status.NOT_RECORDED)
    error.sticky = False
    error = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (error.message, error.status, error.sticky) == ("no", Status.NOT_RECORDED, False)


class Memory:
    """Host memory that answers the driver's calls."""

    def __init__(self) -> None:
        self.blocks: dict[int, ctypes.Array[ctypes.c_uint8]] = {}
        self.freed: list[int] = []
        self.captured: list[int] = []

    def capture(self, launcher, places, stream) -> SimpleNamespace:
        assert (launcher.relaxed, len(places), stream) == (True, 1, STREAM)
        self.captured.append(places[0].base)
        return SimpleNamespace(close=lambda: None)

    def allocate(self, size_bytes: int) -> int:
        block = (ctypes.c_uint8 * size_bytes)()
        self.blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def call(self, function, *arguments) -> None:
        if function is peers.driver.cuMemcpyDtoDAsync:
            target, source, size_bytes, stream = arguments
            assert stream == STREAM
            ctypes.memmove(target, source, size_bytes)
        elif function is peers.driver.cuMemFree:
            self.freed.append(arguments[0])


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    return torch


class Stage:
    """The launchers of `FILE`'s peers, on host memory."""

    def __init__(self, reference: Path, spec: KernelSpec) -> None:
        self.memory, self.reference = Memory(), reference
        self.made = PeerLaunchers(0, STREAM, PeerHome(reference, {"SCALE": "3"}))
        self.layout = lay_out(spec, {"T": 8})
        self.arena = self.place(np.arange(8))

    def place(self, x: object) -> SimpleNamespace:
        """Make arrays of their own with this input."""
        base = self.memory.allocate(self.layout.total_bytes)
        place = SimpleNamespace(layout=self.layout, base=base)
        view(place, "x", np.float32)[:] = x
        return place

    def launcher(self, name: str = "torch") -> PeerLauncher:
        return self.made.launcher(peer_program(name, self.reference, WORKLOAD), self.arena)

    def arguments(self, place: SimpleNamespace | None = None) -> LaunchArguments:
        return LaunchArguments(self.layout, (place or self.arena).base)


@pytest.fixture
def stage(
    file: Callable[[str], Path],
    make_spec: Callable[..., KernelSpec],
    monkeypatch: pytest.MonkeyPatch,
    torch: FakeTorch,
) -> Stage:
    stage = Stage(file(FILE), make_spec(*ARGUMENTS))
    monkeypatch.setattr(peers, "allocate", stage.memory.allocate)
    monkeypatch.setattr(peers, "call", stage.memory.call)
    monkeypatch.setattr(peers, "Graph", stage.memory.capture)
    return stage


def test_results_are_copied_only_when_they_are_collected(stage: Stage, torch: FakeTorch) -> None:
    launcher = stage.launcher()
    launcher.issue(stage.arguments())
    assert not view(stage.arena, "y", np.uint16).any(), "what is returned is not in the outputs"
    assert (view(stage.arena, "z", np.uint8) == 8).all(), "what is written in place is"
    launcher.collect(stage.arguments())
    assert list(view(stage.arena, "y", np.uint16)) == [0, 3, 6, 9, 12, 15, 18, 21]
    assert set(torch.on_stream) == {STREAM}


def test_a_problem_s_own_peers_are_called_as_those_of_a_file(
    stage: Stage, make_spec: Callable[..., KernelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    posed = make_spec(*ARGUMENTS)
    known = {posed.name: lambda tensors, axes, **_: {"y": tensors["y"]}}
    monkeypatch.setattr(peers, "peers_of", lambda spec: {"eager": known[spec.name]})
    stage.made = PeerLaunchers(0, STREAM, PeerHome(stage.reference, {"SCALE": "3"}, posed=posed))
    stage.launcher("eager").issue(stage.arguments())
    with pytest.raises(PeerError, match="has no peer named 'torch'"):
        stage.launcher("torch")


def test_it_is_warmed_up_once_on_memory_of_its_own(stage: Stage) -> None:
    assert stage.launcher() is stage.launcher()
    arena, memory = stage.arena, stage.memory
    assert not view(arena, "state", np.int32).any(), "it was not run on the arrays themselves"
    (scratch,) = memory.freed
    assert scratch != arena.base
    assert memory.captured == [arena.base], "a first capture tells whether others will do"
    place = SimpleNamespace(layout=arena.layout, base=scratch)
    assert (view(place, "state", np.int32) == 1).all(), f"{WARM_UP_CALLS} times the same inputs"


def test_each_set_of_arrays_keeps_its_own_results(stage: Stage) -> None:
    launcher, other = stage.launcher(), stage.place(100)
    places = [stage.arguments(one) for one in (stage.arena, other)]
    for place in places:
        launcher.issue(place)
    for place in places:
        launcher.collect(place)
    assert view(stage.arena, "y", np.uint16)[1] == 3
    assert view(other, "y", np.uint16)[1] == 300


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("absent", Status.NOT_RECORDED, "No module named 'a_package_that_is_not_installed'"),
        ("unmeant", Status.CONSTRAINT, "only without SCALE"),
        ("failing", Status.LAUNCH, "example.py:17: RuntimeError: operation not permitted"),
        (
            "listing",
            Status.LAUNCH,
            r"returns a list.*, no dict of outputs: return {'y': tensor}, or",
        ),
        ("unknown", Status.LAUNCH, "returns 'x', which is none of the outputs y, z, state"),
        ("plain", Status.LAUNCH, "returns a ndarray for 'y', not a tensor"),
        ("narrow", Status.INCORRECT, r"as float32 \(8,\) on cuda, not bfloat16 \(8,\) on cuda"),
        ("gone", Status.LAUNCH, "has no peer named 'gone'"),
    ],
)
def test_a_failure_has_a_status_and_a_reason(
    stage: Stage, name: str, status: Status, message: str
) -> None:
    with pytest.raises(PeerError, match=message) as caught:
        stage.launcher(name)
    assert (caught.value.status, caught.value.sticky) == (status, False)
    assert len(stage.memory.blocks) == 1 + len(stage.memory.freed), "only the arena is left"


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([1.0, 2.0], "returns a list of float, no dict of outputs: "),
        ((), "returns a tuple, no dict of outputs: "),
        (np.zeros(4), "returns a ndarray, no dict of outputs: "),
        (1.5, "returns a float, no dict of outputs: "),
        ({"out": None}, "returns a NoneType for 'out', not a tensor: "),
        ({"out": np.zeros(4)}, "returns a ndarray for 'out', not a tensor: "),
        ({"out": [1.0]}, "returns a list of float for 'out', not a tensor: "),
        ({"x": 1}, "returns 'x', which is none of the outputs out"),
        ({0: 1}, "returns 0, which is none of the outputs out"),
    ],
    ids=repr,
)
def test_what_is_no_tensor_is_one_error_with_the_remedy(returned: object, said: str) -> None:
    torch = SimpleNamespace(Tensor=type("Tensor", (), {}))
    with pytest.raises(PeerError) as caught:
        checked_results(torch, returned, {}, ["out"])
    message = str(caught.value)
    assert message.startswith(said)
    assert caught.value.status is Status.LAUNCH
    remedy = "return {'out': tensor}, or write into the tensors and return None"
    assert message.endswith(remedy) or "none of the outputs" in said


def test_one_that_harms_the_context_is_not_taken_for_harmless(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def harmed(function, *arguments) -> None:
        if function is not peers.driver.cuMemcpyDtoDAsync:
            raise CudaError("an illegal address")
        stage.memory.call(function, *arguments)

    monkeypatch.setattr(peers, "call", harmed)
    with pytest.raises(PeerError, match="RuntimeError: operation not permitted") as caught:
        stage.launcher("failing")
    assert caught.value.sticky
    with pytest.raises(CudaError, match="an illegal address"):
        stage.launcher()


def test_one_that_fails_later_may_have_harmed_a_capture(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = stage.launcher()
    monkeypatch.setattr(launcher, "function", lambda *given, **more: [])
    with pytest.raises(PeerError, match="returns a list") as caught:
        launcher.issue(stage.arguments())
    assert caught.value.sticky


CALLED = """
def launch(config, tensors, axes, SCALE="1"):
    if config:
        raise type(config["raises"], (Exception,), {"__module__": config["of"]})("no room")
    assert tensors["x"].shape == (axes["T"],)
    tensors["x"].array = tensors["x"].array[:1]
    tensors["z"].array[:] = axes["T"]
"""


RETURNING = """
def launch(config, tensors, axes, SCALE="1"):
    import torch
    result = torch.Tensor(tensors["x"].array.astype("uint16").repeat(2)[::2], torch.bfloat16)
    torch.Tensor.copy_ = None
    return {"y": result}
"""


def call_of(config: object, key: str = "key", called: str = CALLED) -> Program:
    text = f"{called}CONFIG = {config!r}\nAXES = {{}}\nOPERATORS = {{}}\n"
    return Program(key, WORKLOAD, CALLED_ONCE, text.encode())


CALLED_ONCE = (Launch(CALL, (1, 1, 1), (1, 1, 1)),)


def test_a_python_kernel_repeats_its_bits_and_takes_a_share_of_the_memory(
    stage: Stage, torch: FakeTorch
) -> None:
    assert not stage.launcher().repeats
    assert torch.share == 1.0
    launcher = stage.made.launcher(call_of(None), stage.arena)
    assert launcher.repeats
    launcher.issue(stage.arguments())
    assert (view(stage.arena, "z", np.uint8) == 8).all()
    assert torch.share == MOST_OF_MEMORY


def test_what_a_python_kernel_returns_is_collected_without_asking_its_tensors(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeTorch.Tensor, "copy_", FakeTorch.Tensor.copy_)
    launcher = stage.made.launcher(call_of(None, called=RETURNING), stage.arena)
    launcher.issue(stage.arguments())
    assert not view(stage.arena, "y", np.uint16).any(), "nothing is collected yet"
    (result,) = launcher.returned[stage.arena.base].values()
    assert result.array.flags.c_contiguous, "a view is copied within the call"
    launcher.collect(stage.arguments())
    assert list(view(stage.arena, "y", np.uint16)) == list(range(8))


@pytest.mark.parametrize(
    ("module", "name"), [(time, "perf_counter"), (peers.driver, "cuEventElapsedTime")]
)
def test_who_replaces_what_it_is_timed_by_is_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    before = getattr(module, name)
    stage.made.require_clocks()
    monkeypatch.setattr(module, name, lambda *given: 0.0)
    with pytest.raises(PeerError, match=rf"replaces .*{name}, by which calls are timed") as caught:
        stage.made.require_clocks()
    assert caught.value.status is Status.INCORRECT
    assert getattr(module, name) is before, "the next one has it back"


@pytest.mark.parametrize(
    ("raises", "of", "sticky"),
    [("OutOfMemoryError", "torch", True), ("OutOfResources", "triton.runtime.errors", False)],
)
def test_who_allocated_until_memory_ended_costs_its_process(
    stage: Stage, raises: str, of: str, sticky: bool
) -> None:
    program = call_of({"raises": raises, "of": of})
    with pytest.raises(PeerError, match="no room") as caught:
        stage.made.launcher(program, stage.arena)
    assert (caught.value.status, caught.value.sticky) == (Status.RESOURCE_LIMIT, sticky)


def test_no_room_to_warm_it_up_is_told_of_a_peer_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(size_bytes: int) -> int:
        raise MemoryError(f"{size_bytes} bytes")

    monkeypatch.setattr(peers, "allocate", full)
    with pytest.raises(PeerError, match="not enough memory to warm it up"):
        stage.launcher()
    with pytest.raises(MemoryError, match="bytes"):
        stage.made.launcher(call_of(None), stage.arena)


def test_without_pytorch_it_is_missing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PeerError, match="torch") as caught:
        stage.launcher()
    assert caught.value.status is Status.NOT_RECORDED
    stage.made.clear()


def test_another_workload_finds_nothing_compiled_for_this_one(
    stage: Stage, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.made.clear()
    assert not torch.emptied, "nothing was there"
    launcher = stage.launcher()
    stage.made.clear()
    assert (torch.reset, torch.emptied) == (0, 1), "nothing was compiled"
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    stage.launcher()
    stage.made.clear()
    assert (torch.reset, torch.emptied) == (1, 2)
    assert stage.launcher() is not launcher


def view(place: SimpleNamespace, name: str, dtype: type) -> np.ndarray:
    slot = next(one for one in place.layout.slots if one.name == name)
    block = (ctypes.c_uint8 * slot.size_bytes).from_address(place.base + slot.offset)
    return np.ctypeslib.as_array(block).view(dtype).reshape(slot.shape)


PRODUCTION = "peers = {'a': print, 'b': print}\n"


BY_CHOICE = "def production(axes, KIND='x'): return {'x': 'a', 'y': 'b'}[KIND]"


@pytest.mark.parametrize(
    ("text", "choices", "name"),
    [
        ("", {}, None),
        ("production = 'b'", {}, "b"),
        ("def production(axes): return 'a' if axes['T'] <= 32 else 'b'", {}, "a"),
        ("def production(axes): return None", {}, None),
        (BY_CHOICE, {"KIND": "y"}, "b"),
    ],
)
def test_a_file_names_what_production_calls(
    file: Callable[[str], Path], text: str, choices: dict[str, str], name: str | None
) -> None:
    assert load_production(file(PRODUCTION + text), {"T": 8}, choices) == name


@pytest.mark.parametrize(
    ("text", "choices", "said"),
    [
        ("production = 'c'", {}, r"`production` is .*\n.*peers: a, b"),
        ("production = 3", {}, r"`production` is .*\n.*peers: a, b"),
        ("def production(a): return 'c'\n", {}, r"`production` is .*\n.*peers: a, b"),
        (BY_CHOICE, {"KIND": "z"}, "`production` fails: KeyError"),
    ],
)
def test_production_is_one_of_the_peers(
    file: Callable[[str], Path], text: str, choices: dict[str, str], said: str
) -> None:
    with pytest.raises(KernelError, match=f"example.py:2: {said}"):
        load_production(file(PRODUCTION + text), {}, choices)


def test_operators_are_found_by_import_or_else_in_the_packages_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Path] = []
    fake = SimpleNamespace(ops=SimpleNamespace(whole="w", harmed="h", load_library=loaded.append))
    monkeypatch.setitem(sys.modules, "torch", fake)  # type: ignore[arg-type]
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in {"whole": "", "harmed": "import no_such_package"}.items():
        (tmp_path / name / "sm90").mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text(text)
        (tmp_path / name / "sm90/common_ops.abi3.so").touch()
    assert torch_operators("whole", "sm90/common_ops.*") == "w"
    assert loaded == []
    assert torch_operators("harmed", "sm90/common_ops.*") == "h"
    assert loaded == [tmp_path / "harmed/sm90/common_ops.abi3.so"]
    with pytest.raises(ImportError, match="no_such_package"):
        torch_operators("harmed", "sm100/common_ops.*")
    with pytest.raises(ImportError, match="absent_package"):
        torch_operators("absent_package", "*")
