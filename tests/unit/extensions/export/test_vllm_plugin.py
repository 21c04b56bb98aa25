"""Registration: what is put where in which vLLM, what it prefers, and who took the calls."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from installed_plugins import Noting, empty_table, registered

torch = pytest.importorskip("torch")

from tuner.extensions.runtime.pytorch import replacing  # noqa: E402
from tuner.extensions.runtime.pytorch.runtime import Array, Operator  # noqa: E402
from tuner.extensions.runtime.vllm.plugin import Plugin  # noqa: E402

CHOICES = {"GEMMA": "false", "ROUNDED": "false", "ACTIVATION": "silu"}


COMPILATION = SimpleNamespace(custom_ops=[], enabled_custom_ops=Counter[str]())


class KernelConfig:
    """vLLM's, as far as the plugin prefers something in it."""

    def __init__(self, *norm: str) -> None:
        self.ir_op_priority = SimpleNamespace(rms_norm=list(norm))

    def set_platform_defaults(self, vllm_config: Any) -> None:
        self.ir_op_priority.rms_norm.append("native")


class SiluAndMul:
    """A custom layer of vLLM, which a registry of others may stand in for."""

    name = "silu_and_mul"
    others: dict[str, Any]

    def __init__(self) -> None:
        self.forward = self.dispatch_forward(compile_native=True)

    def dispatch_forward(self, compile_native: bool) -> Any:
        return self.forward_cuda

    def forward_cuda(self, x: Any) -> Any:
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    @classmethod
    def register_oot(cls, name: str) -> Callable[[Any], None]:
        assert name not in cls.others, "Duplicate op name"
        return lambda other: cls.others.update({name: other})


