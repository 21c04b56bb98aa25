"""Registration: which hooks are placed in which SGLang, and who took the calls."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from engine_wheels import SGLANG
from installed_plugins import empty_table, registered

torch = pytest.importorskip("torch")

from tuner.extensions.runtime.pytorch import replacing  # noqa: E402
from tuner.extensions.runtime.pytorch.runtime import Array, Operator, Scalar  # noqa: E402
from tuner.extensions.runtime.sglang.plugin import Plugin  # noqa: E402

FLASH = "sglang.kernels.ops.attention.flash_attention"
DECODER = "sglang.srt.model_executor.runner.decode_cuda_graph_runner"
SWITCH, ANY_VERSION = "TUNED_SGLANG", "TUNED_SGLANG_ANY_VERSION"
DEFAULTS = {"GEMMA": "false", "ROUNDED": "false", "ACTIVATION": "silu"}


class Registry:
    """SGLang's registry, as far as a plugin sees it."""

    def __init__(self) -> None:
        self.hooks: dict[str, Callable[..., Any]] = {}

    def register(self, target: str, hook: Callable[..., Any], kind: str) -> None:
        assert kind == "around"
        self.hooks[target] = hook


class Stub:
    """An operator that serves rows of 8."""

    def __init__(self, *, invariant: bool = False) -> None:
        self.calls: Counter[int] = Counter()
        self.fallback: Any = None
        self.invariant = invariant

    def keep_rows(self) -> bool:
        return self.invariant

    def attempt(self, *tensors: Any, **_: Any) -> bool:
        if tensors[0].shape[-1] != 8:
            return False
        self.calls[3] += 1
        return True


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """An SGLang 0.5.17 with two of the functions."""
    found = Registry()
    hook_registry = SimpleNamespace(
        HookRegistry=found, HookType=SimpleNamespace(AROUND="around", REPLACE="replace")
    )
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", hook_registry)
    monkeypatch.setitem(sys.modules, "sglang.srt.batch_invariant_ops", None)
    kernels = ModuleType("sgl_kernel")
    kernels.rmsnorm = own_rmsnorm  # type: ignore[attr-defined]
    kernels.fused_add_rmsnorm = lambda *_: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sgl_kernel", kernels)
    monkeypatch.setattr(replacing.metadata, "version", lambda _: "0.5.17")
    for name in (SWITCH, ANY_VERSION):
        monkeypatch.delenv(name, raising=False)
    return found


def own_rmsnorm(input: Any, weight: Any, eps: Any = 1e-6, out: Any = None) -> Any:  # noqa: A002
    result = torch.nn.functional.rms_norm(input.float(), weight.shape, weight.float(), eps)
    return out.copy_(result) if out is not None else result.to(input.dtype)


def made(*names: str, **choices: str) -> Plugin:
    return Plugin(
        "tuned", {one: Stub() for one in names}, {one: {**DEFAULTS, **choices} for one in names}
    )


BOTH = ("rmsnorm", "fused_add_rmsnorm")


