"""Problems of other projects in the judge: what they compute, and what they are asked on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_here import needs_torch

from tuner.device.encoding import storage_dtype
from tuner.device.inputs import INPUT_KINDS
from tuner.device.layout import lay_out
from tuner.device.problems import BenchProblem, is_problem, reference_of
from tuner.device.reference import load_peers
from tuner.device.verify.verifier import HostMemory, Verifier
from tuner.model.errors import KernelError, Untellable
from tuner.model.expressions import Expression
from tuner.model.kernel import Argument, KernelSpec, Tolerance, Workload

MODULE = """\
import torch
from torch import nn

T = 4
H = 2 * 3


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, 2)

    def forward(self, x, i):
        {forward}


def get_inputs():
    return [torch.randn(T, H), torch.randint(0, H, (T,))]


def get_init_inputs():
    return [H]
"""


def array(name: str, dtype: str, shape: str, role: str = "input") -> Argument:
    extents = tuple(Expression.parse(one) for one in shape.split())
    return Argument(name, dtype, extents, role)  # type: ignore[arg-type]


ARGUMENTS = (
    array("x", "float32", "T H"),
    array("i", "int64", "T"),
    array("layer_weight", "float32", "2 H"),
    array("layer_bias", "float32", "2"),
)
SIZES = {"T": 5, "H": 7}


def spec_of(path: Path, *arguments: Argument) -> KernelSpec:
    one = Expression.parse("1")
    written = {a.name: Tolerance(1e-5, 1e-6) for a in arguments if a.role == "output"}
    return KernelSpec(
        *("k", path.with_suffix(".yaml"), path, path, path, ("T", "H"), arguments),
        *((), (), one, (), (), written),
    )


def problem(folder: Path, forward: str, *outputs: Argument) -> KernelSpec:
    path = folder / "k.py"
    path.write_text(MODULE.format(forward=forward))
    return spec_of(path, *ARGUMENTS, *outputs)


OUT = array("out", "float32", "T 2", "output")


@needs_torch
def test_a_model_computes_in_float64_with_the_weights_it_is_given(tmp_path: Path) -> None:
    reference = reference_of(problem(tmp_path, "return self.layer(x.float())", OUT))
    rng = np.random.default_rng(0)
    inputs = {a.name: rng.standard_normal(a.dimensions(SIZES)) for a in ARGUMENTS}
    found = reference.compute(np, inputs, SIZES)["out"]
    expected = inputs["x"] @ inputs["layer_weight"].T + inputs["layer_bias"]
    assert found == pytest.approx(expected, rel=1e-14)


@needs_torch
def test_what_no_fill_could_draw_the_problem_draws_at_the_sizes_asked(tmp_path: Path) -> None:
    reference = reference_of(problem(tmp_path, "return self.layer(x)", OUT))
    assert reference.inputs is not None
    drawn = reference.inputs(np, np.random.default_rng(1), SIZES, "normal")
    assert list(drawn) == ["i"]
    assert drawn["i"].shape == (5,)
    assert set(drawn["i"]) <= {*range(7)}
    again = reference.inputs(np, np.random.default_rng(1), SIZES, "normal")
    assert (drawn["i"] == again["i"]).all()


@needs_torch
def test_inputs_that_a_fill_draws_are_drawn_by_the_problem_once(tmp_path: Path) -> None:
    path, drawn = tmp_path / "k.py", tmp_path / "drawn"
    text = MODULE.format(forward="return self.layer(x) * i")
    noted = f"    with open({str(drawn)!r}, 'a') as noted:\n        noted.write('.')\n"
    mine = f"{noted}    return [torch.randn(T, H), 3]"
    path.write_text(text.replace("    return [torch.randn(T, H), torch.randint(0, H, (T,))]", mine))
    arguments = [one for one in ARGUMENTS if one.name != "i"]
    reference = reference_of(spec_of(path, *arguments, OUT))
    assert reference.inputs is not None
    inputs = {a.name: np.ones(a.dimensions(SIZES)) for a in arguments}
    for kind in ("normal", "x3", "normal"):
        assert "i" not in reference.inputs(np, np.random.default_rng(1), SIZES, kind)
        assert (reference.compute(np, inputs, SIZES)["out"] == 3 * 8).all()
    assert drawn.read_text() == "."


@needs_torch
def test_what_is_drawn_by_a_fill_is_drawn_without_content(tmp_path: Path) -> None:
    """Of 6 GB on one core that takes eight seconds, whenever the problem is posed anew."""
    path, drawn = tmp_path / "k.py", tmp_path / "drawn"
    text = MODULE.format(forward="return self.layer(x)[i]")
    noted = f"    with open({str(drawn)!r}, 'a') as noted:\n        noted.write(str(x.device))\n"
    mine = f"    x = torch.randn(T, H)\n{noted}    return [x, torch.randint(0, H, (T,))]"
    path.write_text(text.replace("    return [torch.randn(T, H), torch.randint(0, H, (T,))]", mine))
    reference = reference_of(spec_of(path, *ARGUMENTS, OUT))
    assert reference.inputs is not None
    assert [*reference.inputs(np, np.random.default_rng(1), SIZES, "normal")] == ["i"]
    assert drawn.read_text() == "metacpu", "what a fill cannot draw is drawn in earnest"


@needs_torch
def test_inputs_that_pytorch_is_right_on_are_drawn_as_the_kind_says(tmp_path: Path) -> None:
    out = array("out", "float32", "T H", "output")
    reference = reference_of(problem(tmp_path, "return torch.relu(x)", out))
    assert reference.inputs is not None
    drawn = reference.inputs(np, np.random.default_rng(1), SIZES, "extreme")
    assert np.abs(drawn["x"]).max() == 2.0**60


@needs_torch
def test_two_outputs_in_one_array_leave_the_kinds_of_inputs(tmp_path: Path) -> None:
    outs = [array(name, "float32", "T 2", "output") for name in ("out", "again")]
    spec = problem(tmp_path, "y = self.layer(x)\n        return y, y", *outs)
    measured = {one.name: Tolerance(measured=True) for one in outs}
    reference = reference_of(replace(spec, tolerances=measured))
    assert reference.inputs is not None
    for kind in ("x3", "negated"):
        reference.inputs(np, np.random.default_rng(1), SIZES, kind)
        assert not reference.replaced()


@needs_torch
def test_inputs_whose_rounding_decides_are_those_of_normal(tmp_path: Path) -> None:
    sums = array("out", "float32", "T", "output")
    reference = reference_of(problem(tmp_path, "return x.sum(dim=1)", sums))
    assert reference.inputs is not None
    sizes = {"T": 64, "H": 64}
    drawn = reference.inputs(np, np.random.default_rng(1), sizes, "extreme")
    assert np.abs(drawn["x"]).max() < 10
    assert reference.replaced()
    assert np.abs(reference.inputs(np, np.random.default_rng(1), sizes, "x3")["x"]).max() > 5
    assert not reference.replaced()


@needs_torch
def test_what_cancels_before_a_sum_ends_is_never_asked(tmp_path: Path) -> None:
    # Of few rows, one alone may hold a number, what cancels it, and a small one between the two.
    sums = array("out", "float32", "T", "output")
    reference = reference_of(problem(tmp_path, "return x.sum(dim=1)", sums))
    assert reference.inputs is not None
    wrong = 0
    for seed in range(200):
        drawn = reference.inputs(np, np.random.default_rng(seed), {"T": 5, "H": 5}, "extreme")
        with np.errstate(over="ignore"):
            forth, back = drawn["x"].sum(axis=1), drawn["x"][:, ::-1].sum(axis=1)
        wrong += bool((np.abs(forth - back) > 1e-5).any())
    assert wrong == 0


@needs_torch
def test_a_verdict_names_no_kind_that_ordinary_inputs_stood_for(tmp_path: Path) -> None:
    spec = problem(tmp_path, "return x.sum(dim=1)", array("out", "float32", "T", "output"))
    workload = Workload.of({"T": 64, "H": 64})
    verifier = Verifier(HostMemory(), spec, {})
    verifier.open_arena(workload, lay_out(spec, workload.values))
    told = []
    for kind in ("extreme", "x3"):
        verifier.prepare(workload, kind, seed=1)
        told += verifier.check().input_kinds
    verifier.close_arena()
    assert told == ["extreme (ordinary ones in its place)", "x3"]


@needs_torch
def test_random_numbers_while_it_runs_are_refused(tmp_path: Path) -> None:
    spec = problem(tmp_path, "return nn.functional.dropout(self.layer(x))", OUT)
    inputs = {a.name: np.ones(a.dimensions(SIZES)) for a in ARGUMENTS}
    with pytest.raises(KernelError, match="draws random numbers while it runs"):
        reference_of(spec).compute(np, inputs, SIZES)


@needs_torch
def test_a_wrong_shape_names_problem_and_argument(tmp_path: Path) -> None:
    spec = problem(tmp_path, "return self.layer(x).T", OUT)
    inputs = {a.name: np.ones(a.dimensions(SIZES)) for a in ARGUMENTS}
    with pytest.raises(KernelError, match=r"gives shape \(2, 5\) for 'out', which is \(5, 2\)"):
        reference_of(spec).compute(np, inputs, SIZES)


@needs_torch
def test_sizes_reach_what_is_computed_from_them_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text(MODULE.format(forward="return x"))
    found, plain = BenchProblem(path).at({"H": 9}).inputs()
    assert found["x"].shape == (4, 9)
    assert plain == {"x": "normal"}
    assert {name: knob.value for name, knob in BenchProblem(path).knobs.items()} == {"T": 4, "H": 6}


@needs_torch
def test_a_problem_is_no_reference_file_and_has_no_peers(tmp_path: Path) -> None:
    spec = problem(tmp_path, "return x", OUT)
    assert is_problem(spec.reference)
    assert load_peers(spec.reference) == {}


@needs_torch
def test_a_definition_runs_its_reference_without_its_roundings(tmp_path: Path) -> None:
    path = tmp_path / "k.json"
    shape = {"shape": ["T", "H"], "dtype": "bfloat16"}
    run = (
        "import torch\ndef run(x, by):\n    return (x.to(torch.float32) * by).to(torch.bfloat16)\n"
    )
    path.write_text(
        json.dumps(
            {
                "name": "k",
                "axes": {"T": {"type": "var"}, "H": {"type": "const", "value": 7}},
                "inputs": {"x": shape, "by": {"shape": None, "dtype": "float32"}},
                "outputs": {"y": shape},
                "reference": run,
            }
        )
    )
    by = Argument("by", "float32", value=Expression.parse("1 / 3"))
    output = array("y", "bfloat16", "T H", "output")
    spec = spec_of(path, array("x", "bfloat16", "T H"), by, output)
    x = np.random.default_rng(0).standard_normal((5, 7))
    found = reference_of(spec).compute(np, {"x": x}, SIZES)["y"]
    assert found == pytest.approx(x / 3, rel=1e-15)


@needs_torch
def test_weights_are_drawn_as_wide_as_the_models_own_unless_these_are_all_equal(
    tmp_path: Path,
) -> None:
    spec = problem(tmp_path, "return self.layer(self.norm(x))", OUT)
    norm = "        self.norm = nn.LayerNorm(width)\n\n    def forward"
    text = spec.reference.read_text().replace("\n    def forward", norm)
    spec.reference.write_text(text)
    arguments = (*spec.arguments, array("norm_weight", "float32", "H"))
    sizes = {"T": 5, "H": 3000}
    reference = reference_of(spec_of(spec.reference, *arguments))
    spreads = reference.spreads(sizes)
    assert spreads == {"layer_weight": pytest.approx((3 * 3000) ** -0.5, rel=0.1)} | {
        "layer_bias": spreads["layer_bias"]
    }
    assert reference.inputs is not None
    tripled = reference.inputs(np, np.random.default_rng(1), sizes, "x3")
    assert tripled["layer_weight"].std() == pytest.approx(3 * (3 * 3000) ** -0.5, rel=0.1)
    assert tripled["norm_weight"].std() == pytest.approx(3, rel=0.1)


RECURRENT = """\
import torch
from torch import nn

