"""`<tune/tensor.h>` and `<tune/wgmma.h>` on the CPU, against NumPy; and what a mistake comes to."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from host_programs import cubins

from tests.support.host_launch import Launched, launch
from tuner.extensions.cpu.child import LaunchEnd
from tuner.extensions.cpu.compiler import preload

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

DATA = Path(__file__).parent / "data"
ORDERS = (0, 1, 7)
DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
WGMMAS = (
    *(("bf16", n, 128, 0) for n in (8, 24, 64, 256)),
    *(("bf16", 16, swizzle, 0) for swizzle in (0, 32, 64)),
    *((dtype, 16, 128, 0) for dtype in ("f16", "tf32", "e4m3")),
    *((dtype, 16, 64, 1) for dtype in ("bf16", "f16", "tf32", "e4m3")),
)
BOXES = ((0, 2), (32, 2), (64, 2), (128, 2), (64, 3))
PARTS = (
    *(f"mma_of<tune::{dtype}>" for dtype in DTYPES),
    *(f"wgmma_of<tune::{t}, {n}, {swizzle}, {registers}>" for t, n, swizzle, registers in WGMMAS),
    *(f"boxes<{swizzle}, {rank}>" for swizzle, rank in BOXES),
    *("matrices", "pieces", "ranges", "semaphores"),
)

Library = Callable[..., bytes]


@pytest.fixture(scope="module")
def library() -> Iterator[Library]:
    with cubins() as compile_kernels:

        @cache
        def compiled(
            file: str, kernels: tuple[str, ...], sanitizers: tuple[str, ...] = ()
        ) -> bytes:
            return compile_kernels((DATA / file).read_text("utf-8"), kernels, sanitizers)

        yield compiled


@pytest.fixture(scope="module")
def part(library: Library) -> Callable[..., list[Any]]:
    def run(kernel: str, *buffers: Any, **more: Any) -> list[Any]:
        at = PARTS.index(kernel)
        end = launch(library("tensor_parts.cu", PARTS), *buffers, entry=at, **more)
        assert (end.code, end.message) == (LaunchEnd.DONE, "")
        return end.buffers

    return run


def operand(rows: int, dtype: str, seed: int) -> np.ndarray:
    """Draw rows of 32 bytes."""
    values = np.random.default_rng(seed).standard_normal((rows, 32))
    narrow = values.astype(DTYPES[dtype])
    return narrow[:, : 32 // narrow.itemsize]


def words(values: np.ndarray) -> tuple[str, list[int]]:
    return "c_uint32", np.ascontiguousarray(values).view(np.uint32).ravel().tolist()


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply as tensor cores do, which read 19 bits of a float."""
    if a.dtype == np.float32:
        a, b = ((one.view(np.uint32) & 0xFFFFE000).view(np.float32) for one in (a, b))
    return a.astype(np.float64) @ b.astype(np.float64).T


def test_floats_are_rounded_to_tf32_as_ptx_does() -> None:
    kernel = """#include <tune/tensor.h>
extern "C" __global__ void k(float* y) {
  for (int i = 0; i < 4; ++i) y[i] = __uint_as_float(tune::to_tf32(y[i]));
}"""
    with cubins() as compile_kernels:
        given = [1.0, 1.0 + 2.0**-11, 1.0 + 2.0**-12, -3.14159274]
        end = launch(compile_kernels(kernel, ("k",)), ("c_float", given))
    assert end.buffers[0] == [1.0, 1.0 + 2.0**-10, 1.0, -1608 / 512]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_warp_multiplies(part: Callable[..., list[Any]], dtype: str) -> None:
    a, b = operand(16, dtype, 1), operand(8, dtype, 2)
    y = part(f"mma_of<tune::{dtype}>", ("c_float", 128), words(a), words(b))[0]
    np.testing.assert_allclose(np.reshape(y, (16, 8)), 1 + product(a, b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "n", "swizzle", "registers"), WGMMAS)
def test_a_warpgroup_multiplies(
    part: Callable[..., list[Any]], dtype: str, n: int, swizzle: int, registers: int
) -> None:
    a, b = operand(64, dtype, 1), operand(n, dtype, 2)
    kernel = f"wgmma_of<tune::{dtype}, {n}, {swizzle}, {registers}>"
    buffers = ("c_float", 64 * n), words(a), words(b)
    shape: dict[str, Any] = {"block": (128, 1, 1), "shared_bytes": (64 + n) * (swizzle or 32)}
    y = part(kernel, *buffers, **shape)[0]
    np.testing.assert_allclose(np.reshape(y, (64, n)), 2 * product(a, b), rtol=1e-5, atol=1e-5)


