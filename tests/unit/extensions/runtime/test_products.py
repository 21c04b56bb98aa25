"""What a table's package does in an engine, with stand-ins for the engines' modules."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tuner.extensions.runtime import products
from tuner.extensions.runtime.products import (
    CONFIGS_OF_VLLM,
    FIRST_ARGUMENTS,
    OPERATORS_OF_SGLANG,
    SglangTable,
    TableError,
    TableOrigin,
    VllmTable,
)

SMALL, LARGE = {"BLOCK_SIZE_M": 16}, {"BLOCK_SIZE_M": 128}
SHAPES = {(72, 200): {1: SMALL, 64: LARGE}}


def origin(engine: str, **changed: str) -> TableOrigin:
    given = {"gpu": "NVIDIA H200", "triton": "3.6.0", **changed}
    return TableOrigin(f"invariant-{engine}", engine, f"{engine} 1.0", **given)


class Matrix(SimpleNamespace):
    """As much of a tensor as a product asks for."""


def matrix(rows: int, columns: int, dtype: str = "torch.bfloat16") -> Any:
    return Matrix(shape=(rows, columns), dtype=dtype)


class Sglang(ModuleType):
    """A module of SGLang's products that notes what multiplied, and with which rows of a tile."""

    def __init__(self) -> None:
        super().__init__(OPERATORS_OF_SGLANG)
        self.did: list[tuple[str, int]] = []
        self.matmul_kernel_persistent: Any = self
        self.arg_names = FIRST_ARGUMENTS

    def __getitem__(self, grid: Any) -> Any:
        return lambda *given, **named: self.did.append(("triton", named["BLOCK_SIZE_M"]))

    def _matmul_persistent_triton(self, a: Any, b: Any, bias: Any = None) -> None:
        (m, k), n = a.shape, b.shape[1]
        self.matmul_kernel_persistent[(1,)](a, b, None, bias, m, n, k, BLOCK_SIZE_M=32)

    def _matmul_persistent_deepgemm(self, a: Any, b: Any, bias: Any = None) -> None:
        self.did.append(("DeepGEMM", 0))

    def matmul_persistent(self, a: Any, b: Any) -> None:
        self._matmul_persistent_deepgemm(a, b)


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> Sglang:
    found = Sglang()
    utilities: Any = ModuleType("sglang.srt.utils")
    utilities.get_device_name = lambda: "NVIDIA H200"
    for module in (found, utilities, with_version("triton", "3.6.0+git12")):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(products.metadata, "version", lambda _: "0.6.0")
    return found


def with_version(name: str, version: str) -> Any:
    module: Any = ModuleType(name)
    module.__version__ = version
    return module


def test_listed_shapes_are_multiplied_by_the_table_past_deepgemm_and_counted(
    sglang: Sglang,
) -> None:
    table = SglangTable(origin("sglang"), SHAPES)
    table.register()
    table.register()
    for rows in (1, 2, 64, 65):
        sglang.matmul_persistent(matrix(rows, 200), matrix(200, 72))
    sglang.matmul_persistent(matrix(1, 200), matrix(200, 80))
    sglang._matmul_persistent_triton(matrix(1, 200), matrix(200, 80))
    sglang._matmul_persistent_triton(matrix(1, 200, "torch.float16"), matrix(200, 72))
    assert sglang.did == [
        *(("triton", rows) for rows in (16, 128, 128, 128)),
        *(("DeepGEMM", 0), ("triton", 32), ("triton", 32)),
    ]
    assert table.calls() == {"table": 4, "original": 2}


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize("switch", ["", "ENABLE_JIT_DEEPGEMM", "_ENABLE_MM_DEEPGEMM"])
def test_a_table_that_was_measured_over_another_product_of_sglang_s_says_so_in_one_line(
    sglang: Any, caplog: pytest.LogCaptureFixture, tuned: bool, switch: str
) -> None:
    sglang.ENABLE_JIT_DEEPGEMM = sglang._ENABLE_MM_DEEPGEMM = True
    if switch:
        setattr(sglang, switch, False)
    SglangTable(replace(origin("sglang"), deepgemm=tuned), SHAPES).register()
    words = {(False, True): "without DeepGEMM, and here that is on", (True, False): "that is off"}
    said = words.get((tuned, not switch))
    assert len(caplog.messages) == (said is not None)
    assert all(said in one and "`tune fleet --invariant`" in one for one in caplog.messages if said)


