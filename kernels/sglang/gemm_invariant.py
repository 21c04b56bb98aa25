"""The float64 reference of gemm_invariant, weights whose sums are near 1, and its peers."""

from functools import cache

# Of the rows of x in `extreme`: their sums stay between the smallest and the largest floats.
ROW_SCALES = (2.0**-100, 2.0**-10, 1.0, 2.0**50)


def reference(xp, inputs, axes):
    """Compute `x @ w.T` in float64; `xp` is NumPy or CuPy."""
    return {"y": inputs["x"] @ inputs["w"].T}


def inputs(xp, rng, axes, fill):
    """Draw w as models have it, so that sums of K products are about 1 for every K.

    For `extreme` a row of x has one sign and a scale of its own, and a row of w one sign: where
    large numbers cancel, what is left depends on the order of the sum.
    """
    columns, depth = axes["N"], axes["K"]
    w = rng.standard_normal((columns, depth), dtype=xp.float32) * depth**-0.5
    if fill != "extreme":
        return {"w": w}
    x = xp.abs(rng.standard_normal((axes["T"], depth), dtype=xp.float32))
    scales = xp.asarray(ROW_SCALES, dtype=xp.float32)
    choice = (rng.random((axes["T"], 1), dtype=xp.float32) * len(ROW_SCALES)).astype(xp.int32)
    signs = xp.where(rng.random((columns, 1), dtype=xp.float32) < 0.5, -1.0, 1.0)
    signs = signs.astype(xp.float32)
    return {"x": x * scales[xp.minimum(choice, len(ROW_SCALES) - 1)], "w": xp.abs(w) * signs}


def pytorch(tensors, axes):
    """cuBLAS, free to choose for each number of rows: what invariant rows cost is seen by it."""
    return blas("cublas", tensors)


def cublaslt(tensors, axes):
    """The first algorithm that cuBLASLt proposes, as free."""
    return blas("cublaslt", tensors)


def blas(library, tensors):
    import torch

    torch.backends.cuda.preferred_blas_library(library)
    torch.mm(tensors["x"], tensors["w"].t(), out=tensors["y"])


@cache
def compiled():
    import torch

    def linear(x, w):
        return torch.mm(x, w.t())

    return torch.compile(linear, dynamic=False, mode="max-autotune-no-cudagraphs")


def torch_compile(tensors, axes):
    """The best that PyTorch's compiler finds, as free."""
    return {"y": compiled()(tensors["x"], tensors["w"])}


def vllm_invariant(tensors, axes):
    """vLLM's persistent Triton product, with the row of its table where that has the shape."""
    from vllm.model_executor.determinism.batch_invariant import matmul_persistent

    return {"y": matmul_persistent(tensors["x"], tensors["w"].t())}


def sgl_invariant(tensors, axes):
    """What SGLang's deterministic mode calls: DeepGEMM where that is installed, else Triton."""
    from sglang.srt.batch_invariant_ops import matmul_persistent

    return {"y": matmul_persistent(tensors["x"], tensors["w"].t())}


def sgl_triton(tensors, axes):
    """SGLang's persistent Triton product, with its one config."""
    from sglang.srt.batch_invariant_ops import batch_invariant_ops

    product = batch_invariant_ops._matmul_persistent_triton
    return {"y": product(tensors["x"], tensors["w"].t())}


production = "sgl-invariant"
peers = {
    "pytorch": pytorch,
    "cublaslt": cublaslt,
    "torch.compile": torch_compile,
    "vllm-invariant": vllm_invariant,
    "sgl-invariant": sgl_invariant,
    "sgl-triton": sgl_triton,
}
