"""The float64 reference of gemm_invariant_fp8, scales whose sums are near 1, and its peers."""

from functools import cache

BLOCK = 128  # of K, and of columns, under a scale
# Of the rows of x in `extreme`: their sums stay between the smallest and the largest floats.
ROW_SCALES = (2.0**-60, 2.0**-10, 1.0, 2.0**50)


def reference(xp, inputs, axes, SCALES="token"):
    """Compute `(x * x_scale) @ (w * w_scale).T` in float64; `xp` is NumPy or CuPy."""
    x, w, of_x, of_w = (inputs[name] for name in ("x", "w", "x_scale", "w_scale"))
    if SCALES == "block":
        of_x = xp.repeat(of_x[:, : axes["T"]], BLOCK, axis=0).T
        of_w = xp.repeat(xp.repeat(of_w, BLOCK, axis=0)[: axes["N"]], BLOCK, axis=1)
    return {"y": (x * of_x) @ (w * of_w).T}


def inputs(xp, rng, axes, fill, SCALES="token"):
    """Draw scales of w as its quantization gives them, so that sums of K products are about 1.

    For `extreme` codes have one sign, all of x and each row of w, and a row of x has a scale of its
    own: where large numbers cancel, what is left depends on the order of the sum.
    """
    tokens, columns, depth = axes["T"], axes["N"], axes["K"]
    token = SCALES == "token"
    of_w = (columns, 1) if token else (-(-columns // BLOCK), depth // BLOCK)
    drawn = {"w_scale": (0.5 + rng.random(of_w, dtype=xp.float32)) * xp.float32(depth**-0.5)}
    if fill != "extreme":
        return drawn
    of_x = (tokens, 1) if token else (depth // BLOCK, -(-tokens // 4) * 4)
    # One power of two for all of K.
    which = rng.random((tokens, 1) if token else (1, of_x[1]), dtype=xp.float32) * len(ROW_SCALES)
    scales = xp.asarray(ROW_SCALES, dtype=xp.float32)
    scales = scales[xp.minimum(which.astype(xp.int32), len(ROW_SCALES) - 1)]
    x, w = (
        xp.minimum(xp.abs(rng.standard_normal(shape, dtype=xp.float32)) * 150, 448)
        for shape in ((tokens, depth), (columns, depth))
    )
    signs = xp.where(rng.random((columns, 1), dtype=xp.float32) < 0.5, -1.0, 1.0)
    x_scale = scales * xp.ones(of_x, dtype=xp.float32)
    return drawn | {"x": x, "w": w * signs.astype(xp.float32), "x_scale": x_scale}


def arrays_of(tensors, axes, SCALES):
    """Name x, w and their scales as engines take them: those of x by token, then by blocks of K."""
    of_x = tensors["x_scale"]
    of_x = of_x if SCALES == "token" else of_x.t()[: axes["T"]]
    return tensors["x"], tensors["w"], of_x, tensors["w_scale"]


def pytorch(tensors, axes, SCALES="token"):
    """PyTorch's operator, free to choose for each number of rows: cuBLASLt, or CUTLASS."""
    import torch

    token = SCALES == "token"
    if not token and (axes["T"] % 4 or axes["K"] // BLOCK % 4):
        raise NotImplementedError("scales of rows of x and of K come in fours, without a rest")
    x, w, of_x, of_w = arrays_of(tensors, axes, SCALES)
    y = torch._scaled_mm(x, w.t(), of_x, of_w.t(), out_dtype=torch.bfloat16, use_fast_accum=token)
    return {"y": y}


@cache
def compiled():
    import torch

    def linear(x, w, of_x, of_w):
        return torch._scaled_mm(
            x, w.t(), of_x, of_w.t(), out_dtype=torch.bfloat16, use_fast_accum=True
        )

    return torch.compile(linear, dynamic=False, mode="max-autotune-no-cudagraphs")


def torch_compile(tensors, axes, SCALES="token"):
    """The best that PyTorch's compiler finds, as free."""
    if SCALES == "block":
        raise NotImplementedError("a scale a row alone")
    return {"y": compiled()(*arrays_of(tensors, axes, SCALES))}


def sgl_aot(tensors, axes, SCALES="token"):
    """SGLang's prebuilt CUTLASS kernels, which its deterministic mode calls too."""
    import torch

    from tuner.device.reference import torch_operators

    if SCALES == "block":
        raise NotImplementedError("a scale a row alone; its block scales are for compute 12.x")
    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    x, w, of_x, of_w = arrays_of(tensors, axes, SCALES)
    return {"y": operators.fp8_scaled_mm.default(x, w.t(), of_x, of_w, torch.bfloat16, None)}


@cache
def programmatic_deep_gemm():
    import deep_gemm

    deep_gemm.set_pdl(True)  # as SGLang does
    return deep_gemm


def deep_gemm(tensors, axes, SCALES="token"):
    """DeepGEMM, which SGLang calls for block scales, in its deterministic mode too."""
    if SCALES == "token":
        raise NotImplementedError("block scales alone")
    x, w, of_x, of_w = arrays_of(tensors, axes, SCALES)
    programmatic_deep_gemm().fp8_gemm_nt(
        (x, of_x), (w, of_w), tensors["y"], disable_ue8m0_cast=True
    )


def triton(tensors, axes, SCALES="token"):
    """SGLang's Triton kernel, which it calls where there is no DeepGEMM; a config a size."""
    if SCALES == "token":
        raise NotImplementedError("block scales alone")
    import torch
    from sglang.kernels.ops.quantization.fp8_kernel import w8a8_block_fp8_matmul_triton

    product = w8a8_block_fp8_matmul_triton
    arrays = arrays_of(tensors, axes, SCALES)
    return {"y": product(*arrays, [BLOCK, BLOCK], torch.bfloat16)}


def vllm_invariant(tensors, axes, SCALES="token"):
    """vLLM's Triton kernels, of block scales with the one config of its batch-invariant mode."""
    import torch

    x, w, of_x, of_w = arrays_of(tensors, axes, SCALES)
    if SCALES == "token":
        from vllm.model_executor.layers.quantization.compressed_tensors import triton_scaled_mm

        product = triton_scaled_mm.triton_scaled_mm
        return {"y": product(x, w.t(), of_x, of_w, torch.bfloat16)}
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    files = fp8_utils.get_w8a8_block_fp8_configs
    fp8_utils.get_w8a8_block_fp8_configs = lambda *_: None  # as in that mode
    try:
        product = fp8_utils.w8a8_triton_block_scaled_mm
        return {"y": product(x, w, of_x, of_w, [BLOCK, BLOCK], torch.bfloat16)}
    finally:
        fp8_utils.get_w8a8_block_fp8_configs = files


def production(axes, SCALES="token"):
    """What SGLang calls: its deterministic mode has no product in fp8 of its own (0.5.17)."""
    return "sgl-aot" if SCALES == "token" else "deep-gemm"


peers = {
    "pytorch": pytorch,
    "torch.compile": torch_compile,
    "sgl-aot": sgl_aot,
    "deep-gemm": deep_gemm,
    "triton": triton,
    "vllm-invariant": vllm_invariant,
}
