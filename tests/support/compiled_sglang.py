"""Compile SGLang's own Triton kernels for an H200 without one: what shared memory do they take?

`python compiled_sglang.py` reads cases as JSON from its standard input. What would be launched is
compiled instead, for the very arguments. Started by `shared_bytes`, in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from callable_kernels import drawn
from interpreted_sglang import MOE, in_a_child, modules_of, replaced, stand_in, tensors_of

# By which Triton distinguishes addresses and sizes.
DIVISOR = 16
TYPES = {
    **{"torch.bfloat16": "bf16", "torch.float8_e4m3fn": "fp8e4nv", "torch.float32": "fp32"},
    **{"torch.int32": "i32"},
}


def shared_bytes(cases: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Give what each launch of each case takes; skip the test where something isn't installed."""
    return [one["shared_bytes"] for one in in_a_child(Path(__file__), cases, {})]


class Compiling:
    """A kernel of Triton's that is compiled where it would be launched."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.shared_bytes: list[int] = []

    def __getitem__(self, grid: Any) -> Any:
        def launch(*given: Any, **named: Any) -> None:
            options = {key: named.pop(key) for key in ("num_warps", "num_stages") if key in named}
            values = dict(zip(self._kernel.arg_names, given, strict=False)) | named
            self.shared_bytes.append(compiled(self._kernel, values, options))

        return launch


def compiled(kernel: Any, values: Mapping[str, Any], options: Mapping[str, int]) -> int:
    """Compile as Triton's launcher does: a 1, a None and a `constexpr` are constants."""
    triton: Any = importlib.import_module("triton")
    compiler: Any = importlib.import_module("triton.compiler")
    backends: Any = importlib.import_module("triton.backends.compiler")
    signature, constants, attributes = {}, {}, {}
    for parameter in kernel.params:
        value, place = values[parameter.name], (parameter.num,)
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1):
            signature[parameter.name] = "constexpr"
            constants[place] = value
            continue
        if isinstance(value, int):
            signature[parameter.name], divides = "i32", value % DIVISOR == 0
        else:
            signature[parameter.name], divides = f"*{TYPES[str(value.dtype)]}", True
        if divides:
            attributes[place] = [["tt.divisibility", DIVISOR]]
    source = compiler.ASTSource(kernel, signature, constants, attributes)
    target = backends.GPUTarget("cuda", 90, 32)
    return int(triton.compile(source, target=target, options=dict(options)).metadata.shared)


def main() -> None:
    cases = json.load(sys.stdin)
    stand_in()
    # As on an H200, where `is_sm90_supported` is true.
    modules: Any = sys.modules
    modules[MOE].should_enable_swap_ab = lambda rows, columns: rows < 64 and columns >= 64
    launchers, kernels = modules_of(cases), replaced(Compiling)
    found = []
    for case in cases:
        for kernel in kernels:
            kernel.shared_bytes.clear()
        given = drawn(case["kernel"], case["axes"], "normal", 1, **case["operators"])
        launch = launchers[case["kernel"]]["launch"]
        launch(case["config"], tensors_of(case, given), case["axes"], **case["operators"])
        found.append({"shared_bytes": [one for kernel in kernels for one in kernel.shared_bytes]})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