def test_each_operator_is_registered_and_logged(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    plugin = made(*BOTH)
    plugin.register()
    assert set(registry.hooks) == {"sgl_kernel.rmsnorm", "sgl_kernel.fused_add_rmsnorm"}
    assert plugin.enabled == set(BOTH)
    assert "rmsnorm: tuned kernels in place of sgl_kernel.rmsnorm" in caplog.messages


def test_choices_decide_what_is_replaced(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    made("rmsnorm", GEMMA="true").register()
    made("fused_add_rmsnorm", ROUNDED="true").register()
    assert not registry.hooks
    missing, other = caplog.messages
    assert "rmsnorm: sgl_kernel.gemma_rmsnorm is not replaced: " in missing
    assert "nothing of SGLang is replaced: it normalizes the sum" in other


def test_another_version_is_left_alone(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replacing.metadata, "version", lambda _: "0.5.23")
    made(*BOTH).register()
    assert not registry.hooks
    (said,) = caplog.messages
    assert "tested with SGLang 0.5.17, this is 0.5.23: nothing is replaced" in said
    monkeypatch.setenv(ANY_VERSION, "1")
    made(*BOTH).register()
    assert registry.hooks


def test_what_needs_several_places_has_all_or_one_warning(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (FLASH, DECODER):
        for count in range(1, len(name.split(".")) + 1):
            part = ".".join(name.split(".")[:count])
            monkeypatch.setitem(sys.modules, part, ModuleType(part))
    monkeypatch.setattr(sys.modules[FLASH], "flash_attn_with_kvcache", own, raising=False)
    runner = SimpleNamespace(capture_one_shape=own)
    monkeypatch.setattr(sys.modules[DECODER], "DecodeCudaGraphRunner", runner, raising=False)
    made("decode_attention", KV="bf16").register()
    assert not registry.hooks
    (said,) = caplog.messages
    assert said.startswith(f"decode_attention: nothing is replaced, for {DECODER}.DecodeCudaGraph")
    assert said.endswith("; it needs SGLang 0.5.17")
    runner.load_batch = own
    plugin = made("decode_attention", KV="bf16")
    plugin.register()
    assert len(registry.hooks) == 3
    beside = registry.hooks[f"{DECODER}.DecodeCudaGraphRunner.load_batch"]
    plugin.enabled.clear()
    assert beside(own) == "own"
    assert plugin.calls() == {"decode_attention": {"tuned": 0, "original": 0}}


def test_the_switch_turns_all_off(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    made(*BOTH).register()
    assert not registry.hooks


def test_the_switch_leaves_the_named_ones_on(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SWITCH, "rmsnorm, silu")
    made(*BOTH).register()
    assert set(registry.hooks) == {"sgl_kernel.rmsnorm"}
    assert caplog.messages == ["TUNED_SGLANG names silu; tuned has fused_add_rmsnorm, rmsnorm"]


def test_calls_are_counted_by_who_took_them_and_the_first_is_logged(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = made("rmsnorm")
    plugin.register()
    caplog.set_level(logging.INFO)  # after it was placed, as SGLang's scheduler does
    call = registry.hooks["sgl_kernel.rmsnorm"]
    for width in (8, 8, 16):
        x, w = torch.ones(2, width), torch.ones(width)
        out = call(own_rmsnorm, x, weight=w, eps=1e-5)
        assert out.shape == x.shape
    assert plugin.calls() == {"rmsnorm": {"tuned": 2, "original": 1}}
    assert caplog.messages == ["rmsnorm: tuned kernels serve sgl_kernel.rmsnorm"]


def test_what_is_taken_out_is_sglangs_until_it_is_back(registry: Registry) -> None:
    plugin = made("rmsnorm")
    plugin.register()
    plugin.enabled.clear()
    x, w = torch.ones(2, 8), torch.ones(8)
    registry.hooks["sgl_kernel.rmsnorm"](own_rmsnorm, x, w)
    plugin.enabled.add("rmsnorm")
    registry.hooks["sgl_kernel.rmsnorm"](own_rmsnorm, x, w)
    assert plugin.calls() == {"rmsnorm": {"tuned": 1, "original": 1}}


@pytest.mark.parametrize("invariant", [False, True])
def test_where_results_must_not_depend_on_the_batch_only_invariant_rows_are_ours(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, invariant: bool
) -> None:
    mode = SimpleNamespace(is_batch_invariant_mode_enabled=lambda: True)
    monkeypatch.setitem(sys.modules, "sglang.srt.batch_invariant_ops", mode)
    plugin = Plugin("tuned", {"rmsnorm": Stub(invariant=invariant)}, {"rmsnorm": DEFAULTS})
    plugin.register()
    registry.hooks["sgl_kernel.rmsnorm"](own_rmsnorm, torch.ones(2, 8), torch.ones(8))
    took = {"tuned": 1, "original": 0}
    assert plugin.calls()["rmsnorm"] == (
        took if invariant else {"tuned": 0, "original": 1, "refused": 1}
    )


def test_what_serves_few_rows_only_is_refused_in_a_deterministic_mode(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = SimpleNamespace(is_batch_invariant_mode_enabled=lambda: True)
    monkeypatch.setitem(sys.modules, "sglang.srt.batch_invariant_ops", mode)
    monkeypatch.setattr(sys.modules["sgl_kernel"], "fp8_scaled_mm", own, raising=False)
    plugin = Plugin("t", {"gemm_fp8": Stub(invariant=True)}, {"gemm_fp8": {"SCALES": "token"}})
    plugin.register()
    assert registry.hooks["sgl_kernel.fp8_scaled_mm"](own) == "own"
    assert plugin.calls()["gemm_fp8"] == {"tuned": 0, "original": 1, "refused": 1}


def own() -> str:
    return "own"


@pytest.fixture
def operator(tmp_path: Any) -> Iterator[Operator]:
    """An operator of a package, on a machine without its GPU."""
    order = (
        Array("out", "bfloat16", "output"),
        Array("x", "bfloat16", "input"),
        Array("w", "bfloat16", "input"),
        Scalar("eps", "float32", 1e-6),
    )
    table = empty_table(
        tmp_path,
        "rmsnorm",
        order,
        shapes=lambda rows, width: ((rows, width), (rows, width), (width,)),
        scalars=(1e-6,),
    )
    with registered(table, "tuned_sglang_test") as found:
        yield found


def test_without_its_gpu_a_package_leaves_calls_to_sglang(
    registry: Registry, operator: Operator
) -> None:
    plugin = Plugin("tuned", {"rmsnorm": operator}, {"rmsnorm": DEFAULTS})
    plugin.register()
    x, w = torch.randn(4, 8).bfloat16(), torch.rand(8).bfloat16()
    found = registry.hooks["sgl_kernel.rmsnorm"](own_rmsnorm, x, w, 1e-5)
    assert torch.equal(found, own_rmsnorm(x, w, 1e-5))
    assert plugin.calls() == {"rmsnorm": {"tuned": 0, "original": 1}}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_hooked_function_is_part_of_a_compiled_graph(
    registry: Registry, operator: Operator, backend: str
) -> None:
    plugin = Plugin("tuned", {"rmsnorm": operator}, {"rmsnorm": DEFAULTS})
    plugin.register()
    call = registry.hooks["sgl_kernel.rmsnorm"]

    def step(x: Any, w: Any) -> Any:
        return call(own_rmsnorm, x + 1.0, w, eps=1e-5) - 1.0

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    x, w = torch.randn(4, 8).bfloat16(), torch.rand(8).bfloat16()
    for _ in range(3):
        assert torch.equal(compiled(x, w), own_rmsnorm(x + 1.0, w, 1e-5) - 1.0)
    assert plugin.calls() == {"rmsnorm": {"tuned": 0, "original": 3}}, "its fallback's, at run time"


@pytest.mark.slow
def test_sglangs_registry_hooks_what_is_compiled(
    registry: Registry, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = SGLANG.wheel() / "sglang/srt/plugins/hook_registry.py"
    spec = importlib.util.spec_from_file_location("hook_registry", path)
    assert spec is not None
    assert spec.loader is not None
    genuine: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(genuine)
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", genuine)
    importer = ModuleType("importer")
    importer.norm = own_rmsnorm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "importer", importer)
    kernels: Any = sys.modules["sgl_kernel"]
    plugin = Plugin("tuned", {"rmsnorm": operator}, {"rmsnorm": DEFAULTS})
    plugin.register()
    # Whoever imported the function has the hooked one: here this module too.
    monkeypatch.setitem(globals(), "own_rmsnorm", own_rmsnorm)
    plain = own_rmsnorm
    genuine.HookRegistry.apply_hooks()
    assert importer.norm is kernels.rmsnorm is not plain
    compiled = torch.compile(
        lambda x, w: importer.norm(x + 1.0, w), fullgraph=True, backend="eager"
    )
    x, w = torch.randn(4, 8).bfloat16(), torch.rand(8).bfloat16()
    assert torch.equal(compiled(x, w), plain(x + 1.0, w))
    assert plugin.calls() == {"rmsnorm": {"tuned": 0, "original": 1}}
