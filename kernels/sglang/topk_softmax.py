"""The float64 reference of topk_softmax, the k likeliest experts of each token, and its peers."""

from functools import cache


def reference(xp, inputs, axes, RENORMALIZE="true"):
    """Compute weights and ids in float64; `xp` is NumPy or CuPy.

    Ranked by logit, so that nothing depends on how a probability rounds.
    """
    logits = inputs["logits"]
    ids = largest(xp, logits, axes["k"])
    powers = xp.exp(logits - logits.max(axis=1, keepdims=True))
    picked = xp.take_along_axis(powers, ids, axis=1)
    whole = picked if RENORMALIZE == "true" else powers
    return {"weights": picked / whole.sum(axis=1, keepdims=True), "ids": ids}


def largest(xp, logits, k):
    """Give the ids of each row's k largest logits, in descending order; of equal ones the lower."""
    width = logits.shape[1]
    every = xp.arange(width)
    rest, ids = logits, []
    for _ in range(k):
        top = rest.max(axis=1, keepdims=True)
        best = xp.where(rest == top, every, width).min(axis=1, keepdims=True)
        rest = xp.where(every == best, -xp.inf, rest)
        ids.append(best)
    return xp.concatenate(ids, axis=1)


def plain(logits, k, RENORMALIZE):
    """Write the operator in PyTorch.

    Models call `torch.topk`, which leaves the order of equal values open; a stable sort keeps it.
    """
    import torch

    values = logits.float() + 0.0  # -0 becomes +0, which ranks as it does
    ids = torch.sort(values, dim=1, descending=True, stable=True).indices[:, :k]
    weights = torch.softmax(values, dim=1).gather(1, ids)
    if RENORMALIZE == "true":
        weights = weights / weights.sum(dim=1, keepdim=True)
    return {"weights": weights, "ids": ids.int()}


@cache
def compiled_plain():
    import torch

    return torch.compile(plain, dynamic=False)


def pytorch(tensors, axes, RENORMALIZE="true"):
    return plain(tensors["logits"], axes["k"], RENORMALIZE)


def torch_compile(tensors, axes, RENORMALIZE="true"):
    return compiled_plain()(tensors["logits"], axes["k"], RENORMALIZE)


def sgl_aot(tensors, axes, RENORMALIZE="true"):
    """SGLang's prebuilt operator.

    It ranks rounded probabilities: where most are 0, as for the fill `extreme`, by id alone.
    """
    from tuner.device.reference import torch_operators

    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    arrays = (tensors["weights"], tensors["ids"], tensors["logits"])
    operators.topk_softmax.default(*arrays, RENORMALIZE == "true", 0.0, None)


@cache
def no_bias(experts):
    import torch

    return torch.zeros(experts, dtype=torch.float32, device="cuda")


def triton(tensors, axes, RENORMALIZE="true"):
    """SGLang's Triton router, without the zeros that SGLang fills for it at every call."""
    from sglang.kernels.ops.moe.moe_fused_gate import moe_fused_gate

    weights, ids = moe_fused_gate(
        tensors["logits"],
        no_bias(axes["E"]),
        axes["k"],
        scoring_func="softmax",
        renormalize=RENORMALIZE == "true",
    )
    return {"weights": weights, "ids": ids}


production = "triton"
peers = {
    "pytorch": pytorch,
    "torch.compile": torch_compile,
    "triton": triton,
    "sgl-aot": sgl_aot,
}