S, B, H = 96, 3, 16


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.{kind}(width, width, num_layers=3)
        for weight in self.net.parameters():
            weight.data *= {wider}

    def forward(self, x):
        return self.net(x)[0][-1]


def get_inputs():
    return [torch.randn(S, B, H)]


def get_init_inputs():
    return [H]
"""
RECURRENT_SIZES = {"S": 96, "B": 3, "H": 16}
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}


class RecurrentBench:
    """The judge of a recurrent problem, and kernels for it in float32, step by step."""

    def __init__(self, folder: Path, kind: str, wider: float = 1.0) -> None:
        path = folder / "k.py"
        path.write_text(RECURRENT.format(kind=kind, wider=wider))
        rows = f"{GATES[kind]}*H"
        self.weights = [f"net_{n}_l{k}" for k in range(3) for n in ("weight_ih", "weight_hh")]
        self.biases = [f"net_{n}_l{k}" for k in range(3) for n in ("bias_ih", "bias_hh")]
        arguments = (
            array("x", "float32", "S B H"),
            *(array(name, "float32", f"{rows} H") for name in self.weights),
            *(array(name, "float32", rows) for name in self.biases),
            array("out", "float32", "B H", "output"),
        )
        one = Expression.parse("1")
        self.spec = KernelSpec(
            *("k", path.with_suffix(".yaml"), path, path, path, ("S", "B", "H"), arguments),
            *((), (), one, (), (), {"out": Tolerance(measured=True)}),
        )
        self.kind, self.memory = kind, HostMemory()
        self.verifier = Verifier(self.memory, self.spec, {})
        workload = self.workload = Workload.of(RECURRENT_SIZES)
        self.layout = lay_out(self.spec, workload.values)
        self.verifier.open_arena(workload, self.layout)

    def stored(self, name: str) -> Any:
        slot = next(slot for slot in self.layout.slots if slot.name == name)
        piece = self.memory.data[slot.offset : slot.offset + slot.size_bytes]
        return piece.view(storage_dtype(slot.dtype)).reshape(slot.shape)

    def run(self, *, swapped: bool = False, forgets_at: int = -1) -> None:
        """Compute the last states, or wrong ones."""
        import torch

        def tensor(name: str) -> Any:
            return torch.from_numpy(self.stored(name))

        states = torch.zeros(3, 2, *self.stored("out").shape)
        cell = {"GRU": torch.gru_cell, "LSTM": torch.lstm_cell, "RNN": torch.rnn_tanh_cell}
        width = RECURRENT_SIZES["H"]
        for step, given in enumerate(tensor("x")):
            if step == forgets_at:
                states[1] = 0
            for k in range(3):
                weights = [tensor(n) for n in (*self.weights, *self.biases) if n.endswith(f"_l{k}")]
                if swapped:
                    weights = [torch.cat([w[width : 2 * width], w[:width], w[2 * width :]])
                               for w in weights]  # fmt: skip
                before = (states[k, 0], states[k, 1]) if self.kind == "LSTM" else states[k, 0]
                after = cell[self.kind](given, before, *weights)
                for place, value in enumerate(after if self.kind == "LSTM" else [after]):
                    states[k, place] = value
                given = states[k, 0]  # noqa: PLW2901 - the next layer's input
        self.stored("out")[...] = states[2, 0].numpy()

    def passes(self, kernel: Callable[[], None], kind: str = "normal", *, first: bool) -> bool:
        self.verifier.prepare(self.workload, kind, 1 if first else 2)
        self.verifier.compute_reference()
        kernel()
        return self.verifier.check(whose="baseline" if first else "config").passed


@needs_torch
@pytest.mark.parametrize("kind", [*GATES])
def test_a_recurrence_is_judged_on_weights_with_which_it_is_none_of_chaos(
    tmp_path: Path, kind: str
) -> None:
    bench = RecurrentBench(tmp_path, kind)
    wrong = [lambda: bench.stored("out").fill(0.0)]
    gated = GATES[kind] > 1
    # Gates remember with larger weights what an early step left.
    forgetful = [partial(bench.run, forgets_at=step) for step in ((90, 64) if gated else (90,))]
    swapped = [partial(bench.run, swapped=True)] if gated else []
    for first in (True, False):
        for inputs in INPUT_KINDS:
            assert bench.passes(bench.run, inputs, first=first), inputs
        assert not any(bench.passes(kernel, first=first) for kernel in [*wrong, *swapped])
        assert not any(bench.passes(kernel, "x3", first=first) for kernel in forgetful)
    assert not bench.passes(forgetful[0], first=False)


@needs_torch
def test_a_problem_that_is_chaos_itself_is_told_as_its_own_fault(tmp_path: Path) -> None:
    bench = RecurrentBench(tmp_path, "GRU", wider=30.0)
    with pytest.raises(Untellable, match=r"roundings of the inputs decide most of 'out'") as caught:
        bench.passes(bench.run, first=True)
    assert caught.value.path == bench.spec.reference
    assert "smaller weights of a recurrence" in str(caught.value)
