"""GEMMs on a GPU: blocks that share x, each loading a part; tokens as the rows of wgmma; boxes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.compiler.pool import NvrtcPool
from tuner.device.base import Program
from tuner.device.cuda.device import CudaDevice
from tuner.device.cuda.sanitizer import COMPILE_OPTIONS, ComputeSanitizer, find_compute_sanitizer
from tuner.device.cuda.tool_process import Arenas
from tuner.model.config import Config
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.trial import INITIAL, Status
from tuner.space.load import Definition, load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

ROOT = Path(__file__).parents[2]
OPERATORS = {"OUT": "bf16"}
WIDE = Workload.of({"M": 128, "N": 768, "K": 1024})
ODD = Workload.of({"M": 127, "N": 264, "K": 512})  # the last cluster has blocks without columns
SHARING = [
    {"share": share, "split": split, "reduction": reduction, "tokens": tokens}
    for share in (2, 4)
    for split, reduction in ((1, "cluster"), (2, "cluster"), (2, "last"))
    for tokens in (32, 128)
]
# Tiles of columns that are no multiple of 64.
TOKEN_ROWS = [
    {"path": "token_rows", "tile_n": tile_n, "tokens": tokens, "warps_n": warps_n, **more}
    for tile_n in (40, 48)
    for tokens, warps_n in ((64, 4), (128, 4), (128, 8))
    for more in ({}, {"share": 2}, {"split": 2, "reduction": "last"}, {"warps_k": 2, "tile_k": 128})
    if warps_n * more.get("warps_k", 1) <= 8
]

# Boxes that single warps multiply.
BOXES = [
    {"path": "boxes", "tile_n": tile_n, "tokens": tokens, "tile_k": tile_k, **more}
    for tile_n, tokens, tile_k in ((16, 8, 256), (48, 16, 128), (112, 32, 128))
    for more in (
        {"stages": 2, "warps_k": 8},
        {"stages": 3, "split": 2, "warps_k": 4, "reduction": "last"},
        {"stages": 4, "split": 2, "warps_k": 8},
        {"stages": 6, "warps_k": 8, "early": "loads"},
        {"stages": 6, "warps_k": 8, "early": "loads", "share": 2},
    )
]


@pytest.fixture(scope="module", autouse=True)
def _needs_wgmma(capability: tuple[int, int]) -> None:
    if capability != (9, 0):
        pytest.skip("wgmma is of 9.0 alone")


@pytest.fixture(scope="module")
def gemm() -> Definition:
    return load_definition(ROOT / "search_spaces" / "sglang" / "gemm_small_m.yaml", OPERATORS)


@pytest.fixture(scope="module")
def evaluator_of(gemm: Definition, compiler: NvrtcPool) -> Callable[..., Evaluator]:
    def evaluator_of(spec: KernelSpec, device: CudaDevice) -> Evaluator:
        candidate = Candidate(
            INITIAL, gemm.space, Template.load(gemm.spec.template, gemm.spec.include_dirs)
        )
        return Evaluator(spec, candidate, OPERATORS, compiler, device)

    return evaluator_of


def program(evaluator: Evaluator, gemm: Definition, workload: Workload, choices: dict) -> Program:
    wanted = {
        **gemm.space.default,
        **{"path": "wgmma", "tile_n": 64, "tile_k": 64, "warps_k": 1},
        "warps_n": 1 if choices.get("path") == "boxes" else 4,
        **choices,
    }
    return evaluator.program(workload, Config.of(wanted))


@pytest.mark.parametrize(
    "some", [SHARING, TOKEN_ROWS, BOXES], ids=["share x", "tokens are rows", "boxes"]
)
def test_products_are_right(
    gemm: Definition, evaluator_of: Callable[..., Evaluator], some: list[dict]
) -> None:
    device = CudaDevice(0, gemm.spec, OPERATORS)
    evaluator = evaluator_of(gemm.spec, device)
    try:
        for workload in (WIDE, ODD):
            for choices in some:
                made = program(evaluator, gemm, workload, choices)
                outcome = device.run(made, full_verification=True)
                said = f"{workload} {choices}: {outcome.reason}"
                assert outcome.status is Status.CORRECT, said
    finally:
        device.close()


def test_a_sanitizer_finds_nothing_where_blocks_share_x(
    gemm: Definition, evaluator_of: Callable[..., Evaluator]
) -> None:
    if find_compute_sanitizer() is None:
        pytest.skip("compute-sanitizer is not installed")
    spec = replace(gemm.spec, compile_options=COMPILE_OPTIONS)
    device = CudaDevice(0, spec, OPERATORS)
    try:
        evaluator = evaluator_of(spec, device)
        watched = [program(evaluator, gemm, ODD, one) for one in SHARING[:4]]
        watcher = ComputeSanitizer("memcheck", 0, Arenas(spec, OPERATORS))
        for outcome in watcher.watch(watched):
            if "Device not supported" in outcome.reason:
                pytest.skip(outcome.reason)
            assert outcome.status is Status.CORRECT, outcome.reason
        watcher.close()
    finally:
        device.close()
