"""What running the baseline on the CPU proves of roles, shapes and constants."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from tuner.app.check import target_info
from tuner.app.proofs import Proof, require_right
from tuner.device.verify.reference_process import ReferenceProcess
from tuner.extensions.cpu.proof import prove, require_no_constant_memory
from tuner.model.errors import SpaceError
from tuner.model.kernel import KernelSpec
from tuner.space.load import load_definition

BODY = "y[row * K + c] = x[row * K + c] + w[c];"
REFERENCE = """def reference(xp, inputs, axes):
    x, w = (inputs.get(name) for name in "xw")
    return {{"y": {gives}}}
"""
SHAPES = {"x": "[T, K]", "w": "[K]"}
SPACE = (Path(__file__).parent / "data/add.yaml").read_text(encoding="utf-8")


def spec(
    folder: Path, body: str = BODY, before: str = "", gives: str = "x + w", **changes: str
) -> KernelSpec:
    source = (
        f"{before}__global__ void add(float* y, float* x, float* w, int* i, int K) {{\n"
        f"  int row = blockIdx.x;\n  for (int c = threadIdx.x; c < K; c += blockDim.x) {{\n"
        f"    {body} }} }}\n"
    )
    text = SPACE
    for name, rest in changes.items():
        text, count = re.subn(rf"({{name: {name}, dtype: \w+, ).*}}", rf"\1{rest}}}", text)
        assert count == 1
    if "x" in changes and "inout" in changes["x"]:
        text = text.replace("tolerance: {", "tolerance: {x: {relative: 1.0e-5}, ")
    if "y" in changes and "input" in changes["y"]:
        text = text.replace("tolerance: {y:", "tolerance: {x:")
    files = {"add.cu": source, "add.cu.j2": source, "add.yaml": text}
    files["add.py"] = REFERENCE.format(gives=gives)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return load_definition(folder / "add.yaml").spec


def proofs(of: KernelSpec) -> tuple[Proof, ...]:
    with closing(ReferenceProcess(of, {})) as reference:
        return prove(of, {}, target_info("sm_90a"), reference)


def mistakes(of: KernelSpec) -> list[str]:
    return [finding.text for proof in proofs(of) for finding in proof.mistakes]


def test_a_right_file_is_proved_on_two_workloads(tmp_path: Path) -> None:
    first, second = proofs(spec(tmp_path))
    assert {str(first.workload), str(second.workload)} == {"T=3 K=70", "T=5 K=33"}
    assert (first.mistakes, first.open_because) == ((), "")
    told = [finding.text for finding in first.findings]
    size = 165 if str(first.workload) == "T=5 K=33" else 210
    assert told[:2] == [
        f"`y` is written, and not read before; the last of its {size} elements is touched",
        f"`x` is read and not written; the last of its {size} elements is touched",
    ]
    assert told[3].startswith("`i` is not written, and nothing depends on it; none is touched")
    assert [finding.line for finding in first.findings] == [8, 9, 10, 11]


@pytest.mark.parametrize(
    ("body", "changes", "told"),
    [
        ("y[row * K + c] += x[row * K + c];", {}, "`y` is output, and results depend on what it "
         "held before: `role: inout`"),
        ("y[row * K + c] = x[row * K + c]; x[row * K + c] = 0;", {},
         "`x` is input, and the kernel writes it: `role: inout`"),
        ("y[row * K + c] = 1; x[row * K + c] = 2;", {},
         "`x` is input, and the kernel writes it: `role: output`"),
        ("w[c] = x[row * K + c];", {"w": "shape: [K], role: input"},
         "`y` is output, and the kernel never writes it: `role: input`"),
        (BODY, {"x": "shape: [T, K], role: inout"},
         "`x` is inout, and the kernel reads it, and never writes it: `role: input`"),
        ("if (c > 2) y[row * K + c] = x[row * K + c];", {}, "elements stay as they were; if the "
         "operator leaves them, `role: inout`, and the reference returns them"),
        (BODY, {"y": "shape: [2, T, K], role: output"}, "stay as they were: only the first"),
    ],
)  # fmt: skip
def test_a_wrong_role_is_told_with_the_right_one(
    tmp_path: Path, body: str, changes: dict[str, str], told: str
) -> None:
    assert any(told in text for text in mistakes(spec(tmp_path, body, **changes)))


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        ("w", "shape: [T], role: input", "in line 4 of add.cu: `shape: [K]`"),
        ("x", "shape: [K], role: input", "in line 4 of add.cu: `shape: [T, K]`"),
        ("x", "shape: [T, 33], role: input", "`x` has 99 elements, and the kernel reaches 210"),
        ("x", "shape: [T, K - 1], role: input", "in line 4 of add.cu: `shape: [T, K]`"),
    ],
)
def test_a_shape_that_is_too_small_is_told_with_the_right_one(
    tmp_path: Path, name: str, changed: str, told: str
) -> None:
    found = mistakes(spec(tmp_path, **{name: changed}))
    assert any(told in text and f"`{name}`" in text for text in found), found


def test_a_shape_that_is_too_large_is_told(tmp_path: Path) -> None:
    (first, *_) = proofs(spec(tmp_path, w="shape: [T, K], role: input"))
    told = next(finding.text for finding in first.findings if finding.argument == "w")
    assert "elements are touched: `shape: [K]`" in told


def test_whole_numbers_that_point_somewhere_need_a_fill(tmp_path: Path) -> None:
    body = "y[row * K + c] = x[i[row] * 5 * K + c] + w[c];"
    wrong = mistakes(spec(tmp_path, body, x="shape: [5 * T, K], role: input"))
    assert any("if `i` hold indices, give them `fill: indices(N)`" in text for text in wrong)
    right = {"x": "shape: [5 * T, K], role: input", "i": "shape: [T], fill: indices(T)"}
    gives = "x[inputs['i'].astype(int) * 5] + w"
    assert mistakes(spec(tmp_path, body, gives=gives, **right)) == []


def test_what_cannot_run_on_a_cpu_is_left_open_with_the_reason(tmp_path: Path) -> None:
    body = 'asm volatile("wgmma.fence.sync.aligned;" ::); ' + BODY
    (proof,) = proofs(spec(tmp_path, body))
    assert proof.findings == ()
    assert "inline PTX" in proof.open_because


def test_all_mistakes_are_one_error_by_line(tmp_path: Path) -> None:
    of = spec(tmp_path, "y[row * K + c] += x[row * K + c]; w[c] = 0;")
    with pytest.raises(SpaceError) as caught:
        require_right(of, proofs(of))
    assert (caught.value.line, caught.value.path) == (8, of.path)
    assert "add.yaml:10: `w` is input" in (caught.value.remedy or "")


def test_constant_memory_that_nothing_fills_is_a_mistake(tmp_path: Path) -> None:
    of = spec(tmp_path, "y[row * K + c] = taps[c % 4];", "__constant__ float taps[4];\n")
    with pytest.raises(SpaceError, match="nothing fills the `__constant__` memory `taps`"):
        require_no_constant_memory(of)
    require_no_constant_memory(spec(tmp_path, BODY, "__constant__ float taps[4];\n"))


def test_zeroed_scratch_is_zeros_before_and_has_to_be_after(tmp_path: Path) -> None:
    zeroed = "shape: [T], role: scratch, zeroed: true"
    uses = f"{BODY} if (c == 0) {{ i[row] += 1; y[row * K] += i[row]; %s }}"
    left = mistakes(spec(tmp_path, uses % "", i=zeroed))
    assert left == ["`i` is `zeroed`, and the kernel does not leave it all zeros"]
    gives = "x + w + (xp.arange(axes['K']) == 0)"
    assert mistakes(spec(tmp_path, uses % "i[row] = 0;", gives=gives, i=zeroed)) == []


def test_an_input_on_which_nothing_depends_is_a_mistake_unless_it_is_meant(tmp_path: Path) -> None:
    unread = spec(tmp_path, i="shape: [T], role: input")
    (found,) = mistakes(unread)
    assert found.startswith("`i` is input, and nothing depends on it: none is touched; give")
    assert found.endswith("or say `idle: REASON` where that is meant")
    assert mistakes(spec(tmp_path)) == []


def test_an_input_on_which_nothing_depends_at_small_sizes_alone_is_none(tmp_path: Path) -> None:
    # as a norm of groups of K / 33 elements is 0 where they have one
    body = "y[row * K + c] = K > 50 ? x[row * K + c] + w[c] : 7;"
    of = spec(tmp_path, body, gives="x + w if axes['K'] > 50 else xp.full_like(x, 7.0)")
    assert mistakes(of) == []


def test_an_output_that_is_the_same_on_all_kinds_of_input_is_a_mistake(tmp_path: Path) -> None:
    # the sign of a square is always the same
    body = "y[row * K + c] = x[row * K + c] * x[row * K + c] >= 0 ? w[c] * w[c] >= 0 : 2;"
    meant = {name: f"shape: {shape}, idle: signs" for name, shape in SHAPES.items()}
    gives = "xp.ones_like(x)"
    found = mistakes(spec(tmp_path, body, gives=gives, **meant))
    assert [text.partition(";")[0] for text in found] == ["`y` is the same on all 6 kinds of input"]
    meant["y"] = "shape: [T, K], role: output, idle: it only says that there is one"
    assert mistakes(spec(tmp_path, body, gives=gives, **meant)) == []


def test_what_no_kind_of_input_reaches_of_an_output_is_a_mistake(tmp_path: Path) -> None:
    # of 64 bins, for the sum of a row that is near 0
    body = "if (c == 0) { int b = (int)(x[row * K] * w[0] / 1e9f) & 63; y[b] += 1; }"
    changed = {"y": "shape: [64], role: inout, fill: zeros"}
    changed |= {name: f"shape: {s}, extreme: {{reason: of bins}}" for name, s in SHAPES.items()}
    found = mistakes(
        spec(tmp_path, body, gives="inputs['y'] + axes['T'] * (xp.arange(64) == 0)", **changed)
    )
    assert any(text.startswith("`x` is input, and nothing depends on it") for text in found)
    changed |= {
        name: f"{text}, idle: bins are wide" for name, text in changed.items() if name != "y"
    }
    found = mistakes(
        spec(tmp_path, body, gives="inputs['y'] + axes['T'] * (xp.arange(64) == 0)", **changed)
    )
    assert "the same 1 of 64 element is changed in `y` by every kind of input" in found[0]


def test_what_the_baseline_does_not_take_is_not_looked_at(tmp_path: Path) -> None:
    one = spec(tmp_path)
    text = one.path.read_text("utf-8").replace("block: [64]}", "block: [64], arguments: [y, x]}", 1)
    one.path.write_text(text, encoding="utf-8")
    source = one.source.read_text("utf-8").replace(", float* w, int* i, int K", "")
    source = source.replace("x[row * K + c] + w[c]", "x[row * K + c]").replace("K", "32")
    one.source.write_text(source, encoding="utf-8")
    found = proofs(load_definition(one.path).spec)
    assert {finding.argument for proof in found for finding in proof.findings} == {"y", "x"}
