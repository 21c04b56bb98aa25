"""Tensor maps on the `host` device: each buffer's own, views of it, and what goes wrong."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from host_programs import cached_compiler

from tuner.device.base import Outcome
from tuner.device.cuda import driver
from tuner.device.layout import lay_out
from tuner.extensions.cpu.device import HostDevice
from tuner.model.config import Config
from tuner.model.kernel import ChosenScratch, Workload
from tuner.model.tensor_maps import TensorMap
from tuner.model.trial import INITIAL, Status
from tuner.space.load import load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

FOLDER = Path(__file__).parents[2] / "support" / "tiled_gemm"
WORKLOAD = Workload.of({"M": 17, "N": 100, "K": 192})
Verify = Callable[..., Outcome]


@pytest.fixture(scope="module")
def verify() -> Iterator[Verify]:
    definition = load_definition(FOLDER / "tiled_gemm.yaml")
    spec, space = definition.spec, definition.space
    template = Template.load(spec.template)
    device = HostDevice(spec, {})

    def run(old: str = "", new: str = "", **config: object) -> Outcome:
        text = template.text.replace(old, new)
        candidate = Candidate(INITIAL, space, Template.from_text(text, spec.template))
        evaluator = Evaluator(spec, candidate, {}, compiler, device)
        chosen = Config.of({**(space.default or {}), **config})
        return evaluator.verify(evaluator.start(WORKLOAD, chosen))

    with cached_compiler() as compiler:
        yield run
    device.close()


@pytest.mark.parametrize(
    ("depth", "view", "splits"), [(64, "flat", 1), (32, "folded", 2), (64, "folded", 1)]
)
def test_a_kernel_copies_boxes_of_inputs_and_of_scratch_of_its_own_size(
    verify: Verify, depth: int, view: str, splits: int
) -> None:
    outcome = verify(depth=depth, view=view, splits=splits)
    assert outcome.status is Status.CORRECT, outcome.reason


def test_a_config_whose_map_the_hardware_does_not_take_is_a_limit(verify: Verify) -> None:
    outcome = verify(depth=128)
    assert outcome.status is Status.RESOURCE_LIMIT
    assert "map of `x` has a `swizzle` of 256: one of 0, 32, 64, 128" in outcome.reason


def test_a_map_of_another_array_gives_wrong_numbers(verify: Verify) -> None:
    outcome = verify("wmap, at * kDepth, n0", "xmap, at * kDepth, n0")
    assert outcome.status is not Status.CORRECT


def test_a_kernel_that_takes_other_parameters_is_told(verify: Verify) -> None:
    outcome = verify("multiply(int K,", "multiply(int K, int more,")
    assert "5 parameters, but 4 arguments" in outcome.reason


def test_a_launch_on_a_gpu_takes_maps_of_the_arrays_where_they_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = load_definition(FOLDER / "tiled_gemm.yaml").spec
    names = {**WORKLOAD.values, "depth": 64, "view": "flat", "splits": 2}
    launch = spec.candidate_launches(names)[0]
    layout = lay_out(spec, WORKLOAD.values, scratch={"part": ChosenScratch("part", (2, 17, 100))})

    def noted(one: TensorMap, address: int) -> ctypes.Array[ctypes.c_char]:
        return ctypes.create_string_buffer(f"{one.of} {address}".encode())

    monkeypatch.setattr(driver, "encode_tensor_map", noted)
    arguments = driver.LaunchArguments(layout, 1 << 20)
    pointers = (ctypes.c_void_p * 4).from_address(arguments.address(("K",), launch.maps))
    assert ctypes.c_int.from_address(pointers[0] or 0).value == 192
    found = [ctypes.string_at(place or 0).decode() for place in pointers[1:]]
    offsets = {slot.name: (1 << 20) + slot.offset for slot in layout.slots}
    assert found == [f"{name} {offsets[name]}" for name in ("part", "x", "w")]
    part, x, _ = launch.maps
    assert (part.shape, part.strides) == ((2, 17, 100), (6800, 400))
    assert x.codes == (9, 3, 2)
