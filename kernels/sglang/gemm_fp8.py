"""The float64 reference of gemm_fp8, codes and scales whose sums are near 1, and its peers."""

from functools import cache

BLOCK = 128  # of K, and of columns, under a scale
# Of the rows of x in `extreme`: their sums stay between the smallest and the largest floats.
ROW_SCALES = (2.0**-60, 2.0**-10, 1.0, 2.0**50)


def reference(xp, inputs, axes, SCALES="token"):
    """Compute `(x * x_scale) @ (w * w_scale).T` in float64; `xp` is NumPy or CuPy."""
    x, w = inputs["x"], inputs["w"]
    if SCALES == "token":
        return {"out": (x * inputs["x_scale"]) @ (w * inputs["w_scale"]).T}
    rows, columns = axes["M"], axes["N"]
    x_scale = xp.repeat(inputs["x_scale"][:, :rows], BLOCK, axis=0).T
    w_scale = xp.repeat(xp.repeat(inputs["w_scale"], BLOCK, axis=0)[:columns], BLOCK, axis=1)
    return {"out": (x * x_scale) @ (w * w_scale).T}


def inputs(xp, rng, axes, fill, SCALES="token"):
    """Draw scales of w as its quantization gives them, so that sums of K products are about 1.

    For `extreme` codes have one sign, all of x and each row of w, and scales of x differ by powers
    of two: where large numbers cancel, what is left depends on the order of the sum.
    """
    rows, columns, depth = axes["M"], axes["N"], axes["K"]
    token = SCALES == "token"
    of_w = (columns, 1) if token else (-(-columns // BLOCK), depth // BLOCK)
    drawn = {"w_scale": (0.5 + rng.random(of_w, dtype=xp.float32)) * xp.float32(depth**-0.5)}
    if fill != "extreme":
        return drawn
    of_x = (rows, 1) if token else (depth // BLOCK, -(-rows // 4) * 4)
    # A row's scale is one power of two for all of K.
    choice = (rng.random((rows, 1) if token else (1, of_x[1]), dtype=xp.float32) * 4).astype(
        xp.int32
    )
    scales = xp.asarray(ROW_SCALES, dtype=xp.float32)[xp.minimum(choice, 3)]
    x = xp.minimum(xp.abs(rng.standard_normal((rows, depth), dtype=xp.float32)) * 150, 448)
    w = xp.minimum(xp.abs(rng.standard_normal((columns, depth), dtype=xp.float32)) * 150, 448)
    signs = xp.where(rng.random((columns, 1), dtype=xp.float32) < 0.5, -1.0, 1.0)
    x_scale = scales * xp.ones(of_x, dtype=xp.float32)
    return drawn | {"x": x, "w": w * signs.astype(xp.float32), "x_scale": x_scale}


def pytorch(tensors, axes, SCALES="token"):
    """PyTorch's operator: cuBLASLt, or CUTLASS for a scale a row."""
    import torch

    x, w, of_x, of_w = (tensors[name] for name in ("x", "w", "x_scale", "w_scale"))
    token = SCALES == "token"
    if not token:
        if axes["M"] % 4 or axes["K"] // BLOCK % 4:
            raise NotImplementedError("scales of rows of x and of K come in fours, without a rest")
        of_x = of_x.t()
    out = torch._scaled_mm(x, w.t(), of_x, of_w.t(), out_dtype=torch.bfloat16, use_fast_accum=token)
    return {"out": out}


@cache
def compiled():
    import torch

    def linear(x, w, of_x, of_w):
        return torch._scaled_mm(
            x, w.t(), of_x, of_w.t(), out_dtype=torch.bfloat16, use_fast_accum=True
        )

    return torch.compile(linear, dynamic=False, mode="max-autotune-no-cudagraphs")


def torch_compile(tensors, axes, SCALES="token"):
    """The best that PyTorch's compiler finds, its own Triton kernels among them."""
    if SCALES == "block":
        raise NotImplementedError("a scale a row alone")
    x, w, of_x, of_w = (tensors[name] for name in ("x", "w", "x_scale", "w_scale"))
    return {"out": compiled()(x, w, of_x, of_w)}


def sgl_aot(tensors, axes, SCALES="token"):
    """SGLang's prebuilt CUTLASS kernels."""
    import torch

    from tuner.device.reference import torch_operators

    if SCALES == "block":
        raise NotImplementedError("a scale a row alone; its block scales are for compute 12.x")
    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    x, w, of_x, of_w = (tensors[name] for name in ("x", "w", "x_scale", "w_scale"))
    return {"out": operators.fp8_scaled_mm.default(x, w.t(), of_x, of_w, torch.bfloat16, None)}


@cache
def programmatic_deep_gemm():
    import deep_gemm

    deep_gemm.set_pdl(True)  # as SGLang does
    return deep_gemm


def deep_gemm(tensors, axes, SCALES="token"):
    """DeepGEMM, which production calls for block scales; nvcc compiles it at the first call."""
    if SCALES == "token":
        raise NotImplementedError("block scales alone")
    x = tensors["x"], tensors["x_scale"].t()[: axes["M"]]
    w = tensors["w"], tensors["w_scale"]
    programmatic_deep_gemm().fp8_gemm_nt(x, w, tensors["out"], disable_ue8m0_cast=True)


def flashinfer(tensors, axes, SCALES="token"):
    """FlashInfer's operator, which takes columns of w for the rows of a tile below 32 tokens."""
    if SCALES == "token" or axes["N"] % 64:
        raise NotImplementedError("block scales alone, columns a multiple of 64")
    from flashinfer.gemm import fp8_blockscale_gemm_sm90

    # It reads the scales as they lie, whatever the strides: tokens side by side, in fours.
    of_x = tensors["x_scale"].t()[: axes["M"]]
    x, w, of_w, out = (tensors[name] for name in ("x", "w", "w_scale", "out"))
    fp8_blockscale_gemm_sm90(x, w, of_x, of_w, out=out)


def triton(tensors, axes, SCALES="token"):
    """SGLang's Triton kernel, which it calls where there is no DeepGEMM."""
    if SCALES == "token":
        raise NotImplementedError("block scales alone")
    import torch
    from sglang.kernels.ops.quantization.fp8_kernel import w8a8_block_fp8_matmul_triton

    of_x = tensors["x_scale"].t()[: axes["M"]]
    x, w, of_w = (tensors[name] for name in ("x", "w", "w_scale"))
    out = w8a8_block_fp8_matmul_triton(x, w, of_x, of_w, [BLOCK, BLOCK], torch.bfloat16)
    return {"out": out}


def production(axes, SCALES="token"):
    """What SGLang calls."""
    return "sgl-aot" if SCALES == "token" else "deep-gemm"


peers = {
    "pytorch": pytorch,
    "torch.compile": torch_compile,
    "sgl-aot": sgl_aot,
    "deep-gemm": deep_gemm,
    "flashinfer": flashinfer,
    "triton": triton,
}
