"""SGLang's Triton GEMM of fp8 e4m3 with block scales, as installed: launcher, inputs, reference."""

from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace

NEEDED = (
    "pip install 'torch==2.11.0' 'triton==3.6.0' 'sglang==0.5.17' 'sglang-kernel==0.4.5'"
    " (docs/peers.md)"
)
# Of K, and of columns, under a scale.
BLOCKS = {"block128": 128, "block32": 32}
# What SGLang takes without a file: its steps along K and columns are those of a scale.
DEFAULT = {"BLOCK_SIZE_M": 64, "GROUP_SIZE_M": 32, "num_warps": 4, "num_stages": 3}
# Of the rows of x in `extreme`: their sums stay between the smallest and the largest floats.
ROW_SCALES = (2.0**-60, 2.0**-10, 1.0, 2.0**50)


@cache
def engine():
    """Import what is needed of SGLang, once a process."""
    try:
        import torch
        from sglang.kernels.ops.quantization import fp8_kernel
    except ImportError as error:
        reason = f"SGLang's block fp8 kernel cannot be imported: {error}; {NEEDED}"
        raise ImportError(reason) from error
    return SimpleNamespace(torch=torch, kernels=fp8_kernel)


@contextmanager
def file_with(kernels, config, tokens):
    """Let SGLang find `config` where it looks for its file; None leaves it its own choice.

    Its function takes no config and reads the file once a process. What it finds there it would
    clamp only while it reads: here nothing changes the config.
    """
    own = kernels.get_w8a8_block_fp8_configs
    if config is not None:
        kernels.get_w8a8_block_fp8_configs = lambda *_: {tokens: dict(config)}
    try:
        yield
    finally:
        kernels.get_w8a8_block_fp8_configs = own


def launch(config, tensors, axes, SCALES="block128"):
    """Enqueue the GEMM; `config` None is the config of SGLang's own file, or its default."""
    sglang, block = engine(), BLOCKS[SCALES]
    if config is not None and SCALES == "block32":  # a step has one scale: there is no choice
        config = {**config, "BLOCK_SIZE_K": block}
    with file_with(sglang.kernels, config, axes["M"]):
        product = sglang.kernels.w8a8_block_fp8_matmul_triton(
            tensors["x"],
            tensors["w"],
            tensors["x_scale"],
            tensors["w_scale"],
            [block, block],
            output_dtype=sglang.torch.bfloat16,
        )
    return {"out": product}


def without_file(tensors, axes, SCALES="block128"):
    """SGLang's kernel with the config that it takes where it finds no file for a shape."""
    sides = {"BLOCK_SIZE_N": BLOCKS[SCALES], "BLOCK_SIZE_K": BLOCKS[SCALES]}
    return launch({**DEFAULT, **sides}, tensors, axes, SCALES)


def reference(xp, inputs, axes, SCALES="block128"):
    """Compute `(x * x_scale) @ (w * w_scale).T` in float64; `xp` is NumPy or CuPy."""
    columns, depth, block = axes["N"], axes["K"], BLOCKS[SCALES]
    x = inputs["x"] * xp.repeat(inputs["x_scale"], block, axis=1)[:, :depth]
    w_scale = xp.repeat(xp.repeat(inputs["w_scale"], block, axis=0), block, axis=1)
    return {"out": x @ (inputs["w"] * w_scale[:columns, :depth]).T}


def inputs(xp, rng, axes, fill, SCALES="block128"):
    """Draw scales of w as its quantization gives them, so that sums of K products are about 1.

    For `extreme` codes have one sign, all of x and each row of w, and scales of x differ by powers
    of two: where large numbers cancel, what is left depends on the order of the sum.
    """
    rows, columns, depth, block = axes["M"], axes["N"], axes["K"], BLOCKS[SCALES]
    blocks = -(-depth // block)
    of_w = (-(-columns // block), blocks)
    drawn = {"w_scale": (0.5 + rng.random(of_w, dtype=xp.float32)) * xp.float32(depth**-0.5)}
    if fill != "extreme":
        return drawn
    choice = (rng.random((rows, 1), dtype=xp.float32) * len(ROW_SCALES)).astype(xp.int32)
    scales = xp.asarray(ROW_SCALES, dtype=xp.float32)[xp.minimum(choice, len(ROW_SCALES) - 1)]
    x = xp.minimum(xp.abs(rng.standard_normal((rows, depth), dtype=xp.float32)) * 150, 448)
    w = xp.minimum(xp.abs(rng.standard_normal((columns, depth), dtype=xp.float32)) * 150, 448)
    signs = xp.where(rng.random((columns, 1), dtype=xp.float32) < 0.5, -1.0, 1.0)
    x_scale = scales * xp.ones((rows, blocks), dtype=xp.float32)
    return drawn | {"x": x, "w": w * signs.astype(xp.float32), "x_scale": x_scale}


peers = {"without_file": without_file}