class RmsNorm:
    """An operator of vLLM's IR."""

    name, allow_inplace = "rms_norm", False

    def __init__(self) -> None:
        def rms_norm(x: Any, weight: Any, epsilon: float, variance_size: Any = None) -> Any:
            return torch.nn.functional.rms_norm(x, weight.shape, weight, epsilon)

        self.impls = {one: SimpleNamespace(impl_fn=rms_norm) for one in ("native", "vllm_c")}

    def register_impl(
        self, provider: str, *, supports_args: Any, inplace: bool
    ) -> Callable[[Any], None]:
        assert provider not in self.impls
        made = SimpleNamespace(supports_args=supports_args, inplace=inplace)
        return lambda function: self.impls.update(
            {provider: SimpleNamespace(impl_fn=function, **vars(made))}
        )


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A vLLM 0.32.0 on an H200, with an operator, a layer and a function that one has imported."""
    monkeypatch.setattr(SiluAndMul, "others", {}, raising=False)
    monkeypatch.setattr(replacing.metadata, "version", lambda _: "0.32.0+cu130")
    for name in ("TUNED_VLLM", "TUNED_VLLM_ANY_VERSION"):
        monkeypatch.delenv(name, raising=False)

    def moe_sum(input: Any, output: Any, topk_ids: Any = None, expert_map: Any = None) -> str:  # noqa: A002
        return "vLLM's own"

    held = {
        "vllm": {"__path__": []},
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.platforms": {
            "current_platform": SimpleNamespace(get_device_name=lambda: "NVIDIA H200")
        },
        "vllm.config": {"__path__": [], "get_cached_compilation_config": lambda: COMPILATION},
        "vllm.config.kernel": {"KernelConfig": type("KernelConfig", (KernelConfig,), {})},
        "vllm.kernels": {"__path__": []},
        "vllm.kernels.vllm_c": {},
        "vllm.ir": {"__path__": []},
        "vllm.ir.ops": {"rms_norm": RmsNorm()},
        "vllm.model_executor": {"__path__": []},
        "vllm.model_executor.layers": {"__path__": []},
        "vllm.model_executor.layers.activation": {"SiluAndMul": SiluAndMul},
        "vllm._custom_ops": {"moe_sum": moe_sum},
        "vllm.importer": {"add_up": moe_sum},
    }
    modules = {name: ModuleType(name) for name in held}
    for name, module in modules.items():
        vars(module).update(held[name])
        monkeypatch.setitem(sys.modules, name, module)
    return modules


def made(*names: str, package: str = "tuned", **choices: str) -> Plugin:
    operators = {one: Noting() for one in names}
    return Plugin(package, operators, {one: {**CHOICES, **choices} for one in names})


ALL = ("moe_sum_reduce", "rmsnorm", "silu_and_mul")
ACT = "vllm.model_executor.layers.activation"
QUANTIZED, PLAIN = SimpleNamespace(quantization="fp8"), SimpleNamespace(quantization=None)


def preferred(
    engine: dict[str, Any], *norm: str, mode: int = 3, model: Any = PLAIN, custom: str = "none"
) -> tuple[list[str], list[str]]:
    """Let vLLM finish a config; return the order for norms, and the layers that are on."""
    compilation = SimpleNamespace(mode=mode, custom_ops=custom.split())
    kernel = engine["vllm.config.kernel"].KernelConfig(*norm)
    for _ in range(2):  # as vLLM may
        kernel.set_platform_defaults(
            SimpleNamespace(model_config=model, compilation_config=compilation)
        )
    return kernel.ir_op_priority.rms_norm[:2], compilation.custom_ops


def test_each_operator_is_placed_and_logged(
    engine: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    plugin = made(*ALL)
    plugin.register()
    assert plugin.enabled == set(ALL)
    assert "moe_sum_reduce: tuned kernels in place of vllm._custom_ops.moe_sum" in caplog.messages
    assert f"silu_and_mul: tuned kernels in place of {ACT}.SiluAndMul" in caplog.messages
    assert {one.name for one in caplog.records} == {"vllm.plugins.tuned"}, "which vLLM shows"
    assert "rms_norm" in caplog.text


def test_a_function_is_replaced_for_whoever_has_imported_it(engine: dict[str, Any]) -> None:
    plugin = made("moe_sum_reduce")
    plugin.register()
    x, out = torch.ones(2, 4, 8), torch.ones(2, 8)
    assert engine["vllm.importer"].add_up(x, output=out) is None
    assert engine["vllm._custom_ops"].moe_sum(x, out, out, out) == "vLLM's own"
    plugin.enabled.clear()
    assert engine["vllm._custom_ops"].moe_sum(x, out) == "vLLM's own"
    assert plugin.calls()["moe_sum_reduce"]["original"] == 2


def test_a_function_in_a_compiled_graph_is_vllms_own(engine: dict[str, Any]) -> None:
    plugin = made("moe_sum_reduce")
    plugin.register()
    add_up = engine["vllm.importer"].add_up
    compiled = torch.compile(lambda x: add_up(x, x), fullgraph=True, backend="eager")
    assert compiled(torch.ones(2, 4, 8)) == "vLLM's own"
    assert plugin.calls() == {"moe_sum_reduce": {"tuned": 0, "original": 0}}


def test_an_implementation_has_the_signature_of_vllms(engine: dict[str, Any]) -> None:
    plugin = made("rmsnorm", package="Tuned")
    plugin.register()
    implementation = engine["vllm.ir.ops"].rms_norm.impls["tuned_tuned"]
    x, w = torch.ones(2, 8, dtype=torch.bfloat16), torch.ones(8, dtype=torch.bfloat16)
    assert implementation.supports_args(x, w, 1e-6)
    assert not implementation.supports_args(x.float(), w.float(), 1e-6)
    assert implementation.impl_fn(x, w, 1e-6).shape == (2, 8)
    plugin.enabled.clear()
    assert not implementation.supports_args(x, w, 1e-6), "vLLM's own is next"


def test_a_config_prefers_ours(engine: dict[str, Any]) -> None:
    made(*ALL).register()
    assert preferred(engine) == (["tuned_tuned", "native"], ["none", "+TunedSiluAndMul"])


def test_what_the_user_asked_for_stays(engine: dict[str, Any]) -> None:
    made(*ALL).register()
    norm, layers = preferred(engine, "vllm_c", custom="none -silu_and_mul")
    assert norm[0] == "vllm_c"
    assert layers == ["none", "-silu_and_mul"]


def test_what_is_compiled_with_a_quantization_stays(engine: dict[str, Any]) -> None:
    made(*ALL).register()
    assert preferred(engine, model=QUANTIZED) == (["native", "native"], ["none"])
    assert preferred(engine, model=QUANTIZED, mode=0)[0] == ["tuned_tuned", "native"]


def leaves_vllm_alone(engine: dict[str, Any], plugin: Plugin) -> bool:
    plugin.register()
    config = engine["vllm.config.kernel"].KernelConfig
    return (
        not plugin.enabled
        and not SiluAndMul.others
        and engine["vllm._custom_ops"].moe_sum(None, None) == "vLLM's own"
        and config.set_platform_defaults is KernelConfig.set_platform_defaults
    )


def test_another_version_is_left_alone(
    engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replacing.metadata, "version", lambda _: "0.33.0")
    assert leaves_vllm_alone(engine, made(*ALL))
    (said,) = caplog.messages
    assert "tested with vLLM 0.32.0, this is 0.33.0: nothing is replaced" in said
    monkeypatch.setenv("TUNED_VLLM_ANY_VERSION", "1")
    assert not leaves_vllm_alone(engine, made(*ALL))


@pytest.mark.parametrize("name", ["NVIDIA H100", None])
def test_another_gpu_is_left_alone(
    engine: dict[str, Any], caplog: pytest.LogCaptureFixture, name: str | None
) -> None:
    def get_device_name() -> str:
        if name is None:
            raise NotImplementedError
        return name

    engine["vllm.platforms"].current_platform.get_device_name = get_device_name
    assert leaves_vllm_alone(engine, made(*ALL))
    assert caplog.messages == [
        f"tuned is tuned for NVIDIA H200, this is {name or 'no GPU'}: nothing is replaced"
    ]


def test_results_that_must_not_depend_on_the_batch_are_vllms(
    engine: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    engine["vllm.envs"].VLLM_BATCH_INVARIANT = True
    assert leaves_vllm_alone(engine, made(*ALL))
    assert caplog.messages == ["tuned: VLLM_BATCH_INVARIANT is set: nothing is replaced"]


def test_in_its_batch_invariant_mode_only_invariant_rows_are_ours(
    engine: dict[str, Any],
) -> None:
    engine["vllm.envs"].VLLM_BATCH_INVARIANT = True
    operators = {
        "moe_sum_reduce": Noting(),
        "rmsnorm": Noting(invariant=True),
        "silu_and_mul": Noting(invariant=True),
    }
    plugin = Plugin("tuned", operators, dict.fromkeys(operators, CHOICES))
    plugin.register()
    assert engine["vllm._custom_ops"].moe_sum(None, None) == "vLLM's own"
    assert plugin.calls()["moe_sum_reduce"] == {"tuned": 0, "original": 1, "refused": 1}
    # Where it serves no shape, what stands in for vLLM's norm would count the rows.
    assert [*engine["vllm.ir.ops"].rms_norm.impls] == ["native", "vllm_c"]
    assert plugin.enabled == {"moe_sum_reduce", "silu_and_mul"}


def test_the_switch_turns_all_off(engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNED_VLLM", "0")
    assert leaves_vllm_alone(engine, made(*ALL))


def test_the_switch_leaves_the_named_ones_on(
    engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNED_VLLM", "rmsnorm")
    plugin = made(*ALL)
    plugin.register()
    assert plugin.enabled == {"rmsnorm"}


def test_an_operator_without_a_hook_is_one_warning(
    engine: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    Plugin("tuned", {"merge_state": Noting()}, {"merge_state": {}}).register()
    (said,) = caplog.messages
    assert said.startswith("merge_state: nothing of vLLM is replaced: its logarithms")


def test_the_second_of_two_packages_leaves_a_layer_to_the_first(
    engine: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    made("silu_and_mul").register()
    caplog.clear()
    second = made("silu_and_mul", package="other")
    second.register()
    assert not second.enabled
    assert f"{ACT}.SiluAndMul is not replaced: Duplicate op name" in caplog.messages[0]


def test_a_process_may_load_it_again(
    engine: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    plugin = made(*ALL)
    plugin.register()
    caplog.clear()
    plugin.register()
    assert not caplog.messages


@pytest.fixture
def operator(tmp_path: Any) -> Iterator[Operator]:
    """An operator of a package, on a machine without its GPU."""
    table = empty_table(
        tmp_path,
        "silu_and_mul",
        (Array("out", "bfloat16", "output"), Array("x", "bfloat16", "input")),
        shapes=lambda rows, width: ((rows, width), (rows, 2 * width)),
    )
    with registered(table, "tuned_vllm_test") as found:
        yield found


def test_a_layer_whose_config_prefers_vllms_is_vllms(engine: dict[str, Any]) -> None:
    plugin = made("silu_and_mul")
    plugin.register()
    layer = SiluAndMul.others["SiluAndMul"]()
    assert layer.name == "silu_and_mul", "by which users switch it"
    assert layer.forward == layer.forward_cuda


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_layer_of_ours_is_part_of_a_compiled_graph(
    engine: dict[str, Any],
    operator: Operator,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = SiluAndMul().forward_cuda
    library = SimpleNamespace(silu_and_mul=lambda out, x: out.copy_(own(x)))
    monkeypatch.setattr(torch.ops, "_C", library)
    plugin = Plugin("tuned", {"silu_and_mul": operator}, {"silu_and_mul": CHOICES})
    plugin.register()
    monkeypatch.setattr(COMPILATION, "custom_ops", ["none", "+TunedSiluAndMul"])
    layer = SiluAndMul.others["SiluAndMul"]()
    caplog.clear()

    def step(x: Any) -> Any:
        return layer.forward(x + 1.0) - 1.0

    x = torch.randn(4, 16).bfloat16()
    for _ in range(3):
        found = torch.compile(step, fullgraph=True, backend=backend)(x)
        assert torch.equal(found, own(x + 1.0) - 1.0)
    assert plugin.calls() == {"silu_and_mul": {"tuned": 0, "original": 3}}
    assert torch.equal(layer.forward(x), own(x))
    assert plugin.calls() == {"silu_and_mul": {"tuned": 0, "original": 4}}, "not compiled"
    assert not [one for one in caplog.records if one.levelno > logging.INFO]
