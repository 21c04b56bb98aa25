"""The float64 reference of per_token_group_quant: codes and scale of each 128 neighbours."""

from functools import cache

GROUP = 128
LEAST = 1.0e-10  # no group's largest counts as less
LARGEST = {"fp8": 448.0, "int8": 127.0}
LARGEST_FLOAT = 3.4028234663852886e38  # beyond it the kernels' fp32 has no products
MOST_SETS = 8192  # of buffers that a peer is called with


def reference(xp, inputs, axes, QUANT="fp8", SCALES="column", FUSED="false"):
    """Compute q and scale in float64; `xp` is NumPy or CuPy. Rounding to codes is the judge's.

    One division a number, for halfway cases are many and an error decides them the wrong way.
    """
    rows, width = axes["T"], axes["K"]
    x = inputs["x"]
    if FUSED == "true":
        x = silu_and_mul(xp, x[:, :width], x[:, width:])
    groups = x.reshape(rows, width // GROUP, GROUP)
    largest = xp.maximum(xp.abs(groups).max(axis=2, keepdims=True), LEAST)
    codes = groups * LARGEST[QUANT] / largest
    scale = largest[:, :, 0] / LARGEST[QUANT]
    if SCALES == "column":
        scale = xp.pad(scale.T, ((0, 0), (0, -rows % 4)))
    return {"q": codes.reshape(rows, width), "scale": scale}


def silu_and_mul(xp, gate, up):
    product = gate / (1.0 + xp.exp(-gate)) * up
    return xp.clip(product, -LARGEST_FLOAT, LARGEST_FLOAT)


def quantized(torch, x, quant, scales, fused):
    """Quantize in PyTorch's operators, with the scales laid out as they are asked for."""
    values = x.float()
    if fused == "true":
        gate, up = values.chunk(2, dim=1)
        values = torch.nn.functional.silu(gate) * up
    rows, width = values.shape
    groups = values.view(rows, width // GROUP, GROUP)
    largest = groups.abs().amax(dim=2, keepdim=True).clamp(min=LEAST)
    scaled = groups * (LARGEST[quant] / largest)
    codes = scaled.round().to(torch.int8) if quant == "int8" else scaled.to(torch.float8_e4m3fn)
    scale = largest.squeeze(2) / LARGEST[quant]
    if scales == "column":
        scale = torch.nn.functional.pad(scale.t(), (0, -rows % 4))
    return codes.view(rows, width), scale


def pytorch(tensors, axes, QUANT="fp8", SCALES="column", FUSED="false"):
    """PyTorch's own operators, eager."""
    import torch

    q, scale = quantized(torch, tensors["x"], QUANT, SCALES, FUSED)
    return {"q": q, "scale": scale}


@cache
def compiled(quant, scales, fused):
    import torch

    return torch.compile(lambda x: quantized(torch, x, quant, scales, fused), dynamic=False)


def torch_compile(tensors, axes, QUANT="fp8", SCALES="column", FUSED="false"):
    """The same, compiled."""
    q, scale = compiled(QUANT, SCALES, FUSED)(tensors["x"])
    return {"q": q, "scale": scale}


@cache
def zeros(columns, height):
    """Make scales for one call after the other, without any work at that call."""
    import torch

    return iter(torch.zeros(MOST_SETS, columns, height, device="cuda").unbind())


@cache
def padded_scales(address, columns, height):
    """Give each set of buffers, known by its address, other scales with zeros as padding."""
    return next(zeros(columns, height))


def scales_for(tensors, axes, SCALES):
    """Give the scales and a view of them by rows; a peer leaves the padding as it was."""
    rows, scale = axes["T"], tensors["scale"]
    if SCALES != "column":
        return scale, scale
    if rows % 4:
        scale = padded_scales(scale.data_ptr(), *scale.shape)
    return scale, scale.t()[:rows]


def sgl_aot(tensors, axes, QUANT="fp8", SCALES="column", FUSED="false"):
    """SGLang's prebuilt operator."""
    from tuner.device.reference import torch_operators

    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    q, largest = tensors["q"], LARGEST[QUANT]
    scale, into = scales_for(tensors, axes, SCALES)
    least = -largest if QUANT == "fp8" else -largest - 1.0
    choices = (GROUP, LEAST, least, largest, False, FUSED == "true", None)
    operators.sgl_per_token_group_quant_8bit_v2.default(tensors["x"], q, into, *choices)
    return {"q": q, "scale": scale}


def sgl_jit(tensors, axes, QUANT="fp8", SCALES="column", FUSED="false"):
    """SGLang's operator that is compiled when it is first called."""
    from sglang.kernels.ops.quantization.per_token_group_quant import per_token_group_quant

    q = tensors["q"]
    scale, into = scales_for(tensors, axes, SCALES)
    per_token_group_quant(tensors["x"], q, into, GROUP, fuse_silu_and_mul=FUSED == "true")
    return {"q": q, "scale": scale}


production = "sgl-jit"
peers = {
    "pytorch": pytorch,
    "torch.compile": torch_compile,
    "sgl-aot": sgl_aot,
    "sgl-jit": sgl_jit,
}
