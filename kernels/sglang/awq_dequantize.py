"""The reference of awq_dequantize, exact to the bit, and inputs with every nibble."""

from functools import cache

GROUP = 128  # rows that share scales and zeros
NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)  # of a word, in the order of the columns
# From the smallest number of fp16, whose scales have a single bit, to where 15 of them stay finite.
SCALES = (2.0**-24, 2.0**-16, 2.0**-8, 1.0, 2.0**11)


def reference(xp, inputs, axes, DTYPE="float16"):
    """Compute `(w - z) * s`, rounded once to 16 bits; `xp` is NumPy or CuPy.

    The product of two such numbers is exact in float32 as well: there is one right answer.
    """
    group = xp.arange(axes["R"]) // GROUP
    weights, zeros = unpacked(xp, inputs["qweight"]), unpacked(xp, inputs["zeros"])
    product = (weights - zeros[group]) * inputs["scales"][group]
    return {"out": ROUNDED[DTYPE](xp, product).astype(xp.float64)}


def unpacked(xp, words):
    """Give the 8 nibbles of each word as columns side by side."""
    shifts = 4 * xp.asarray(NIBBLES, dtype=xp.int64)
    nibbles = words.astype(xp.int64)[..., None] >> shifts & 15
    return nibbles.reshape(len(words), -1)


def to_float16(xp, values):
    return values.astype(xp.float16)


def to_bfloat16(xp, values):
    bits = values.astype(xp.float32).view(xp.uint32)
    even = bits + 0x7FFF + (bits >> 16 & 1)
    return (even >> 16 << 16).view(xp.float32)


ROUNDED = {"float16": to_float16, "bfloat16": to_bfloat16}


def inputs(xp, rng, axes, fill):
    """Draw words of any bits and, for `extreme`, scales that stay finite and need all of fp16."""
    groups = -(-axes["R"] // GROUP)
    values = {
        "qweight": words(xp, rng, (axes["R"], axes["C"])),
        "zeros": words(xp, rng, (groups, axes["C"])),
    }
    if fill == "extreme":
        shape = (groups, 8 * axes["C"])
        choice = (rng.random(shape, dtype=xp.float32) * len(SCALES)).astype(xp.int32)
        sizes = xp.asarray(SCALES, dtype=xp.float32)[xp.minimum(choice, len(SCALES) - 1)]
        values["scales"] = sizes * (2.0 * rng.random(shape, dtype=xp.float32) - 1.0)
    return values


def words(xp, rng, shape):
    high, low = ((rng.random(shape, dtype=xp.float32) * 65536).astype(xp.int32) for _ in range(2))
    return (high - 32768) * 65536 + low


def plain(qweight, scales, zeros):
    import torch

    columns = torch.arange(8, dtype=torch.int32, device=qweight.device)
    shifts = 4 * (columns // 2 + 4 * (columns % 2))  # as in NIBBLES
    rows = len(qweight)
    w = ((qweight[..., None] >> shifts) & 15).reshape(rows, -1)
    z = ((zeros[..., None] >> shifts) & 15).reshape(len(zeros), -1)
    groups = torch.arange(rows, device=qweight.device) // GROUP
    return (w - z[groups]).to(scales.dtype) * scales[groups]


@cache
def compiled_plain():
    import torch

    return torch.compile(plain, dynamic=False)


def compiled(tensors, axes, DTYPE="float16"):
    """The operator in plain PyTorch, compiled."""
    return {"out": compiled_plain()(tensors["qweight"], tensors["scales"], tensors["zeros"])}


def sgl_aot(tensors, axes, DTYPE="float16"):
    """SGLang's prebuilt operator, which takes its group size from the shapes."""
    from tuner.device.reference import torch_operators

    require_whole_groups(axes)
    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    arguments = (tensors["qweight"], tensors["scales"], tensors["zeros"])
    return {"out": operators.awq_dequantize.default(*arguments)}


def sgl_jit(tensors, axes, DTYPE="float16"):
    """SGLang's operator that is compiled when it is first called."""
    from sglang.kernels.ops.quantization.awq_dequantize import awq_dequantize

    require_whole_groups(axes)
    return {"out": awq_dequantize(tensors["qweight"], tensors["scales"], tensors["zeros"])}


def require_whole_groups(axes):
    if axes["R"] % GROUP:
        raise NotImplementedError("whole groups only")


production = "sgl-jit"
peers = {"torch.compile": compiled, "sgl-aot": sgl_aot, "sgl-jit": sgl_jit}
