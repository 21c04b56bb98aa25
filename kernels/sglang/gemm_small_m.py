"""The float64 reference of gemm_small_m, weights whose sums are near 1, and its peers."""

from functools import cache

MOST_TOKENS = 16  # that SGLang's operators take
# Of the rows of x in `extreme`: their sums stay between the smallest and the largest floats.
ROW_SCALES = (2.0**-100, 2.0**-10, 1.0, 2.0**50)


def reference(xp, inputs, axes, OUT="bf16"):
    """Compute `x @ w.T` in float64; `xp` is NumPy or CuPy."""
    return {"out": inputs["x"] @ inputs["w"].T}


def inputs(xp, rng, axes, fill):
    """Draw w as models have it, so that sums of K products are about 1 for every K.

    For `extreme` a row of x has one sign and a scale of its own, and a row of w one sign: where
    large numbers cancel, what is left depends on the order of the sum.
    """
    columns, depth = axes["N"], axes["K"]
    w = rng.standard_normal((columns, depth), dtype=xp.float32) * depth**-0.5
    if fill != "extreme":
        return {"w": w}
    x = xp.abs(rng.standard_normal((axes["M"], depth), dtype=xp.float32))
    scales = xp.asarray(ROW_SCALES, dtype=xp.float32)
    choice = (rng.random((axes["M"], 1), dtype=xp.float32) * len(ROW_SCALES)).astype(xp.int32)
    signs = xp.where(rng.random((columns, 1), dtype=xp.float32) < 0.5, -1.0, 1.0)
    signs = signs.astype(xp.float32)
    return {"x": x * scales[xp.minimum(choice, len(ROW_SCALES) - 1)], "w": xp.abs(w) * signs}


def pytorch(tensors, axes, OUT="bf16"):
    """What linear layers call: cuBLAS."""
    return blas("cublas", tensors, OUT)


def cublaslt(tensors, axes, OUT="bf16"):
    """The first algorithm that cuBLASLt proposes."""
    return blas("cublaslt", tensors, OUT)


def blas(library, tensors, OUT):
    import torch

    torch.backends.cuda.preferred_blas_library(library)
    x, w, out = tensors["x"], tensors["w"], tensors["out"]
    if OUT == "fp32":
        return {"out": torch.mm(x, w.t(), out_dtype=torch.float32)}
    torch.mm(x, w.t(), out=out)
    return None


@cache
def compiled(OUT):
    import torch

    def linear(x, w):
        return torch.mm(x, w.t()).to(torch.float32 if OUT == "fp32" else x.dtype)

    return torch.compile(linear, dynamic=False, mode="max-autotune-no-cudagraphs")


def torch_compile(tensors, axes, OUT="bf16"):
    """The best that PyTorch's compiler finds, its own Triton kernels among them."""
    return {"out": compiled(OUT)(tensors["x"], tensors["w"])}


def sgl_aot(tensors, axes, OUT="bf16"):
    """SGLang's prebuilt operators, which are for DeepSeek-V3's shapes alone."""
    from tuner.device.reference import torch_operators

    x, w, out = tensors["x"], tensors["w"], tensors["out"]
    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    if axes["M"] > MOST_TOKENS:
        raise NotImplementedError(f"up to {MOST_TOKENS} rows")
    if (axes["N"], axes["K"]) == (2112, 7168) and OUT == "bf16":
        operators.dsv3_fused_a_gemm.default(out, x, w.t())
    elif axes["N"] in (256, 384) and axes["K"] == 7168:
        operators.dsv3_router_gemm.default(out, x, w)
    else:
        raise NotImplementedError("no such operator for this shape")


def sgl_fused_a(tensors, axes, OUT="bf16"):
    """SGLang's operator for DeepSeek's first projections, compiled for each shape."""
    from sglang.kernels.jit.utils import is_arch_support_pdl
    from sglang.kernels.ops.gemm import dsv3_fused_a_gemm as module

    rows, columns, depth = axes["M"], axes["N"], axes["K"]
    if rows > MOST_TOKENS or columns % 16 or depth % 256 or OUT == "fp32":
        raise NotImplementedError("up to 16 rows, N a multiple of 16, K of 256, bf16")
    run = module.dsv3_fused_a_gemm_module(depth, columns, is_arch_support_pdl()).dsv3_fused_a_gemm
    run(tensors["x"], tensors["w"].t(), tensors["out"])


def sgl_tiny(tensors, axes, OUT="bf16"):
    """SGLang's operator for few rows and few columns, compiled for each shape."""
    from sglang.kernels.ops.gemm.tiny_gemm import tiny_n_gemm_bf16

    rows, depth = axes["M"], axes["K"]
    if rows > MOST_TOKENS or depth % 256 or depth // 8 > 1024:
        raise NotImplementedError("up to 16 rows, K a multiple of 256 up to 8192")
    tiny_n_gemm_bf16(tensors["x"], tensors["w"], tensors["out"], max_m=rows)


def sgl_gemv(tensors, axes, OUT="bf16"):
    """SGLang's operator for one row, compiled for each shape; in later releases than 0.5.17."""
    from sglang.kernels.ops.gemm.hopper_bf16_gemv import hopper_bf16_gemv

    if axes["M"] > 1 or OUT == "fp32":
        raise NotImplementedError("one row, bf16")
    return {"out": hopper_bf16_gemv(tensors["x"], tensors["w"])}


production = "pytorch"
peers = {
    "pytorch": pytorch,
    "cublaslt": cublaslt,
    "torch.compile": torch_compile,
    "sgl-aot": sgl_aot,
    "sgl-fused-a": sgl_fused_a,
    "sgl-tiny": sgl_tiny,
    "sgl-gemv": sgl_gemv,
}