def test_matrices_come_in_fragments_plain_and_transposed(part: Callable[..., list[Any]]) -> None:
    halves = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    y = np.array(part("matrices", ("c_uint32", 32 * 14), words(halves))[0], np.uint32)
    found = y.reshape(32, 14).view(np.uint16).reshape(32, 14, 2)
    for start, matrices in ((0, halves), (7, halves.transpose(0, 2, 1))):
        lanes = matrices.reshape(4, 32, 2).transpose(1, 0, 2)
        for first, count in ((0, 1), (1, 2), (3, 4)):
            shown = found[:, start + first : start + first + count]
            assert (shown == lanes[:, :count]).all()


def test_pieces_land_at_the_wait_with_zeros_behind(part: Callable[..., list[Any]]) -> None:
    y = part("pieces", ("c_ubyte", 65), ("c_ubyte", list(range(100, 164))))[0]
    x = [*range(100, 164)]
    four_and_eight = [*x[:5], 0, 0, 0, *x[8:19], *[0] * 5, *[7] * 8]
    assert y == [*four_and_eight, *x[32:48], *[0] * 16, 255]


@pytest.mark.parametrize(("swizzle", "rank"), BOXES)
@pytest.mark.parametrize("corner", [(0, 0, 0), (8, 3, 2), (56, 28, 4), (-8, -2, -1)])
def test_boxes_are_swizzled_and_cut_at_the_edges(
    part: Callable[..., list[Any]], swizzle: int, rank: int, corner: tuple[int, int, int]
) -> None:
    row, layers = swizzle or 16, 2 if rank == 3 else 1
    x = np.random.default_rng(3).integers(0, 256, 30 * 128, dtype=np.uint8)
    buffers = ("c_ubyte", [0] * (row * 4 * layers)), ("c_ubyte", [0] * x.size)
    kernel = f"boxes<{swizzle}, {rank}>"
    more = ("c_ubyte", x.tolist()), ("c_int", list(corner))
    y, z, *_ = part(kernel, *buffers, *more, shared_bytes=4104)

    tensor = x.view(np.uint16).reshape((5, 6, 64) if rank == 3 else (1, 30, 64))
    first = (corner[2] if rank == 3 else 0, corner[1], corner[0])
    wanted = np.zeros((layers, 4, row // 2), np.uint16)
    back = np.zeros_like(tensor)
    for at in np.ndindex(*wanted.shape):
        place = tuple(np.add(first, at))
        if all(0 <= i < size for i, size in zip(place, tensor.shape, strict=True)):
            wanted[at] = back[place] = tensor[place]
    at = np.arange(wanted.nbytes)
    swizzled = at ^ ((at >> 7 & (swizzle // 16 - 1)) << 4 if swizzle else 0)
    assert (np.array(y, np.uint8)[swizzled] == wanted.view(np.uint8).ravel()).all()
    assert (np.array(z, np.uint8) == back.view(np.uint8).ravel()).all()


@pytest.mark.parametrize("order", ORDERS)
def test_ranges_go_through_shared_memory(part: Callable[..., list[Any]], order: int) -> None:
    x = [*range(1000, 1096)]
    y = part("ranges", ("c_uint32", 96), ("c_uint32", x), block=(64, 1, 1), order=order)[0]
    assert y == x


def test_semaphores_count(part: Callable[..., list[Any]]) -> None:
    assert part("semaphores", ("c_uint32", [1, 0, 0]))[0] == [9, 6, 9]


def test_the_example_of_the_documentation_is_right(library: Library, tmp_path: Path) -> None:
    page = Path(__file__).parents[4] / "docs" / "tensor-cores.md"
    text = page.read_text("utf-8").split("```cuda\n")[1].split("```")[0]
    (tmp_path / "example.cu").write_text(text, "utf-8")
    x, w = (np.hstack([operand(rows, "bf16", seed) for seed in range(4)]) for rows in (16, 8))
    codes = (("c_uint16", one.view(np.uint16).ravel().tolist()) for one in (x, w))
    compiled = library(str(tmp_path / "example.cu"), ("tile",))
    end = launch(compiled, ("c_float", 128), *codes)
    assert end.message == ""
    np.testing.assert_allclose(np.reshape(end.buffers[0], (16, 8)), product(x, w), atol=1e-4)


@pytest.mark.parametrize("dtype", ["half", "nv_bfloat16"])
@pytest.mark.parametrize(("a_major", "b_major"), [("row", "col"), ("col", "row")])
def test_wmma_multiplies(library: Library, dtype: str, a_major: str, b_major: str) -> None:
    kernels = tuple(
        f"multiply<{t}, {a}_major, {b}_major>"
        for t in ("half", "nv_bfloat16")
        for a, b in (("row", "col"), ("col", "row"))
    )
    kind = "f16" if dtype == "half" else "bf16"
    a, b = operand(16, kind, 1), operand(16, kind, 2)
    codes = (("c_uint16", one.view(np.uint16).ravel().tolist()) for one in (a, b))
    at = kernels.index(f"multiply<{dtype}, {a_major}_major, {b_major}_major>")
    end = launch(library("wmma.cu", kernels), ("c_float", 256), *codes, entry=at)
    assert end.message == ""
    left, right = a if a_major == "row" else a.T, b.T if b_major == "col" else b
    wanted = 2 + 2 * (left.astype(np.float64) @ right.astype(np.float64))
    np.testing.assert_allclose(np.reshape(end.buffers[0], (16, 16)), wanted, atol=1e-4)


MISTAKES = (
    *("none", "no_wait", "wrong_parity", "too_few_bytes", "reused_early", "no_wgmma_fence"),
    *("no_store_fence", "no_init_fence", "wrong_swizzle", "no_commit", "ends_early"),
)


def gemm(
    compiled: bytes, kind: str, shape: tuple[int, int, int], broken: int = 0, **more: Any
) -> tuple[Launched, float]:
    """Run a GEMM; return its end and its largest error, infinite where there is a NaN."""
    (m, n, k), draw = shape, np.random.default_rng(5)
    x, w = (draw.standard_normal((i, k)).astype(ml_dtypes.bfloat16) for i in (m, n))
    tile = (32, 32) if kind == "mma" else (16, 64)
    more["grid"] = (-(-n // tile[1]), -(-m // tile[0]), 1)
    more["block"] = (128 if kind == "mma" else 160, 1, 1)
    more["shared_bytes"] = 0 if kind == "mma" else 3 * 80 * 128 + 4 * 16 * 64 + 48
    codes = (("c_uint16", one.view(np.uint16).ravel().tolist()) for one in (x, w))
    end = launch(compiled, ("c_float", m * n), *codes, ("c_int", [m, n, k, broken]), **more)
    error = np.abs(np.reshape(end.buffers[0], (m, n)) - product(x, w))
    return end, float(np.nan_to_num(error, nan=np.inf).max())


@pytest.mark.parametrize("kind", ["mma", "wgmma"])
@pytest.mark.parametrize("shape", [(1, 64, 64), (21, 100, 232), (40, 128, 512)])
@pytest.mark.parametrize("order", ORDERS)
def test_a_gemm_is_right(
    library: Library, kind: str, shape: tuple[int, int, int], order: int
) -> None:
    end, error = gemm(library(f"gemm_{kind}.cu", ("gemm",)), kind, shape, order=order)
    assert (end.code, end.message) == (LaunchEnd.DONE, "")
    assert error < 1e-4


@pytest.mark.parametrize("kind", ["mma", "wgmma"])
def test_a_gemm_is_right_under_the_sanitizers(library: Library, kind: str) -> None:
    both = ("address", "undefined")
    compiled = library(f"gemm_{kind}.cu", ("gemm",), both)
    end, error = gemm(compiled, kind, (21, 100, 232), environment=preload(both), order=3)
    assert (end.code, end.message) == (LaunchEnd.DONE, "")
    assert error < 1e-4


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("broken", [1, 2, 3])
def test_mistakes_with_cp_async_give_wrong_numbers(
    library: Library, broken: int, order: int
) -> None:
    compiled = library("gemm_mma.cu", ("gemm",))
    _, error = gemm(compiled, "mma", (32, 64, 256), broken, order=order)
    assert error > 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("no_wait", "that the copy of line"),
        ("wrong_parity", "a wait that never ends"),
        ("too_few_bytes", ""),
        ("reused_early", "more than the 1 arrivals"),
        ("no_wgmma_fence", "no wgmma_fence stands between"),
        ("no_store_fence", ""),
        ("no_init_fence", "no fence_mbarrier_init since"),
        ("wrong_swizzle", ""),
        ("no_commit", ""),
        ("ends_early", "nothing waited for it"),
    ],
)
def test_mistakes_with_wgmma_are_told_or_give_wrong_numbers(
    library: Library, broken: str, says: str, order: int
) -> None:
    compiled = library("gemm_wgmma.cu", ("gemm",))
    end, error = gemm(compiled, "wgmma", (16, 128, 320), MISTAKES.index(broken), order=order)
    assert error > 1
    assert says in end.message
    assert (end.code != LaunchEnd.DONE) >= bool(says)


def test_a_wait_that_never_ends_says_what_it_lacks(library: Library) -> None:
    compiled = library("gemm_wgmma.cu", ("gemm",))
    end, _ = gemm(compiled, "wgmma", (16, 64, 64), MISTAKES.index("wrong_parity"))
    assert "128 wait at mbarrier_wait" in end.message
    assert "lacks 1 arrivals and 0 bytes" in end.message


def test_a_copy_is_of_the_thread_that_asked_for_it(library: Library) -> None:
    compiled = library("gemm_wgmma.cu", ("gemm",))
    end, _ = gemm(compiled, "wgmma", (16, 64, 64), MISTAKES.index("too_few_bytes"))
    assert "2048 bytes more land than the mbarrier" in end.message
    assert "by thread (128,0,0)" in end.message


CLUSTERS = ("by_loads", "by_pointers", "by_stores", "by_ptx", "by_multicast")
CLUSTER_MISTAKES = (
    *("none", "no_first_sync", "no_last_sync", "one_block_waits", "twice", "unarrived"),
    *("rank_too_high", "plain_wait", "no_wait", "diverged", "told_itself"),
)


def over_clusters(
    compiled: bytes, kernel: str, broken: str = "none", threads: int = 64, **more: Any
) -> tuple[Launched, bool]:
    """Add up six blocks in clusters of three; return the end, and whether the sums are right."""
    x = np.random.default_rng(6).integers(0, 9, (6, threads)).astype(np.float32)
    buffers = ("c_float", 6), ("c_float", x.ravel().tolist())
    shape = {"grid": (6, 1, 1), "cluster": (3, 1, 1), "block": (threads, 1, 1)}
    more = {**shape, "shared_bytes": 16 * threads, "entry": CLUSTERS.index(kernel), **more}
    end = launch(compiled, *buffers, ("c_int", [CLUSTER_MISTAKES.index(broken)]), **more)
    return end, end.buffers[0] == x.reshape(2, -1).sum(1).repeat(3).tolist()


@pytest.mark.parametrize("kernel", CLUSTERS)
@pytest.mark.parametrize("order", ORDERS)
def test_the_blocks_of_a_cluster_reach_each_other(
    library: Library, kernel: str, order: int
) -> None:
    end, right = over_clusters(library("clusters.cu", CLUSTERS), kernel, order=order, times=2)
    assert (end.code, end.message, right) == (LaunchEnd.DONE, "", True)


@pytest.mark.parametrize("kernel", CLUSTERS)
def test_clusters_are_right_under_the_sanitizers(library: Library, kernel: str) -> None:
    both = ("address", "undefined")
    compiled = library("clusters.cu", CLUSTERS, both)
    end, right = over_clusters(compiled, kernel, environment=preload(both), order=3)
    assert (end.code, end.message, right) == (LaunchEnd.DONE, "", True)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("kernel", "broken", "says"),
    [
        ("by_loads", "no_first_sync", "of the cluster has not begun: nothing waited for it"),
        ("by_loads", "no_last_sync", "of the cluster has ended: nothing waited for it"),
        ("by_loads", "one_block_waits", "a cluster's barrier that not all threads reach"),
        ("by_loads", "twice", "no cluster_wait since this thread last arrived"),
        ("by_loads", "unarrived", "this thread has not arrived"),
        ("by_loads", "rank_too_high", "shared memory of block 3 of a cluster that has 3"),
        ("by_loads", "diverged", "divergent warp operation in a cluster of 3 blocks"),
        ("by_pointers", "no_first_sync", "of the cluster, which has not begun"),
        ("by_pointers", "no_last_sync", "of the cluster, which has ended"),
        ("by_stores", "plain_wait", "where only one of its own block can be"),
        ("by_multicast", "no_last_sync", "of the cluster has ended: nothing waited for it"),
    ],
)
def test_mistakes_with_clusters_are_told(
    library: Library, kernel: str, broken: str, says: str, order: int
) -> None:
    end, _ = over_clusters(library("clusters.cu", CLUSTERS), kernel, broken, order=order)
    assert says in end.message


@pytest.mark.parametrize("order", ORDERS)
def test_what_another_block_sends_lands_late(library: Library, order: int) -> None:
    end, right = over_clusters(
        library("clusters.cu", CLUSTERS), "by_stores", "no_wait", order=order
    )
    assert (end.code, right) == (LaunchEnd.DONE, False)


def test_a_place_that_only_one_block_has_read_is_not_free_for_a_multicast(library: Library) -> None:
    compiled = library("clusters.cu", CLUSTERS)
    ends = [over_clusters(compiled, "by_multicast", "told_itself", order=i) for i in range(2, 8)]
    assert not all(end.code == LaunchEnd.DONE and right for end, right in ends)


def test_a_cluster_that_no_code_uses_is_refused(library: Library) -> None:
    at, pair = PARTS.index("semaphores"), (2, 1, 1)
    compiled = library("tensor_parts.cu", PARTS)
    end = launch(compiled, ("c_uint32", [1, 0, 0]), entry=at, grid=pair, cluster=pair)
    assert end.code == LaunchEnd.REFUSED
    assert "launched in clusters of 2, and no code for clusters ran" in end.message
