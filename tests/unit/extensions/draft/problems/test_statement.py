"""What a problem states, and those that cannot be said: one sentence each."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest
from torch_here import needs_torch

from tuner.extensions.draft.problems.kernel import skeleton
from tuner.extensions.draft.problems.statement import (
    Statement,
    read_statement,
    statement_of,
    states_problem,
)
from tuner.model.errors import InputError, KernelError
from tuner.model.expressions import Expression

pytestmark = needs_torch

MODULE = """\
import torch
from torch import nn

rows = 24
columns = {columns}


class Model(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        {init}

    def forward(self, x{parameters}):
        {forward}


def get_inputs():
    {inputs}


def get_init_inputs():
    return []
"""


def stated(
    folder: Path,
    forward: str,
    *,
    inputs: str = "return [torch.rand(rows, columns)]",
    init: str = "pass",
    parameters: str = "",
    columns: str = "4 * 16",
) -> Statement:
    path = folder / "problem.py"
    names = {"inputs": inputs, "init": init, "parameters": parameters, "columns": columns}
    path.write_text(MODULE.format(forward=forward, **names))
    return read_statement(path)


def test_axes_are_the_constants_that_the_inputs_are_made_of(tmp_path: Path) -> None:
    found = stated(tmp_path, "return x.sum(dim=1)")
    assert found.axes == ("rows", "columns")
    assert found.tuned == ({"rows": 24, "columns": 64},)
    assert [(a.name, a.shape, a.role, a.fill) for a in found.arrays] == [
        ("x", ("rows", "columns"), "input", "uniform"),
        ("out", ("rows",), "output", ""),
    ]
    assert found.sizes_from == "problem.py, rows in line 4, columns in line 5"


def test_a_problem_is_read_once_and_seldom_run_at_its_own_sizes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    noted = f"with open({str(log)!r}, 'a') as log: log.write(f'{{x.shape[0]}} ')"
    forward = f"{noted}\n        return x.cumsum(1)"
    stated(tmp_path, forward)
    runs = log.read_text().split()
    assert len(runs) > 10 and runs.count("24") < 5, runs
    first = statement_of(tmp_path / "problem.py")
    runs = log.read_text().split()
    assert statement_of(tmp_path / "problem.py") == first
    assert log.read_text().split() == runs
    stated(tmp_path, "return x.sum(dim=1)")
    assert statement_of(tmp_path / "problem.py").outputs != first.outputs


def test_literals_in_the_inputs_are_axes_by_their_number(tmp_path: Path) -> None:
    found = stated(tmp_path, "return x.T", inputs="return [torch.randn(6, 20)]")
    assert found.axes == ("n6", "n20")
    assert found.arrays[1].shape == ("n20", "n6")


def test_weights_are_inputs_and_running_statistics_are_not(tmp_path: Path) -> None:
    found = stated(tmp_path, "return self.norm(x)", init="self.norm = nn.BatchNorm1d(columns)")
    assert [array.name for array in found.inputs] == ["x", "norm_weight", "norm_bias"]
    assert found.inputs[1].shape == ("columns",)
    assert [array.constant for array in found.inputs] == [False, True, True]


def test_numbers_among_the_inputs_are_scalars(tmp_path: Path) -> None:
    inputs = "return [torch.rand(rows, columns), 0.5]"
    found = stated(tmp_path, "return x * factor", inputs=inputs, parameters=", factor")
    assert found.scalars == {"factor": ("float32", "0.5")}


def test_several_tensors_are_several_outputs_of_their_own_dtypes(tmp_path: Path) -> None:
    found = stated(tmp_path, "return torch.max(x, dim=0)")
    assert [(a.name, a.dtype, a.shape) for a in found.outputs] == [
        ("out0", "float32", ("columns",)),
        ("out1", "int64", ("columns",)),
    ]


def test_edge_cases_are_small_and_fit_the_shapes(tmp_path: Path) -> None:
    forward = "return nn.functional.avg_pool1d(x.unflatten(1, (1, -1)), 4).squeeze(1)"
    found = stated(tmp_path, forward)
    assert found.outputs[0].shape == ("rows", "columns // 4")
    assert len(found.edge_cases) == 3
    assert all(case["columns"] // 4 > 0 for case in found.edge_cases)


def test_some_edge_cases_repeat_the_loops_of_a_block(tmp_path: Path) -> None:
    found = stated(tmp_path, "return nn.functional.softmax(x, dim=1)", columns="4 * 1024")
    small, other, vectors, even, long = (case["columns"] for case in found.edge_cases)
    assert max(small, other) < 32
    assert (vectors, even, long) == (1296, 2048, 1283), "vectors divide two of them, tiles one"
    assert found.edge_cases[4]["rows"] == found.edge_cases[0]["rows"]


@pytest.mark.parametrize(
    ("inputs", "parameters", "columns", "contiguous"),
    [
        ("return [torch.rand(rows, columns)]", "", "8192\nrows = 8192", ("columns",)),
        (
            "return [torch.rand(rows, *shape), torch.rand(rows, *shape)]",
            ", y",
            "1\nrows = 16384\nshape = (16384,)",
            ("shape_0",),
        ),
        ("return [torch.rand(rows, 3, 8, columns)]", "", "1024\nrows = 640", ("columns",)),
    ],
)
def test_one_edge_case_is_of_medium_size_and_vectors_divide_it(
    tmp_path: Path, inputs: str, parameters: str, columns: str, contiguous: tuple[str, ...]
) -> None:
    forward = "return x.sigmoid()" + parameters.replace(", ", " + ")
    found = stated(tmp_path, forward, inputs=inputs, parameters=parameters, columns=columns)
    assert len(found.edge_cases) <= 5
    medium = found.edge_cases[2]
    assert all(medium[axis] % 16 == 0 and medium[axis] % 64 for axis in contiguous)
    counts = [
        prod(Expression.parse(extent).integer(medium) for extent in array.shape)
        for array in found.arrays
    ]
    assert 500_000 < max(counts) < 2_000_000
    assert sum(counts) * 4 <= 16 << 20


def test_edge_cases_of_large_planes_are_few_of_them(tmp_path: Path) -> None:
    found = stated(
        tmp_path,
        "return x + self.bias",
        inputs="return [torch.rand(rows, 3, 1024, 1024)]",
        init="self.bias = nn.Parameter(torch.ones(3, 1024, 1024))",
        columns="1\nrows = 64",
    )
    assert found.edge_cases == ({"rows": 1},), "of 38 MB, where 5 are over 64 MiB"


def test_what_has_to_be_divisible_has_a_long_edge_case_too(tmp_path: Path) -> None:
    forward = "return nn.functional.group_norm(x, 16)"
    found = stated(tmp_path, forward, columns="4096")
    assert max(case["columns"] for case in found.edge_cases if case["columns"] % 64) == 2352


def test_sizes_that_have_to_be_equal_change_together(tmp_path: Path) -> None:
    found = stated(
        tmp_path,
        "return (x * more[0]).mean()",
        inputs="return [torch.rand(columns, *shape), torch.rand(columns)]",
        parameters=", *more",
        columns="64\nshape = (64,)",
    )
    assert [one.shape for one in found.inputs] == [("columns", "columns"), ("columns",)]
    assert found.axes == ("columns", "shape_0") and found.tuned == ({"columns": 64, "shape_0": 64},)
    assert all(case["columns"] == case["shape_0"] for case in found.edge_cases)
    assert found.edge_cases


def test_sizes_at_which_an_input_changes_nothing_are_no_edge_cases(tmp_path: Path) -> None:
    found = stated(tmp_path, "return nn.functional.group_norm(x, 8)", columns="4096")
    assert min(case["columns"] for case in found.edge_cases) > 8, "a norm of one number is 0"
    unread = stated(tmp_path, "return torch.zeros_like(x)", columns="4096")
    assert unread.edge_cases, "there it never does"


def test_small_sizes_leave_several_results_of_several(tmp_path: Path) -> None:
    forward = "return nn.functional.max_pool1d(x, 11, stride=4)"
    found = stated(tmp_path, forward, columns="4096")
    assert [(case["columns"] - 11) // 4 + 1 for case in found.edge_cases[:2]] == [2, 2]


def test_what_is_made_of_bytes_is_read_without_memory(tmp_path: Path) -> None:
    made = "torch.frombuffer(bytearray(4 * columns), dtype=torch.float32)"
    found = stated(
        tmp_path,
        "return x + more[0]",
        inputs=f"return [torch.rand(rows, columns), {made}]",
        parameters=", *more",
    )
    assert [one.shape for one in found.inputs] == [("rows", "columns"), ("columns",)]


@pytest.mark.parametrize(
    ("forward", "more", "sentence"),
    [
        ("return nn.functional.dropout(x)", {}, "draws random numbers while it runs"),
        ("return {'y': x}", {}, "its `forward` returns a dict, and a kernel writes arrays"),
        ("return x, 3", {}, "its `forward` returns a int"),
        ("return x.to(torch.complex64)", {}, "`out` is complex64, which no kernel argument can be"),
        ("return x @ x", {}, "`forward` fails: RuntimeError"),
        ("return x[0]", {"inputs": "return [[torch.rand(rows)]]"},
         "its input `x` is a list, and a kernel takes arrays and numbers"),
        ("return self.layer(x)",
         {"inputs": "return [torch.rand(7, 9 * 1)]", "init": "self.layer = nn.Linear(9, 2)"}, ""),
        ("return x", {"inputs": "return [torch.rand(size)]"}, "`get_inputs` fails: NameError"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_one_sentence(
    tmp_path: Path, forward: str, more: dict[str, str], sentence: str
) -> None:
    if not sentence:
        # an axis that only one of two may have stays a number
        assert stated(tmp_path, forward, **more).axes == ("n7",)
        return
    with pytest.raises(KernelError, match=r"problem\.py") as failed:
        stated(tmp_path, forward, **more)
    assert sentence in str(failed.value)


DEFINITION = {
    "name": "scale_h16",
    "axes": {"T": {"type": "var"}, "H": {"type": "const", "value": 16}},
    "inputs": {
        "x": {"shape": ["T", "H"], "dtype": "bfloat16"},
        "factor": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["T", "H"], "dtype": "bfloat16"}},
    "reference": "def run(x, factor):\n    return (x.float() * factor).bfloat16()\n",
}


def trace(folder: Path, sizes: list[int], **changed: object) -> Path:
    path = folder / "definitions" / "scale" / "scale_h16.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(DEFINITION | changed))
    rows = [
        {"workload": {"axes": {"T": size}, "inputs": {"factor": {"type": "scalar", "value": 2.5}}}}
        for size in sizes
    ]
    workloads = folder / "workloads" / "scale" / "scale_h16.jsonl"
    workloads.parent.mkdir(parents=True)
    workloads.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_definition_states_axes_arrays_and_the_workloads_of_its_trace(tmp_path: Path) -> None:
    found = read_statement(trace(tmp_path, [64, 1, 64]))
    assert found.axes == ("T", "H")
    assert found.tuned == ({"T": 1, "H": 16}, {"T": 64, "H": 16})
    assert found.scalars == {"factor": ("float32", "2.5")}
    assert [(a.name, a.dtype, a.shape) for a in found.arrays] == [
        ("x", "bfloat16", ("T", "H")),
        ("y", "bfloat16", ("T", "H")),
    ]
    assert found.sizes_from == "scale_h16.jsonl"


def test_many_workloads_are_tuned_in_part_and_the_others_held_out(tmp_path: Path) -> None:
    found = read_statement(trace(tmp_path, [*range(1, 21)]))
    assert len(found.tuned) <= 8
    assert len(found.tuned) + len(found.held_out) == 20


def test_without_workloads_the_sizes_are_called_guesses(tmp_path: Path) -> None:
    found = read_statement(trace(tmp_path, []))
    assert [sizes["T"] for sizes in found.tuned] == [1, 64, 4096]
    assert "guess" in found.sizes_from
    assert any("guesses" in note for note in found.notes)


def test_indices_of_a_definition_are_told_to_be_drawn_small(tmp_path: Path) -> None:
    inputs = DEFINITION["inputs"] | {"i": {"shape": ["T"], "dtype": "int32"}}  # type: ignore[operator]
    found = read_statement(trace(tmp_path, [1], inputs=inputs))
    assert any(note.startswith("i holds whole numbers") for note in found.notes)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"reference": "x = 1"}, "its reference defines no `run`"),
        ({"reference": "def run(:"}, "its reference cannot be imported"),
        ({"outputs": {"y": {"shape": ["T"], "dtype": "float4"}}}, "`y` is float4"),
        ({"axes": 3}, "is no definition of a FlashInfer trace"),
        ({"axes": {"T\n#error": {}}}, "is no definition of a FlashInfer trace: axes"),
        ({"axes": {f"A{n}": {} for n in range(101)}}, "at most 100 items"),
        ({"axes": {"T": {"value": 1 << 63}}}, "less than 9223372036854775808"),
        ({"inputs": {"x; y": {"shape": ["T"], "dtype": "float32"}}}, "inputs.x; y"),
        ({"inputs": {"x": {"shape": ["Q"], "dtype": "float32"}}}, "has 'Q', which is no axis"),
        ({"inputs": {"y": {"shape": ["T"], "dtype": "float32"}}}, "`y` is an input and an output"),
        (
            {"inputs": {"x": {"shape": [0], "dtype": "float32"}}},
            "has 0, which is no axis and no size",
        ),
        (
            {"outputs": {"y": {"shape": None, "dtype": "float32"}}},
            "none of its outputs is an array",
        ),
        ({"outputs": {}}, "at least 1 item"),
        ({"reference": " " * 1_000_001}, "at most 1000000 characters"),
    ],
)
def test_a_wrong_definition_is_one_sentence(
    tmp_path: Path, changed: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InputError) as failed:
        read_statement(trace(tmp_path, [1], **changed))
    assert sentence in str(failed.value)


@pytest.mark.parametrize(
    "row",
    [
        *(b"hello", b"\xff", b"null", b"[" * 100_000, b'{"workload": {"axes": {}}}'),
        *(
            b'{"workload": {"axes": {"T": %s}, "inputs": %s}}' % one
            for one in (
                *((b"-4", b"{}"), (b"0.5", b"{}"), (b"NaN", b"{}"), (b"1e400", b"{}")),
                *((b"9" * 30, b"{}"), (b"9" * 5000, b"{}"), (b'"\\ud800"', b"{}")),
                *((b"4", b"5"), (b"4", b'{"x": 5}'), (b"4", b'{"x": {"type": "scalar"}}')),
            )
        ),
    ],
)
def test_a_wrong_workload_is_one_sentence_with_its_line(tmp_path: Path, row: bytes) -> None:
    path = trace(tmp_path, [1])
    workloads = tmp_path / "workloads" / "scale" / "scale_h16.jsonl"
    workloads.write_bytes(workloads.read_bytes() + row)
    with pytest.raises(InputError, match=r"scale_h16.jsonl:2: is no workload of scale_h16: \w+:"):
        read_statement(path)


def test_other_files_state_nothing(tmp_path: Path) -> None:
    path = tmp_path / "reference.py"
    path.write_text(
        "def reference(xp, inputs, axes): ...\nclass Model: ...\ndef get_inputs(): ...\n"
    )
    assert not states_problem(path)
    with pytest.raises(KernelError, match="states no problem"):
        read_statement(path)
    text = tmp_path / "list.json"
    text.write_text("[1]")
    with pytest.raises(KernelError, match="is no definition of a FlashInfer trace"):
        read_statement(text)


def test_a_skeleton_has_the_signature_and_one_place_to_fill_in(tmp_path: Path) -> None:
    text = skeleton(read_statement(trace(tmp_path, [1])))
    assert "#include <cuda_bf16.h>" in text
    signature = "const __nv_bfloat16* __restrict__ x, __nv_bfloat16* __restrict__ y, float factor"
    assert f"__global__ void scale_h16_kernel({signature}, int T, int H) {{" in text
    assert text.count("FILL IN") == 1
