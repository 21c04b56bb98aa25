"""An answer that splits a sum and brings the memory for the parts along, verified on the CPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from host_programs import cached_compiler

from tuner.app.plan import new_plan
from tuner.extensions.agents.base import AgentAnswer
from tuner.extensions.agents.gate import (
    RefusedError,
    read_draft,
    require_same_scratch,
    validate_candidate,
)
from tuner.extensions.cpu.device import HostDevice
from tuner.model.config import Config
from tuner.model.trial import Status
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Candidates

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

KERNEL = """\
extern "C" __global__ void row_sum(float* out, const float* x, int T, int K) {
  float sum = 0.0f;
  for (int k = threadIdx.x; k < K; k += 32) sum += x[blockIdx.x * K + k];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
"""
REFERENCE = 'def reference(xp, inputs, axes):\n    return {"out": inputs["x"].sum(axis=1)}\n'
USERS = """\
version: 1
kernel: row_sum
source: row_sum.cu
reference: row_sum.py
template: row_sum.cu.j2
axes: [T, K]
arguments:
  - {name: out, dtype: float32, shape: [T], role: output}
  - {name: x, dtype: float32, shape: [T, K], extreme: {reason: sums overflow}}
  - {name: T, dtype: int32, value: T}
  - {name: K, dtype: int32, value: K}
workloads:
  tuned: [{T: 5, K: 1024}, {T: 24, K: 4096}]
  edge_cases: [{T: 3, K: 77}]
baseline: {launch: [{kernel: row_sum, grid: [T], block: [32]}]}
tolerance: {out: {relative: 1.0e-4, absolute: 1.0e-3}}
"""
PLAIN = """\
parameters: {threads: [32]}
default: {threads: 32}
launch: [{kernel: row_sum, grid: [T], block: [threads]}]
"""
OWN = """\
parameters: {splits: [1, 2, 4]}
default: {splits: 4}
launch: [{kernel: row_sum, grid: [T, splits], block: [32]}]
scratch:
  - {name: partial, dtype: float32, shape: [splits, T]}
  - {name: done, dtype: int32, shape: [T], zeroed: true}
"""
TEMPLATE = """\
constexpr int kSplits = @{ splits }@;

extern "C" __global__ void row_sum(float* out, const float* x, int T, int K, float* partial,
                                   int* done) {
  const int row = blockIdx.x, part = blockIdx.y;
  float sum = 0.0f;
  for (int k = part * 32 + threadIdx.x; k < K; k += 32 * kSplits) sum += x[row * K + k];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x != 0) return;
  partial[part * T + row] = sum;
  __threadfence();
  if (atomicAdd(&done[row], 1) != kSplits - 1) return;
  __threadfence();
  float total = 0.0f;
  for (int i = 0; i < kSplits; ++i) total += __ldcg(&partial[i * T + row]);
  out[row] = total;
  done[row] = 0;
}
"""
Judge = Callable[..., Plan]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sums")
    (folder / "row_sum.cu").write_text(KERNEL)
    (folder / "row_sum.py").write_text(REFERENCE)
    (folder / "row_sum.cu.j2").write_text(KERNEL.replace("32;", "@{ threads }@;"))
    (folder / "row_sum.yaml").write_text(USERS + PLAIN)
    return folder


@pytest.fixture(scope="module")
def candidates(project: Path) -> Iterator[Candidates]:
    plan = new_plan(project / "row_sum.cu", {"space": project / "row_sum.yaml", "device": "host"})
    device = HostDevice(plan.spec, {})
    with cached_compiler() as compiler:
        yield Candidates(plan, compiler, device)
    device.close()


@pytest.fixture
def judge(candidates: Candidates, tmp_path: Path) -> Judge:
    def read_and_verify(template: str = TEMPLATE, space: str = OWN, name: str = "r1") -> Plan:
        answer = AgentAnswer(template, space)
        made = read_draft(answer, candidates.plan("initial"), tmp_path / name, name)
        validate_candidate(made, candidates.of(made), verify=True, seed=1)
        return made

    return read_and_verify


def test_a_split_sum_with_memory_of_its_own_is_right_and_compared_with_the_baseline(
    judge: Judge, candidates: Candidates
) -> None:
    made = judge()
    initial, evaluator = candidates.evaluator("initial"), candidates.of(made)
    workload = made.tuned[0]
    programs = [initial.baseline_program(workload)]
    programs += [evaluator.program(workload, Config.of({"splits": n})) for n in (1, 4)]
    assert [(name, shape) for name, shape, _ in programs[-1].scratch] == [
        ("partial", (4, 5)),
        ("done", (5,)),
    ]
    device = candidates.device
    assert device.compare(programs, rounds=6).faults == ("",) * 3
    # The baseline that comes after it takes what it took before.
    assert device.verify(programs[0]).status is Status.CORRECT
    trial = evaluator.finish(evaluator.start(made.tuned[1], Config.of({"splits": 2})))
    assert trial.status is Status.CORRECT, trial.reason


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("partial[part * T + row] = sum;", "partial[part * T + row] += sum;", "out"),
        ("done[row] = 0;", "", r"left scratch done\[0\] = \d+, expected 0"),
        ("partial[part * T + row] = sum;", "partial[part * T + row + 2] = sum;", "outside"),
        (
            "  done[row] = 0;",
            "  done[row] = 0;\n  if (row == 0) partial[T * kSplits] = 1.0f;",
            "outside",
        ),
        ("float* partial,", "double* partial,", "'partial' is float32"),
        ("int* done)", "int* done, int more)", "6 arguments, but kernel 'row_sum'"),
    ],
)
def test_who_counts_on_what_an_earlier_call_left_or_writes_beyond_is_refused(
    judge: Judge, old: str, new: str, said: str
) -> None:
    assert old in TEMPLATE
    with pytest.raises(RefusedError, match=said):
        judge(TEMPLATE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("shape: [splits, T]", "shape: [pieces, T]", "space.yaml:.*pieces"),
        ("shape: [T], zeroed", "shape: [multiprocessors], zeroed", "undefined name"),
        ("dtype: int32", "dtype: int", "`int` is not a dtype"),
        ("zeroed: true", "fill: zeros", "nothing fills it.*\n.*`zeroed: true` for zeros"),
        ("zeroed: true", "note: all 0", "`done` is no array that is read"),
        ("zeroed: true", "role: output", "`done` cannot be added to the arguments"),
        ("name: done", "name: out", "`out` is listed twice"),
    ],
)
def test_a_mistake_in_scratch_is_told_with_its_line(
    judge: Judge, old: str, new: str, said: str
) -> None:
    with pytest.raises(RefusedError, match=said):
        judge(space=OWN.replace(old, new))


def test_the_same_name_is_the_same_memory_in_all_candidates(judge: Judge) -> None:
    first = judge()
    require_same_scratch(judge(name="r2"), [first])
    answer = judge(TEMPLATE, OWN.replace("shape: [splits, T]", "shape: [2 * splits, T]"), "r2")
    require_same_scratch(answer, [first])
    other = judge(
        TEMPLATE.replace("float* partial", "unsigned* partial")
        .replace("partial[part * T + row] = sum", "partial[part * T + row] = __float_as_uint(sum)")
        .replace("__ldcg(&partial[i * T + row])", "__uint_as_float(__ldcg(&partial[i * T + row]))"),
        OWN.replace("name: partial, dtype: float32", "name: partial, dtype: uint32"),
        "r3",
    )
    with pytest.raises(RefusedError, match="the scratch `partial` is float32 in r1: rename yours"):
        require_same_scratch(other, [first])


def test_arguments_stay_the_users(judge: Judge) -> None:
    changed = USERS.replace(
        "value: K}", "value: K}\n  - {name: p, dtype: float32, shape: [T], role: scratch}"
    )
    with pytest.raises(RefusedError, match="yours is `scratch`, which launches take after them"):
        judge(space=changed + OWN)
