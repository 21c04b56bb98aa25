"""topk_softmax: reference, kernels on the CPU, and near misses that its check has to catch."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from host_programs import shared_cache
from scipy.special import softmax

from tuner.compiler.base import CompileRequest
from tuner.compiler.host import HostCompiler
from tuner.device.base import Program
from tuner.device.host.device import HostDevice
from tuner.device.inputs import load_reference
from tuner.evaluate import Candidate, Evaluator
from tuner.kernel import Launch, Workload
from tuner.search.pool import valid_configs
from tuner.space_file import load_definition
from tuner.template import Template
from tuner.trial import Status

ROOT = Path(__file__).parents[3]
DEFINITION = load_definition(ROOT / "search_spaces/sglang/topk_softmax.yaml")
SPEC = DEFINITION.spec
SOURCE = SPEC.source.read_text(encoding="utf-8")
ROWS, EXPERTS = 64, 256  # a quarter of the rows are without numbers in one of the fills
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

RANK = "a.logit == b.logit && a.id < b.id"
SIGNED_ZEROS = (
    "a.logit == b.logit && (signbit(a.logit) != signbit(b.logit) ? signbit(b.logit) : a.id < b.id)"
)
SUMMED = "sum = block_sum(sum, sums);"
PROBABILITIES = (
    "for (int i = thread; i < E; i += kBlockSize) row[i] = expf(row[i] - largest) / sum;"
)
WEIGHT = "expf(best.logit - largest) / sum"
# What a kernel that is nearly right does instead: (before, after) in the text of the baseline.
NEAR_MISSES = {
    "a higher id wins a tie": [(RANK, RANK.replace("<", ">"))],
    "a zero with a sign ranks below zero": [(RANK, SIGNED_ZEROS)],
    "rounded probabilities are ranked": [
        (SUMMED, SUMMED + PROBABILITIES),
        (WEIGHT, "best.logit"),
    ],
    "the sum is rounded to 16 bits": [
        (SUMMED, SUMMED + "sum = __bfloat162float(__float2bfloat16(sum));")
    ],
    "the largest logit is not subtracted": [
        ("expf(row[i] - largest)", "expf(row[i])"),
        (WEIGHT, "expf(best.logit) / sum"),
    ],
    "an expert is picked twice": [("row[best.id] = kTaken;", "")],
}


def referred(logits: np.ndarray, renormalize: str = "false") -> tuple[np.ndarray, np.ndarray]:
    axes = {"T": logits.shape[0], "E": logits.shape[1]}
    compute = load_reference(SPEC.reference).compute
    outputs = compute(np, {"logits": logits}, axes, RENORMALIZE=renormalize)
    return outputs["weights"], outputs["ids"]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCompiler]:
    compiler = HostCompiler(timeout_s=30.0, cache=shared_cache(tmp_path_factory))
    yield compiler
    compiler.close()


@pytest.fixture(scope="module", params=["false", "true"])
def evaluator(request: pytest.FixtureRequest, compiler: HostCompiler) -> Iterator[Evaluator]:
    operators = {"RENORMALIZE": request.param}
    candidate = Candidate("template", DEFINITION.space, Template.load(SPEC.template))
    device = HostDevice(SPEC, operators)
    yield Evaluator(SPEC, candidate, operators, compiler, device)
    device.close()


@pytest.fixture(scope="module")
def device() -> Iterator[HostDevice]:
    device = HostDevice(SPEC, {"RENORMALIZE": "false"})
    yield device
    device.close()


def test_weights_are_the_softmax_over_all_experts_largest_first() -> None:
    logits = np.random.default_rng(0).permuted(np.arange(5 * 40.0).reshape(5, 40) / 7, axis=1)
    weights, ids = referred(logits)
    probabilities = softmax(logits, axis=1)
    np.testing.assert_array_equal(ids, np.argsort(-probabilities, axis=1)[:, :8])
    np.testing.assert_allclose(weights, -np.sort(-probabilities, axis=1)[:, :8], rtol=1e-12)


def test_renormalized_weights_add_up_to_1_and_keep_their_ratios() -> None:
    logits = np.random.default_rng(1).standard_normal((5, 40))
    plain, ids = referred(logits)
    weights, same_ids = referred(logits, "true")
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(weights / weights[:, :1], plain / plain[:, :1], rtol=1e-12)
    np.testing.assert_array_equal(ids, same_ids)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([0.0] * 10, range(8)),
        ([-0.0, 0.0] * 5, range(8)),
        ([1, 2, 1, 2, 1, 2, 1, 2, 1, 2], [1, 3, 5, 7, 9, 0, 2, 4]),
    ],
)
def test_of_equal_logits_the_lower_id_comes_first(row: list[float], expected: list[int]) -> None:
    assert referred(np.array([row], float))[1].tolist() == [list(expected)]


def test_logits_rank_where_their_probabilities_are_all_0() -> None:
    row = np.array([[-3e38, -2e38, -1e38, 0.0, 1e38, 2e38, 3e38, -2.5e38, -1.5e38]])
    weights, ids = referred(row)
    assert weights[0].tolist() == [1.0] + [0.0] * 7
    assert ids.tolist() == [[6, 5, 4, 3, 2, 8, 1, 7]]


@needs_compiler
@pytest.mark.parametrize("experts", [8, 100, 256, 1024])
def test_the_baseline_is_right_for_any_number_of_experts(
    evaluator: Evaluator, experts: int
) -> None:
    trial = evaluator.baseline(Workload.of({"T": 3, "E": experts}))
    assert trial.status is Status.CORRECT, trial.reason


@needs_compiler
@pytest.mark.parametrize("experts", [64, 256])
def test_configs_of_the_template_are_right(evaluator: Evaluator, experts: int) -> None:
    workload = Workload.of({"T": 3, "E": experts})
    configs = list(valid_configs(DEFINITION.space, evaluator.names(workload)))
    sample = random.Random(7).sample(configs, 4)  # noqa: S311
    for pending in [evaluator.start(workload, config) for config in sample]:
        trial = evaluator.finish(pending)
        assert trial.status is Status.CORRECT, f"{trial.config}: {trial.reason}"


@needs_compiler
@pytest.mark.parametrize("edits", NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_a_near_miss_is_caught(
    compiler: HostCompiler, device: HostDevice, edits: list[tuple[str, str]]
) -> None:
    source = SOURCE
    for before, after in edits:
        assert source.count(before) == 1
        source = source.replace(before, after)
    request = CompileRequest(source, ("topk_softmax",), "sm_90a")
    result = compiler.submit(request).result()
    assert result.ok, result.error
    workload = Workload.of({"T": ROWS, "E": EXPERTS})
    launch = Launch("topk_softmax", (ROWS, 1, 1), (128, 1, 1))
    program = Program("near miss", workload, (launch,), result.cubin, result.lowered)
    assert device.verify(program).status is Status.WRONG
