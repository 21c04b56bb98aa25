"""A reference that a search space says in PyTorch: what it computes, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_here import needs_torch

from tuner.app.plan import read_space
from tuner.device.problems import reference_of
from tuner.device.reference import load_peers
from tuner.model.errors import InputError, KernelError
from tuner.model.kernel import KernelSpec
from tuner.space.load import load_definition

SPACE = """\
version: 1
kernel: k
source: k.cu
reference: {reference}
template: k.cu.j2
axes: [T, H]
operator: {{ACTIVATION: [silu, gelu]}}
arguments:
  - {{name: x, dtype: bfloat16, shape: [T, H]}}
  - {{name: i, dtype: int32, shape: [T]}}
  - {{name: epsilon, dtype: float32, value: 1e-6}}
  - {{name: y, dtype: {dtype}, shape: [{shape}], role: output}}
{more}workloads:
  tuned: [{{T: 3, H: 4}}]
min_bytes: T
baseline:
  launch: [{{kernel: k, grid: [T], block: [128]}}]
parameters: {{block_size: [64]}}
launch: [{{kernel: k, grid: [T], block: [block_size]}}]
tolerance: {{y: {{relative: 1.0e-5}}{tolerances}}}
"""
SECOND = "  - {name: z, dtype: int32, shape: [T], role: output}\n"
Make = Callable[..., KernelSpec]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    (tmp_path / "k.cu").write_text("")
    (tmp_path / "k.cu.j2").write_text("")

    def make(
        text: str, dtype: str = "bfloat16", shape: str = "T, H", *, second: bool = False
    ) -> KernelSpec:
        path = tmp_path / "k.yaml"
        written = f'{{torch: "{text}"}}' if "\n" not in text else f"\n  torch: |\n{text}"
        more, tolerances = (SECOND, ", z: {absolute: 0}") if second else ("", "")
        path.write_text(
            SPACE.format(
                reference=written, dtype=dtype, shape=shape, more=more, tolerances=tolerances
            )
        )
        return load_definition(path).spec

    return make


X = np.arange(12.0).reshape(3, 4) / 7
INPUTS: Mapping[str, Any] = {"x": X, "i": np.array([2.0, 0.0, 1.0])}


def computed(spec: KernelSpec, **operator: str) -> Mapping[str, Any]:
    axes = spec.tuned[0].values
    found = reference_of(spec).compute(np, dict(INPUTS), axes, **operator)
    return {name: values.tolist() for name, values in found.items()}


@needs_torch
def test_an_expression_gives_the_output_in_float64(make: Make) -> None:
    found = computed(make("F.rms_norm(x, (H,), eps=epsilon)"))
    expected = X / np.sqrt((X * X).mean(-1, keepdims=True) + 1e-6)
    assert np.array(found["y"]) == pytest.approx(expected, rel=1e-14)


@needs_torch
def test_lines_may_end_in_an_expression_or_assign_to_outputs(make: Make) -> None:
    ends = make("    a = x * 2\n    a + 1\n")
    assigns = make("    y = x * 2 + 1\n    z = x.argmax(-1)\n", second=True)
    assert computed(ends)["y"] == computed(assigns)["y"] == (X * 2 + 1).tolist()
    assert computed(assigns)["z"] == [3, 3, 3]


@needs_torch
def test_several_results_are_the_outputs_in_their_order(make: Make) -> None:
    found = computed(make("x + 1, x.argmax(-1)", second=True))
    assert found == {"y": (X + 1).tolist(), "z": [3, 3, 3]}


@needs_torch
def test_whole_numbers_are_indices_and_choices_are_texts(make: Make) -> None:
    spec = make("(F.gelu if ACTIVATION == 'gelu' else torch.neg)(x[i])")
    assert computed(spec, ACTIVATION="silu")["y"] == (-X[[2, 0, 1]]).tolist()


@needs_torch
def test_what_it_makes_itself_is_float64_too_and_the_default_stays(make: Make) -> None:
    import torch

    assert computed(make("torch.full((T, H), 0.1)"))["y"][0][0] == 0.1
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("F.silu(z)", "names `z`, which is no input", "names here: x, i, epsilon, T, H"),
        ("F.silu(epsilo) * x", "names `epsilo`", "did you mean `epsilon`?"),
        ("x +", "is no Python: invalid syntax", "write an expression"),
        ("import os", "imports something", "goes into a .py file"),
        ("a = x", "gives nothing for the output `y`", "end with an expression, or assign to y"),
        ("", "is empty", "write an expression"),
    ],
)
def test_a_mistake_in_the_text_is_told_with_the_line(
    make: Make, text: str, message: str, remedy: str
) -> None:
    with pytest.raises(InputError) as failed:
        make(text)
    assert message in str(failed.value)
    assert remedy in str(failed.value)
    assert "k.yaml:4:" in str(failed.value)


@needs_torch
def test_the_line_is_that_of_the_text_in_a_block(make: Make) -> None:
    with pytest.raises(InputError, match=r"k\.yaml:7: .* names `w`"):
        make("    a = x * 2\n    a * w\n")
    with pytest.raises(InputError, match=r"k\.yaml:7: fails: IndexError"):
        evaluated(make("    a = x * 2\n    a.sum(7)\n"))


def evaluated(spec: KernelSpec) -> None:
    from tuner.device.reference import blamed_on

    with blamed_on(spec.reference, "fails"):
        computed(spec)


@needs_torch
@pytest.mark.parametrize(
    ("text", "dtype", "message"),
    [
        ("x.sum(-1)", "bfloat16", r"gives shape \(3,\) for 'y', which is \(3, 4\)"),
        ("x, x", "bfloat16", "gives 2 results for the outputs y"),
        ("torch.fft.fft(x)", "float32", "gives complex numbers for 'y'"),
        ("x / 2", "int32", "gives fractions for 'y', which is int32"),
        ("'x'", "float32", "gives a str for 'y'"),
    ],
)
def test_a_wrong_result_is_one_error_with_line_and_remedy(
    make: Make, text: str, dtype: str, message: str
) -> None:
    with pytest.raises(KernelError, match=message) as failed:
        computed(make(text, dtype))
    assert "k.yaml:4:" in str(failed.value)
    assert failed.value.remedy


def test_missing_pytorch_is_told_with_what_to_install(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    spec = make("x")
    monkeypatch.setattr("tuner.device.torch_reference.import_module", missing)
    with pytest.raises(KernelError, match=r"k\.yaml:4: .*needs PyTorch") as failed:
        reference_of(spec)
    assert "pip install torch" in str(failed.value)


def test_a_search_space_as_its_own_reference_has_no_peers(make: Make) -> None:
    spec = make("x")
    assert spec.reference == spec.path
    assert load_peers(spec.reference) == {}
    assert read_space(spec.path).spec.torch == spec.torch


@pytest.mark.parametrize("reference", ["{numpy: x}", "{torch: 3}", "7", "[a]"])
def test_other_references_are_refused(tmp_path: Path, reference: str) -> None:
    path = tmp_path / "k.yaml"
    path.write_text(
        SPACE.format(reference=reference, dtype="int8", shape="T", more="", tolerances="")
    )
    with pytest.raises(InputError, match=r"k\.yaml:4: `reference` is ") as failed:
        load_definition(path)
    assert "an expression over PyTorch" in str(failed.value)
