"""Load vLLM's plugins in a vLLM without a GPU, and say as JSON what became of them.

`python genuine_vllm.py PLUGIN` imports vLLM, tells it that this is an H200, and compiles two of its
layers; what is compiled of vLLM itself has stand-ins. With `--configured` no layer is compiled, and
with `--loader` only vLLM's loader of plugins is imported, which needs no packages.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from importlib.machinery import PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

DEVICE = "NVIDIA H200"
# vLLM's own activation is compiled, and rounds once less: in bf16 the last bit of a product of up
# to 4, of which the residual may cancel all but a little.
TOLERANCE = 4 * 2.0**-7
# What of vLLM is compiled, as far as layers and fallbacks call it.
LIBRARY = torch.library.Library("_C", "FRAGMENT")


def stand_in_for_kernels() -> None:
    """Define the operators of vLLM's library in PyTorch."""

    def rms_norm(out: Any, x: Any, w: Any, eps: float) -> None:
        out.copy_(torch.nn.functional.rms_norm(x.float(), w.shape, w.float(), eps))

    def fused_add_rms_norm(x: Any, residual: Any, w: Any, eps: float) -> None:
        residual.add_(x)
        rms_norm(x, residual.clone(), w, eps)

    def silu_and_mul(out: Any, x: Any) -> None:
        gate, up = x.chunk(2, dim=-1)
        out.copy_(torch.nn.functional.silu(gate) * up)

    for schema, function in (
        ("rms_norm(Tensor(a!) out, Tensor x, Tensor? w, float eps) -> ()", rms_norm),
        (
            "fused_add_rms_norm(Tensor(a!) x, Tensor(b!) r, Tensor? w, float eps) -> ()",
            fused_add_rms_norm,
        ),
        ("silu_and_mul(Tensor(a!) out, Tensor x) -> ()", silu_and_mul),
    ):
        LIBRARY.define(schema)
        LIBRARY.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")


def only_loader(plugin: str) -> dict[str, Any]:
    """Load plugins into a package that has vLLM's loader, and of the rest one function."""
    spec = PathFinder.find_spec("vllm", sys.path)
    assert spec is not None
    package = ModuleType("vllm")
    package.__path__ = list(spec.submodule_search_locations or ())
    operators: Any = ModuleType("vllm._custom_ops")
    operators.moe_sum = lambda input, output, topk_ids=None, expert_map=None: "moe_sum"  # noqa: A006
    importer: Any = ModuleType("vllm.importer")
    importer.add_up = operators.moe_sum
    kernel: Any = ModuleType("vllm.config.kernel")
    kernel.KernelConfig = SimpleNamespace(set_platform_defaults=lambda *_: None)
    platforms: Any = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(get_device_name=lambda: DEVICE)
    for module in (package, operators, importer, kernel, platforms):
        sys.modules[module.__name__] = module
    plugins: Any = importlib.import_module("vllm.plugins")
    plugins.load_general_plugins()
    returned = importer.add_up(torch.ones(2, 4, 8), torch.ones(2, 8))
    return {"returned": returned, "calls": importlib.import_module(f"{plugin}.vllm").calls()}


def layers() -> Any:
    """Return a norm, an activation and a norm that adds, as one function of hidden states."""
    layernorm: Any = importlib.import_module("vllm.model_executor.layers.layernorm")
    activation: Any = importlib.import_module("vllm.model_executor.layers.activation")
    torch.set_default_dtype(torch.bfloat16)
    first, last, act = layernorm.RMSNorm(16), layernorm.RMSNorm(8), activation.SiluAndMul()

    def step(x: Any, residual: Any) -> Any:
        return last(act(first(x)), residual + 0.0)

    return act, step


def all_of_vllm(plugin: str, *, compiles: bool) -> dict[str, Any]:
    """Load plugins into vLLM, and trace and lower its layers as its compiler does."""
    stand_in_for_kernels()
    interface: Any = importlib.import_module("vllm.platforms.interface")
    platforms: Any = importlib.import_module("vllm.platforms")

    class Pretended(interface.Platform):  # type: ignore[misc]
        _enum = interface.PlatformEnum.UNSPECIFIED
        device_type = "cpu"
        cuda = True

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return DEVICE

        def is_cuda_alike(self) -> bool:
            return self.cuda

    pretended = platforms._current_platform = Pretended()
    importlib.import_module("vllm.plugins").load_general_plugins()
    ours: Any = importlib.import_module(f"{plugin}.vllm")
    config: Any = importlib.import_module("vllm.config")
    made = config.VllmConfig()
    ir: Any = importlib.import_module("vllm.ir.ops")
    with config.set_current_vllm_config(made), made.kernel_config.ir_op_priority.set_priority():
        act, step = layers()
        torch.manual_seed(0)
        x, residual = torch.randn(4, 16), torch.randn(4, 8)
        # Fusions for a GPU name operators of vLLM's library that have no stand-ins.
        pretended.cuda = made.compilation_config.pass_config.fuse_norm_quant = False
        known = {
            "custom_ops": made.compilation_config.custom_ops,
            "mode": made.compilation_config.mode.name,
            "key": made.compute_hash(),
            "priority": ir.rms_norm.get_priority(),
            "activation": type(act).__name__,
        }
        if not compiles:
            return known
        found, called = compiled(step, made, (x, residual))
        pairs = zip(found, step(x.clone(), residual.clone()), strict=True)
        return {
            **known,
            "graph": called,
            "calls": ours.calls(),
            "right": all(torch.allclose(a, b, TOLERANCE, TOLERANCE) for a, b in pairs),
        }


def compiled(step: Any, made: Any, arguments: Any) -> Any:
    """Compile a function by PyTorch with vLLM's own passes over the graph, and call it."""
    passes = "vllm.compilation.passes"
    manager: Any = importlib.import_module(f"{passes}.pass_manager").PostGradPassManager()
    manager.configure(made)
    # It is for operators of vLLM's library; PyTorch does the same for all others.
    manager.fix_functionalization = lambda graph: None
    functional: Any = importlib.import_module(f"{passes}.ir.inplace_functionalization")
    context: Any = importlib.import_module(f"{passes}.inductor_pass").pass_context
    called: list[str] = []

    def lowered(graph: Any) -> None:
        manager(graph)
        called.extend(sorted(str(one.target) for one in graph.nodes if one.op == "call_function"))

    options = {
        "enable_auto_functionalized_v2": False,
        "pre_grad_custom_pass": functional.VllmIRInplaceFunctionalizationPass(made),
        "post_grad_custom_post_pass": lowered,
        "fx_graph_cache": False,
    }
    for one in arguments:
        torch._dynamo.mark_dynamic(one, 0)
    with context(importlib.import_module("vllm.config.utils").Range(1, 2048)):
        found = torch.compile(step, fullgraph=True, options=options)(*arguments)
    return found, called


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    package, *options = sys.argv[1:]
    if "--loader" in options:
        answer = only_loader(package)
    else:
        answer = all_of_vllm(package, compiles="--configured" not in options)
    print(json.dumps(answer))
