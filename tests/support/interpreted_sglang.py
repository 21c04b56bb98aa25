"""Run engines' own Triton kernels on the CPU under Triton's interpreter: how far off are they?

`python interpreted_sglang.py` reads cases as JSON from its standard input. What is compiled in
SGLang has stand-ins, and so has the GPU's name. Started by `interpreted`, in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from callable_kernels import KERNELS, Drawn, callable_space, drawn

from tuner.extensions.cpu.callables import mend_interpreter

GPU = "NVIDIA H200"
HERE = Path(__file__).parent
ALIGN = "sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size"
CHOICE = "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_config"
MOE = "sglang.kernels.ops.moe.fused_moe_triton_kernels"
FP8 = "sglang.kernels.ops.quantization.fp8_kernel"
INVARIANT = "sglang.srt.batch_invariant_ops.batch_invariant_ops"
# Whose kernels a process runs.
ENGINE = "TESTED_ENGINE"

CONFIG_KEYS = (
    *("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M"),
    *("num_warps", "num_stages"),
)


def interpreted(cases: Sequence[Mapping[str, Any]], engine: str = "sglang") -> list[dict[str, Any]]:
    """Run `cases` in a process of their own; skip the test where something is not installed.

    A case has `kernel`, `axes`, `operators`, `config` (None is SGLang's own choice) and `fill`;
    without `fill` nothing is run, and the answer is what SGLang would choose.
    """
    return in_a_child(Path(__file__), cases, {"TRITON_INTERPRET": "1", ENGINE: engine})


def in_a_child(
    script: Path, cases: Sequence[Mapping[str, Any]], environment: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Give `cases` to a script that can import Triton and SGLang, and read its last line."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed: pip install triton==3.6.0")
    path = [str(HERE), str(HERE.parents[1])]
    engine = environment.get(ENGINE, "sglang")
    if find_spec(engine) is None:
        from engine_wheels import SGLANG, VLLM

        wheel = {"sglang": SGLANG, "vllm": VLLM}[engine]
        # Before what is installed: that may be newer than the engine's own packages take.
        path += [str(wheel.packages()), str(wheel.wheel())]
    own = {"PYTHONPATH": os.pathsep.join([*path, *sys.path]), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(script)],
        input=json.dumps(list(cases)),
        env={**os.environ, **own, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def align(
    ids: Any,
    experts: int,
    tile: int,
    sorted_ids: Any,
    expert_ids: Any,
    count: Any,
    scratch: Any,
    padded: bool,
) -> None:
    """Stand in for sgl_kernel's `moe_align_block_size`: its experts count from -1."""
    assert padded
    assert len(scratch) >= experts + 1
    of_routes = ids.view(-1).long() + 1
    sorted_ids.fill_(of_routes.numel())
    tiles = 0
    for expert in range(experts):
        routes = (of_routes == expert).nonzero().view(-1)
        sorted_ids[tiles * tile :][: len(routes)] = routes.int()
        ends = tiles + -(-len(routes) // tile)
        expert_ids[tiles:ends] = expert - 1
        tiles = ends
    count.fill_(tiles * tile)


def stand_in() -> None:
    """Put stand-ins in place of what is compiled, before SGLang is imported and after."""
    from genuine_sglang import FAKED, _Fake

    for name in FAKED:
        sys.modules[name] = _Fake(name)
    # Newer, for our own tests, than what SGLang's transformers can be imported beside.
    sys.modules["kernels"] = None  # type: ignore[assignment]
    importlib.import_module(ALIGN)
    modules: Any = sys.modules
    modules[ALIGN].sgl_moe_align_block_size = lambda *given: align(*given[:8])
    for name in (CHOICE, FP8):
        importlib.import_module(name)
        modules[name].get_device_name = lambda: GPU


class Noting:
    """A kernel of Triton's that notes the configs that it is launched with."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.launched: list[dict[str, int]] = []

    def __getitem__(self, grid: Any) -> Any:
        def launch(*given: Any, **named: Any) -> None:
            self.launched.append({key: named[key] for key in CONFIG_KEYS if key in named})
            self._kernel[grid](*given, **named)

        return launch


def replaced(by: Callable[[Any], Any]) -> list[Any]:
    """Put something else in the place of each of the engine's kernels."""
    found = []
    kernels = [
        *((MOE, "fused_moe_kernel"), (FP8, "_w8a8_block_fp8_matmul")),
        (INVARIANT, "matmul_kernel_persistent"),
    ]
    if os.environ.get(ENGINE) == "vllm":
        kernels = [("vllm.model_executor.determinism.batch_invariant", "matmul_kernel_persistent")]
    for name, kernel in kernels:
        module = importlib.import_module(name)
        found.append(by(getattr(module, kernel)))
        setattr(module, kernel, found[-1])
    return found


def tensors_of(case: Mapping[str, Any], given: Drawn) -> dict[str, Any]:
    """Give the drawn inputs as PyTorch's tensors, and an output that nothing is written to yet."""
    import torch

    spec = callable_space(case["kernel"], **case["operators"]).spec
    views = {"bfloat16": torch.bfloat16, "float8_e4m3": torch.float8_e4m3fn}
    tensors = {"out": torch.full(given.out.shape, torch.nan, dtype=torch.bfloat16)}
    for argument in spec.arguments:
        if argument.role == "input":
            stored = torch.from_numpy(given.stored[argument.name])
            tensors[argument.name] = stored.view(views.get(argument.dtype, stored.dtype))
    return tensors


def run(
    case: Mapping[str, Any], module: Mapping[str, Any], kernels: Sequence[Noting]
) -> dict[str, Any]:
    """Launch one case, and say how far its worst element is off, in tolerances, and its configs."""
    operators, axes = case["operators"], case["axes"]
    given = drawn(case["kernel"], axes, case["fill"], 1, **operators)
    tensors = tensors_of(case, given)
    for kernel in kernels:
        kernel.launched.clear()
    returned = module["launch"](case["config"], tensors, axes, **operators)
    out = (returned or tensors)["out"].double().numpy()
    tolerance = callable_space(case["kernel"], **operators).spec.tolerances["out"]
    allowed = tolerance.absolute + tolerance.relative * np.abs(given.out)
    worst = float(np.max(np.abs(out - given.out) / allowed))
    return {"worst": worst, "launched": [one for kernel in kernels for one in kernel.launched]}


def chosen(case: Mapping[str, Any], module: Mapping[str, Any]) -> dict[str, Any]:
    try:
        configs = module["configs_of"](None, case["axes"], case["operators"]["WEIGHTS"])
    except NotImplementedError as error:
        return {"refused": str(error)}
    return {"chosen": configs}


def modules_of(cases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    names = {case["kernel"] for case in cases}
    return {name: runpy.run_path(f"{KERNELS / name}.py") for name in names}


def main() -> None:
    cases = json.load(sys.stdin)
    if os.environ.get(ENGINE) != "vllm":
        stand_in()
    mend_interpreter()
    modules, kernels = modules_of(cases), replaced(Noting)
    found = []
    for case in cases:
        module = modules[case["kernel"]]
        found.append(run(case, module, kernels) if "fill" in case else chosen(case, module))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
