"""The sources of strangers: what a draft of them is compared with, and a few of them whole."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
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


def judged(folder: Path, draft: str = DRAFT) -> strangers.Judgement:
    space = folder / "sums.yaml"
    space.write_text(draft)
    return strangers.judge(space, strangers.Case("ours", Path("sums.cu"), EXPECTED))


def test_there_are_three_sources_of_each_of_ten_projects() -> None:
    found = Counter(case.project for case in strangers.cases())
    assert len(found) == 10
    assert set(found.values()) == {3}


@pytest.mark.parametrize("case", strangers.cases(), ids=lambda case: case.name)
def test_what_is_expected_is_in_its_source(case: strangers.Case) -> None:
    assert case.source.is_file()
    sizes, arguments = case.expected["sizes"], case.expected["arguments"]
    assert any(one.get("role") in ("output", "inout") for one in arguments.values())
    for one in arguments.values():
        for text in one.get("shape", [one.get("value")]):
            assert strangers.value_of(text, sizes) is not None
    compile(strangers.reference_file(case, {"arguments": []}, {}), case.name, "exec")


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
    (case,) = strangers.cases([name])
    row = strangers.measured(case, tmp_path)
    assert row["verified"], row
    assert row["silently_wrong"] == []
    assert row["lines"] <= strangers.MOST_LINES
