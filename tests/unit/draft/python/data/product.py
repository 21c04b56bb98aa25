"""A matrix product with Triton's autotuner, in the style of its tutorials."""

import torch
import triton
import triton.language as tl


def is_cuda():
    return triton.runtime.driver.active.get_current_target().backend == "cuda"


def cuda_configs():
    return [
        triton.Config(
            {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 32, "GROUP_M": 8},
            num_warps=warps,
            num_stages=stages,
        )
        for m, n in [(32, 64), (64, 32), (64, 64)]
        for warps, stages in [(4, 3), (8, 4)]
    ]


def hip_configs():
    return [triton.Config({"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 16, "GROUP_M": 4})]


def all_configs():
    if is_cuda():
        return cuda_configs()
    return hip_configs()


@triton.autotune(configs=all_configs(), key=["M", "N", "K"])
@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    blocks_m = tl.cdiv(M, BLOCK_M)
    blocks_n = tl.cdiv(N, BLOCK_N)
    in_group = GROUP_M * blocks_n
    first_m = (pid // in_group) * GROUP_M
    rows = min(blocks_m - first_m, GROUP_M)
    pid_m = first_m + ((pid % in_group) % rows)
    pid_n = (pid % in_group) // rows
    at_m = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    at_n = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    at_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (at_m[:, None] * stride_am + at_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (at_k[:, None] * stride_bk + at_n[None, :] * stride_bn)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=at_k[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=at_k[:, None] < K - k * BLOCK_K, other=0.0)
        total = tl.dot(a, b, total)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if ACTIVATION == "relu":
        total = tl.maximum(total, 0.0)
    out_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    out_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * out_m[:, None] + stride_cn * out_n[None, :]
    inside = (out_m[:, None] < M) & (out_n[None, :] < N)
    tl.store(c_ptrs, total.to(tl.float16), mask=inside)


def product(a, b, activation=""):
    """Multiply two matrices of float16."""
    assert a.shape[1] == b.shape[0], "shapes do not fit"
    assert a.is_contiguous(), "a has to be contiguous"
    M, K = a.shape
    K, N = b.shape
    c = torch.empty((M, N), device=a.device, dtype=torch.float16)
    grid = lambda META: (triton.cdiv(M, META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"]),)
    product_kernel[grid](
        a, b, c, M, N, K,
        a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0), c.stride(1),
        ACTIVATION=activation,
    )  # fmt: skip
    return c


@triton.testing.perf_report(
    triton.testing.Benchmark(
        x_names=["M", "N", "K"],
        x_vals=[128 * i for i in range(2, 33)],
        line_arg="provider",
        line_vals=["triton"],
        line_names=["Triton"],
        plot_name="product",
        args={},
    )
)
def benchmark(M, N, K, provider):
    a = torch.randn((M, K), device="cuda", dtype=torch.float16)
    b = torch.randn((K, N), device="cuda", dtype=torch.float16)
    return triton.testing.do_bench(lambda: product(a, b))
