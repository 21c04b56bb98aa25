"""The float64 reference of fused_qk_norm_rope, and inputs up to the last position of Qwen3."""

from functools import cache

EPS = 1.0e-6  # as in search_spaces/sglang/fused_qk_norm_rope.yaml
THETAS = {"theta_1e6": 1.0e6, "theta_5e5": 5.0e5}  # Qwen3, Llama 3
POSITIONS = 40960
# Rows so far apart that only eps counts in one and nothing of it in another.
ROW_SCALES = (2.0**-100, 2.0**-10, 1.0, 2.0**50)


def reference(xp, inputs, axes, STYLE="neox", THETA="theta_1e6"):
    """Normalise and rotate the heads of q and k in float64; `xp` is NumPy or CuPy."""
    tokens, heads, dim = axes["T"], axes["Q"] + axes["G"], axes["D"]
    out = inputs["qkv"].copy()
    x = out[:, : heads * dim].reshape(tokens, heads, dim)
    x = x / xp.sqrt((x * x).mean(axis=2, keepdims=True) + EPS)
    x[:, : axes["Q"]] *= inputs["wq"]
    x[:, axes["Q"] :] *= inputs["wk"]
    frequencies = THETAS[THETA] ** (-2.0 * xp.arange(dim // 2) / dim)
    angles = inputs["positions"][:, None, None] * frequencies
    out[:, : heads * dim] = rotated(xp, x, angles, STYLE).reshape(tokens, -1)
    return {"qkv": out}


def rotated(xp, x, angles, style):
    half = x.shape[2] // 2
    if style == "neox":
        first, second = slice(0, half), slice(half, None)
    else:
        first, second = slice(0, None, 2), slice(1, None, 2)
    sine, cosine = xp.sin(angles), xp.cos(angles)
    result = xp.empty_like(x)
    result[..., first] = x[..., first] * cosine - x[..., second] * sine
    result[..., second] = x[..., second] * cosine + x[..., first] * sine
    return result


def inputs(xp, rng, axes, fill):
    """Draw positions far and near, and weights around 1, as a trained model has them."""
    tokens, dim = axes["T"], axes["D"]
    positions = (rng.random((tokens,), dtype=xp.float32) * POSITIONS).astype(xp.int32)
    # Half of the tokens are anywhere, the others at 0 or close to it as often as further away.
    shifts = (rng.random((tokens,), dtype=xp.float32) * 32).astype(xp.int32)
    values = {
        "positions": positions >> xp.maximum(shifts - 16, 0),
        "wq": 0.75 + 0.5 * rng.random((dim,), dtype=xp.float32),
        "wk": 0.75 + 0.5 * rng.random((dim,), dtype=xp.float32),
    }
    if fill == "extreme":
        # The squares of the largest bf16 are beyond any float.
        width = (axes["Q"] + 2 * axes["G"]) * dim
        scales = xp.asarray(ROW_SCALES, dtype=xp.float32)
        choice = (rng.random((tokens, 1), dtype=xp.float32) * len(ROW_SCALES)).astype(xp.int32)
        x = rng.standard_normal((tokens, width), dtype=xp.float32)
        values["qkv"] = x * scales[xp.minimum(choice, len(ROW_SCALES) - 1)]
    return values


def plain(qkv, wq, wk, positions, sizes, neox, theta):
    import torch

    queries, keys, dim = sizes
    heads = queries + keys
    x = qkv[:, : heads * dim].view(-1, heads, dim).float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
    weights = torch.cat([wq.expand(queries, dim), wk.expand(keys, dim)])
    x = x * weights
    exponents = torch.arange(0, dim, 2, device=qkv.device, dtype=torch.float32) / dim
    angles = positions[:, None, None] * theta**-exponents
    sine, cosine = angles.sin(), angles.cos()
    a, b = x.chunk(2, -1) if neox else (x[..., 0::2], x[..., 1::2])
    pair = (a * cosine - b * sine, b * cosine + a * sine)
    turned = torch.cat(pair, -1) if neox else torch.stack(pair, -1).flatten(-2)
    qkv[:, : heads * dim] = turned.to(qkv.dtype).flatten(1)


@cache
def compiled_plain():
    import torch

    return torch.compile(plain, dynamic=False)


def compiled(tensors, axes, STYLE="neox", THETA="theta_1e6"):
    """The operator in plain PyTorch, compiled; in place."""
    sizes = axes["Q"], axes["G"], axes["D"]
    arrays = (tensors[name] for name in ("qkv", "wq", "wk", "positions"))
    compiled_plain()(*arrays, sizes, STYLE == "neox", THETAS[THETA])


def sgl_arguments(tensors, axes, STYLE, THETA):
    """List what both of SGLang's operators take, in place; a yarn factor of 1 turns yarn off."""
    sizes = (axes["Q"], axes["G"], axes["G"], axes["D"])
    weights = (tensors["wq"], tensors["wk"])
    rope = (THETAS[THETA], STYLE == "neox", tensors["positions"], 1.0, 0.0, 0.0, 1.0, axes["D"])
    return (tensors["qkv"], *sizes, EPS, *weights, *rope)


def sgl_aot(tensors, axes, STYLE="neox", THETA="theta_1e6"):
    """SGLang's prebuilt operator."""
    from tuner.device.reference import torch_operators

    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    operators.fused_qk_norm_rope.default(*sgl_arguments(tensors, axes, STYLE, THETA))


def sgl_jit(tensors, axes, STYLE="neox", THETA="theta_1e6"):
    """SGLang's operator that is compiled when it is first called."""
    from sglang.kernels.ops.attention.fused_qknorm_rope import fused_qk_norm_rope

    fused_qk_norm_rope(*sgl_arguments(tensors, axes, STYLE, THETA))


production = "sgl-jit"
peers = {"torch.compile": compiled, "sgl-aot": sgl_aot, "sgl-jit": sgl_jit}