def test_a_kernel_keeps_its_other_names(sglang: Sglang) -> None:
    SglangTable(origin("sglang"), SHAPES).register()
    assert sglang.matmul_kernel_persistent.arg_names == FIRST_ARGUMENTS


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"gpu": "NVIDIA L40S"}, "is a table of NVIDIA L40S with Triton 3.6.0, and this is NVIDIA"),
        ({"triton": "3.7.0"}, "with Triton 3.7.0, and this is NVIDIA H200 with Triton 3.6.0: make"),
    ],
)
def test_another_gpu_s_or_triton_s_table_changes_nothing(
    sglang: Sglang, changed: dict[str, str], said: str
) -> None:
    with pytest.raises(TableError, match=re.escape(said)):
        SglangTable(origin("sglang", **changed), SHAPES).register()
    assert sglang.matmul_kernel_persistent is sglang


def test_an_sglang_that_has_moved_on_is_named_with_what_was_looked_for(
    sglang: Sglang, monkeypatch: pytest.MonkeyPatch
) -> None:
    sglang.arg_names = ["descriptor", *FIRST_ARGUMENTS]
    with pytest.raises(TableError, match=r"first arguments of SGLang's .* are descriptor, a_ptr"):
        SglangTable(origin("sglang"), SHAPES).register()
    del sglang.matmul_kernel_persistent
    said = "sglang 0.6.0 has no such place: matmul_kernel_persistent; it was tested with sglang 1.0"
    with pytest.raises(TableError, match=said):
        SglangTable(origin("sglang"), SHAPES).register()
    monkeypatch.setitem(sys.modules, OPERATORS_OF_SGLANG, None)
    with pytest.raises(TableError, match="use that, or pip uninstall invariant-sglang"):
        SglangTable(origin("sglang"), SHAPES).register()


class Vllm(ModuleType):
    """vLLM's module of configs, on a GPU of one family."""

    _TUNED_MATMUL_CONFIGS_RESOLVED = True
    _MatmulMConfig = _MatmulShapeConfig = tuple

    def __init__(self, family: str) -> None:
        super().__init__(CONFIGS_OF_VLLM)
        self.family = family
        self._BATCH_INVARIANT_MATMUL_TUNED_CONFIGS: dict[str, dict[Any, Any]] = {}
        self.resolved: dict[Any, Any] = {}

    def resolve_tuned_matmul_configs(self) -> None:
        assert not self._TUNED_MATMUL_CONFIGS_RESOLVED, "or it is not looked for again"
        self.resolved = self._BATCH_INVARIANT_MATMUL_TUNED_CONFIGS.get(self.family, {})

    def _get_matmul_config(self, m: int, n: int, k: int, dtype: Any, default: Any) -> Any:
        return self.resolved.get((n, k), default)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Vllm:
    pytest.importorskip("torch")
    found = Vllm("hopper")
    platforms: Any = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(get_device_name=lambda: "NVIDIA H200")
    envs: Any = ModuleType("vllm.envs")
    envs.VLLM_BATCH_INVARIANT = True
    for module in (found, platforms, envs, with_version("triton", "3.6.0")):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(products.metadata, "version", lambda _: "0.33.0")
    return found


def read_table() -> dict[str, Any]:
    return {"hopper": {(72, 200): {"block_k": 64}}}


@pytest.mark.parametrize("changed", [{"gpu": "NVIDIA L40S"}, {"triton": "3.7.0"}])
def test_vllm_takes_no_other_gpu_s_or_triton_s_table(vllm: Any, changed: dict[str, str]) -> None:
    with pytest.raises(TableError, match=r"is a table of .*: make one here with `tune fleet"):
        VllmTable(origin("vllm", **changed), read_table).register()
    assert not vllm._BATCH_INVARIANT_MATMUL_TUNED_CONFIGS


def test_a_vllm_that_has_moved_on_is_named_with_what_was_looked_for(
    vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Vllm, "_MatmulShapeConfig")
    said = "vllm 0.33.0 has no such place: _MatmulShapeConfig; it was tested with vllm 1.0: use"
    with pytest.raises(TableError, match=said):
        VllmTable(origin("vllm"), read_table).register()
    monkeypatch.setitem(sys.modules, CONFIGS_OF_VLLM, None)
    with pytest.raises(TableError, match="use that, or pip uninstall invariant-vllm"):
        VllmTable(origin("vllm"), read_table).register()


@pytest.mark.parametrize(("family", "reads"), [("hopper", True), ("ada", False)])
def test_vllm_s_table_is_asked_once_it_is_there(vllm: Any, family: str, *, reads: bool) -> None:
    vllm.family, envs = family, sys.modules["vllm.envs"]
    table = VllmTable(origin("vllm"), read_table)
    envs.VLLM_BATCH_INVARIANT = False  # type: ignore[attr-defined]
    table.register()
    assert not vllm.resolved, "the mode is off"
    envs.VLLM_BATCH_INVARIANT = True  # type: ignore[attr-defined]
    if not reads:
        with pytest.raises(TableError, match="does not read its table for N=72, K=200"):
            table.register()
        return
    table.register()
    assert vllm.resolved == {(72, 200): {"block_k": 64}}
