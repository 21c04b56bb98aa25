"""The float64 reference of merge_state, states that have no keys, and peers."""

from functools import cache

NO_KEYS = 0.1  # share of the heads where part a has none; as many where b has none
NEITHER = 0.04  # and where neither has any
LARGEST = 3.4028234663852886e38  # of float32
# Logarithms that are equal, some steps apart, or so far that only the larger counts. Between these
# a weight would be a denormal, and its product with the largest V anything.
LOGARITHMS = (LARGEST, -LARGEST, 1e38, -1e38, 2.0**-126, 2.0**-130, 0.0, -0.0, 1.0, -1.0, 1.25, 4.0)


def reference(xp, inputs, axes):
    """Compute v_merged and s_merged in float64; `xp` is NumPy or CuPy.

    A logarithm of +inf is one of -inf. Where both are, all results are NaN: no mean of nothing.
    """
    a, b = (xp.where(xp.isposinf(s), -xp.inf, s) for s in (inputs["s_a"], inputs["s_b"]))
    larger = xp.maximum(a, b)
    of_a, of_b = xp.exp(a - larger), xp.exp(b - larger)
    total = of_a + of_b
    share_a, share_b = ((power / total)[:, :, None] for power in (of_a, of_b))
    return {
        "v_merged": share_a * inputs["v_a"] + share_b * inputs["v_b"],
        "s_merged": larger + xp.log(total),
    }


def inputs(xp, rng, axes, fill):
    """Draw s_a and s_b where parts have no keys, and for `extreme`.

    Results that are NaN come with `nonfinite` alone: outputs are NaN before the launch with others.
    """
    shape = (axes["T"], axes["H"])
    if fill == "extreme":
        table = xp.asarray(LOGARITHMS, dtype=xp.float32)
        return {name: table[picks(xp, rng, shape, len(LOGARITHMS))] for name in ("s_a", "s_b")}
    if fill not in ("zeros", "nonfinite"):
        return {}
    a, b = (rng.standard_normal(shape, dtype=xp.float32) for _ in range(2))
    if fill == "zeros":  # which of equal ones is the larger must not matter
        b = xp.where(rng.random(shape, dtype=xp.float32) < 0.5, a, b)
    chance = rng.random(shape, dtype=xp.float32)
    without_a, without_b = chance < NO_KEYS, chance > 1.0 - NO_KEYS
    if fill == "nonfinite":
        neither = xp.abs(chance - 0.5) < NEITHER / 2
        neither.reshape(-1)[:1] = True
        without_a, without_b = without_a | neither, without_b | neither
    none = xp.asarray([xp.inf, -xp.inf], dtype=xp.float32)
    return {
        "s_a": xp.where(without_a, none[picks(xp, rng, shape, 2)], a),
        "s_b": xp.where(without_b, none[picks(xp, rng, shape, 2)], b),
    }


def picks(xp, rng, shape, count):
    """Draw indices below `count`."""
    drawn = (rng.random(shape, dtype=xp.float32) * count).astype(xp.int32)
    return xp.minimum(drawn, count - 1)


STATES = ("v_a", "s_a", "v_b", "s_b")
RESULTS = ("v_merged", "s_merged")


def sgl_aot(tensors, axes):
    """SGLang's prebuilt operator."""
    from tuner.device.reference import torch_operators

    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    operators.merge_state_v2.default(*(tensors[name] for name in (*STATES, *RESULTS)))


def triton(tensors, axes):
    """SGLang's Triton kernel, which it calls for heads of odd sizes."""
    from sglang.kernels.ops.attention.merge_state import merge_state_triton

    merge_state_triton(*(tensors[name] for name in (*STATES, *RESULTS)))


@cache
def compiled():
    """Compile the operator as one would write it in PyTorch."""
    import torch

    def merge(v_a, s_a, v_b, s_b):
        s_a = torch.where(s_a == torch.inf, -torch.inf, s_a)
        s_b = torch.where(s_b == torch.inf, -torch.inf, s_b)
        larger = torch.maximum(s_a, s_b)
        of_a, of_b = torch.exp(s_a - larger), torch.exp(s_b - larger)
        total = of_a + of_b
        merged = (of_a / total)[..., None] * v_a.float() + (of_b / total)[..., None] * v_b.float()
        return merged.to(v_a.dtype), torch.log(total) + larger

    return torch.compile(merge, dynamic=False)


def torch_compile(tensors, axes):
    """What PyTorch's compiler makes of it."""
    merge = compiled()
    v_merged, s_merged = merge(*(tensors[name] for name in STATES))
    return {"v_merged": v_merged, "s_merged": s_merged}


# Not flashinfer.merge_state: its logarithms are binary, so the same s gives another v_merged.
production = "sgl-aot"
peers = {"sgl-aot": sgl_aot, "triton": triton, "torch.compile": torch_compile}
