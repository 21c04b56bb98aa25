"""The sources of strangers: what a draft of them is compared with, and a few of them whole."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from pathlib import Path

import pytest
import stranger_drafts
import strangers

EXPECTED = {
    "sizes": {"rows": 3, "cols": 5},
    "arguments": {
        "x": {"dtype": "float32", "shape": ["rows", "cols"], "role": "input"},
        "out": {"dtype": "float32", "shape": ["rows"], "role": "output"},
        "n": {"dtype": "int32", "value": "cols"},
    },
    "launch": {"grid": ["rows"], "block": [[32], [64]]},
    "block": True,
    "reference": 'return {"out": x.sum(axis=1)}\n',
}
DRAFT = """axes: [cols, tokens]
reference: sums.py
arguments:
  - {name: x, dtype: float32, shape: [tokens, cols], role: input}  # as it is indexed
  - {name: out, dtype: float32, shape: [FILL_IN], role: output}  # FILL IN: the shape of out
  - {name: n, dtype: int32, value: cols}
workloads:
  tuned: [{cols: FILL_IN, tokens: FILL_IN}]  # FILL IN: the sizes
baseline:
  launch:
    - kernel: sums
      grid: [tokens]
      block: [64]
parameters:
  block_size: [32, 64]
default: {block_size: 64}
launch:
  - kernel: sums
    grid: [tokens]
    block: [block_size]
tolerance:
  out: {relative: 1.0e-5}
"""


def judged(folder: Path, draft: str = DRAFT) -> stranger_drafts.Judgement:
    space = folder / "sums.yaml"
    space.write_text(draft)
    return stranger_drafts.judge(space, stranger_drafts.Case("ours", Path("sums.cu"), EXPECTED))


def test_what_an_expert_names_is_offered_where_it_acts(tmp_path: Path) -> None:
    (tmp_path / "sums.cu.j2").write_text("__launch_bounds__(@{ block_size }@) // @{ vec }@\n")
    draft = DRAFT.replace("reference:", "template: sums.cu.j2\nreference:")
    draft = draft.replace("  block_size:", "  vec: [1, 2]\n  unroll: [0, 2]\n  block_size:")
    draft = draft.replace("{block_size: 64}", "{vec: 1, unroll: 0, block_size: 64}")
    space = tmp_path / "sums.yaml"
    space.write_text(draft)
    expected = {**EXPECTED, "expert": ["block", "vec", "unroll", "rows"]}
    case = stranger_drafts.Case("ours", Path("sums.cu"), expected)
    made = stranger_drafts.judge(space, case).experts
    # `unroll` is in no code, and no parameter counts rows
    assert made == {"block": True, "vec": True, "unroll": False, "rows": None}


def test_there_are_three_sources_of_each_of_ten_projects() -> None:
    found = Counter(case.project for case in stranger_drafts.cases())
    assert len(found) == 10
    assert set(found.values()) == {3}


@pytest.mark.parametrize("case", stranger_drafts.cases(), ids=lambda case: case.name)
def test_what_is_expected_is_in_its_source(case: stranger_drafts.Case) -> None:
    assert case.source.is_file()
    sizes, arguments = case.expected["sizes"], case.expected["arguments"]
    assert any(one.get("role") in ("output", "inout") for one in arguments.values())
    for one in arguments.values():
        for text in one.get("shape", [one.get("value")]):
            assert stranger_drafts.value_of(text, sizes) is not None
    drafted = {"arguments": [{"name": name, **one} for name, one in arguments.items()]}
    compile(stranger_drafts.reference_file(case, drafted, sizes), case.name, "exec")


@pytest.mark.parametrize(
    "case", stranger_drafts.cases(large=True), ids=lambda case: f"{case.name}, large"
)
def test_large_sizes_make_large_arrays_and_fit_a_grid(case: stranger_drafts.Case) -> None:
    sizes = case.expected["sizes"]
    shapes = [one["shape"] for one in case.expected["arguments"].values() if "shape" in one]
    largest = max(
        math.prod(stranger_drafts.value_of(dim, sizes) for dim in shape) for shape in shapes
    )
    assert 2**20 <= largest <= 2**26
    grid = [stranger_drafts.value_of(dim, sizes) for dim in case.expected["launch"]["grid"]]
    assert all(count <= 65_535 for count in grid[1:])
    small = next(one for one in stranger_drafts.cases([case.name]) if one.name == case.name)
    assert list(small.expected["sizes"]) == list(sizes)


def test_blanks_are_lines_to_mend_and_no_silent_guesses(tmp_path: Path) -> None:
    made = judged(tmp_path)
    assert (made.problem, made.silent, made.lines) == ("", [], 2)
    assert made.block_offered


def test_axes_of_other_names_get_their_sizes_by_where_they_stand(tmp_path: Path) -> None:
    judged(tmp_path)
    assert "  tuned: [{cols: 5, tokens: 3}]" in (tmp_path / "sums.yaml").read_text()


@pytest.mark.parametrize(
    ("right", "drafted", "wrong"),
    [
        ("x, dtype: float32, shape: [tokens, cols]", "x, dtype: float32, shape: [cols, tokens]",
         ["x: shape ['cols', 'tokens']"]),
        ("cols], role: input", "cols], role: output", ["x: role output"]),
        ("x, dtype: float32", "x, dtype: float64", ["x: dtype float64"]),
        ("role: input}  # as", "role: output}  # guessed, as", []),
        ("[FILL_IN], role: output", "[FILL_IN], role: input", ["out: role input"]),
    ],
    ids=["shape", "role", "dtype", "one that says so", "a blank shape does not excuse a role"],
)  # fmt: skip
def test_a_wrong_guess_without_a_doubt_is_a_silent_one(
    tmp_path: Path, right: str, drafted: str, wrong: list[str]
) -> None:
    assert DRAFT.count(right) == 1
    assert judged(tmp_path, DRAFT.replace(right, drafted)).silent == wrong


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("name", ["ggml_cuda/even_out", "tensorrt_llm/wearStepsKernels"])
def test_a_source_is_drafted_mended_and_verified(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "TRIALS", 1)
    (case,) = stranger_drafts.cases([name])
    row = strangers.measured(case, tmp_path)
    assert row["verified"], row
    assert row["silently_wrong"] == []
    assert row["lines"] <= strangers.MOST_LINES


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_draft_that_was_kept_is_verified_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "DRAFTS_TRIALS", 1)
    (case,) = stranger_drafts.cases(["deepspeed/streaks"])
    made = strangers.kept(case, tmp_path / "here")
    assert (made["drafted"], made["verified"]) == (True, False)
    (tmp_path / "here").rename(tmp_path / "there")
    row = strangers.run_draft(tmp_path / "there", tmp_path / "session", "host", 60)
    assert row["verified"], row
    assert row["seconds"] > 0
    late = strangers.run_draft(tmp_path / "there", tmp_path / "late", "host", 0.1)
    assert late["why_not"] == "no end after 0.1 s"
