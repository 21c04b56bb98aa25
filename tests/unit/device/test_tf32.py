"""Products whose operands may be rounded to TF32, as PyTorch rounds them on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_here import needs_torch

from tuner.device.layout import lay_out
from tuner.device.verify.verifier import HostMemory, Verifier
from tuner.model.errors import KernelError
from tuner.model.expressions import Expression
from tuner.model.kernel import Argument, KernelSpec, Tolerance, Workload
from tuner.model.trial import Correctness

PROBLEM = """\
import torch
from torch import nn

N, W = 4, 64


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(32, 8, 3, bias=False)

    def forward(self, x):
        return {forward}


def get_inputs():
    return [torch.randn(N, 32, W)]
"""
CONVOLVED = "torch.relu(self.conv(x))"
WORKLOAD = Workload.of({"N": 5, "W": 40})
Round = Callable[[Any, Any], Any]
STRICT = Tolerance(1e-4, 1e-4)


def spec_of(path: Path, tolerance: Tolerance) -> KernelSpec:
    def array(name: str, shape: str, role: str = "input") -> Argument:
        extents = tuple(map(Expression.parse, shape.split()))
        return Argument(name, "float32", extents, role)  # type: ignore[arg-type]

    one = Expression.parse("1")
    arguments = (
        *(array("x", "N 32 W"), array("conv_weight", "8 32 3")),
        array("out", "N 8 W-2", "output"),
    )
    return KernelSpec(
        *("k", path.with_suffix(".yaml"), path, path, path, ("N", "W"), arguments),
        *((), (), one, (), (), {"out": tolerance}),
    )


def bits(torch: Any, kept: int) -> Round:
    """Round to so many bits behind the point, to nearest."""

    def rounded(values: Any) -> Any:
        mantissa, exponent = torch.frexp(values)
        return torch.ldexp(torch.round(mantissa * 2 ** (kept + 1)) / 2 ** (kept + 1), exponent)

    return rounded


def judge(path: Path, tolerance: Tolerance, kernel: Round, kind: str = "normal") -> Correctness:
    """Verify what `kernel` makes of the inputs and the weights."""
    import torch

    spec, memory = spec_of(path, tolerance), HostMemory()
    verifier = Verifier(memory, spec, {})
    layout = lay_out(spec, WORKLOAD.values)
    verifier.open_arena(WORKLOAD, layout)
    verifier.prepare(WORKLOAD, kind, seed=1)
    slots = {slot.name: slot for slot in layout.slots}

    def view(name: str) -> Any:
        slot = slots[name]
        held = memory.data[slot.offset : slot.offset + slot.size_bytes]
        return held.view(np.float32).reshape(slot.shape)

    x, weight = (torch.from_numpy(view(n).copy()).double() for n in ("x", "conv_weight"))
    view("out")[...] = kernel(x, weight).numpy()
    verdict = verifier.check()
    verifier.close_arena()
    return verdict


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "k.py"
    path.write_text(PROBLEM.format(forward=CONVOLVED))
    return path


def convolve(rounds: Callable[[Any], Any], weights: Callable[[Any], Any] | None = None) -> Round:
    import torch

    def kernel(x: Any, weight: Any) -> Any:
        product = torch.nn.functional.conv1d(rounds(x), (weights or rounds)(weight))
        return torch.relu(product).float()

    return kernel


@needs_torch
@pytest.mark.parametrize("kind", ["normal", "x3", "zeros", "negated"])
def test_operands_may_be_exact_or_of_tf32_and_nothing_less(path: Path, kind: str) -> None:
    import torch

    exact, tf32, bfloat16 = (convolve(bits(torch, kept)) for kept in (23, 10, 7))
    allowed = replace(STRICT, tf32=True)
    found = [judge(path, allowed, one, kind).passed for one in (exact, tf32, bfloat16)]
    assert found == [True, True, False]
    found = [judge(path, STRICT, one, kind).passed for one in (exact, tf32)]
    assert found == [True, False]


@needs_torch
def test_what_is_wrong_otherwise_stays_wrong(path: Path) -> None:
    import torch

    right, allowed = convolve(bits(torch, 10)), replace(STRICT, tf32=True)

    def missing(x: Any, weight: Any) -> Any:
        out = right(x, weight)
        out[3, 2, 1] = 0.0 if out[3, 2, 1] else 1.0
        return out

    def undefined(x: Any, weight: Any) -> Any:
        return right(x, weight).fill_(torch.nan)

    def infinite(x: Any, weight: Any) -> Any:
        return right(x, weight).fill_(torch.inf)

    wrong = judge(path, allowed, missing)
    assert not wrong.passed
    assert "out[3, 2, 1]" in wrong.reason
    assert not judge(path, allowed, undefined).passed
    assert not judge(path, allowed, infinite).passed


@needs_torch
@pytest.mark.parametrize(
    "forward",
    [
        CONVOLVED,
        "torch.relu(nn.functional.conv1d(input=x, weight=self.conv.weight))",
        "torch.relu(sum(self.conv.weight[..., n] @ x[..., n : n + x.shape[2] - 2] "
        "for n in (0, 1, 2)))",
        "torch.relu(torch.matmul(self.conv.weight.flatten(1), "
        "nn.functional.unfold(x[..., None], (3, 1))))",
        "torch.relu(nn.functional.linear(x.unfold(2, 3, 1).transpose(1, 2).flatten(2), "
        "self.conv.weight.flatten(1)).transpose(1, 2))",
        "torch.relu(torch.baddbmm(torch.zeros(1), self.conv.weight.flatten(1).expand(len(x), -1, "
        "-1), nn.functional.unfold(x[..., None], (3, 1))))",
    ],
)
def test_a_product_is_rounded_however_it_is_written(tmp_path: Path, forward: str) -> None:
    import torch

    path = tmp_path / "k.py"
    path.write_text(PROBLEM.format(forward=forward))
    tf32 = convolve(bits(torch, 10))
    assert judge(path, replace(STRICT, tf32=True), tf32).passed
    assert not judge(path, STRICT, tf32).passed


@needs_torch
def test_a_number_is_rounded_to_the_nearest_and_a_tie_away_from_zero() -> None:
    import torch

    from tuner.device.torch_modes import round_to_tf32

    one = 2.0**-10
    given = [1.0, 1 + 0.49 * one, 1 + 0.5 * one, -1 - 0.5 * one, 0.0, -0.0, torch.inf, -torch.inf]
    expected = [1.0, 1.0, 1 + one, -1 - one, 0.0, -0.0, torch.inf, -torch.inf]
    found = round_to_tf32(torch, torch.tensor(given, dtype=torch.float64))
    assert found.tolist() == expected
    assert round_to_tf32(torch, torch.tensor([torch.nan])).isnan().all()
    whole = torch.tensor([3])
    assert round_to_tf32(torch, whole) is whole


def test_a_reference_in_numpy_rounds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text("def reference(xp, inputs, axes):\n    return {'out': inputs['x']}\n")
    with pytest.raises(KernelError, match="needs a reference in PyTorch") as raised:
        Verifier(HostMemory(), spec_of(path, replace(STRICT, tf32=True)), {})
    assert "k.py" in str(raised.value.remedy)
