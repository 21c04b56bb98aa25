"""The float64 reference of topk_softmax: the 8 likeliest experts of each token."""

TOP_K = 8


def reference(xp, inputs, axes, RENORMALIZE="false"):
    """Compute weights and ids in float64; `xp` is NumPy or CuPy.

    Ranked by logit, so that nothing depends on how a probability rounds.
    """
    logits = inputs["logits"]
    ids = largest(xp, logits)
    powers = xp.exp(logits - logits.max(axis=1, keepdims=True))
    picked = xp.take_along_axis(powers, ids, axis=1)
    whole = picked if RENORMALIZE == "true" else powers
    return {"weights": picked / whole.sum(axis=1, keepdims=True), "ids": ids}


def largest(xp, logits):
    """Give the ids of each row's largest logits, in descending order; of equal ones the lower."""
    width = logits.shape[1]
    every = xp.arange(width)
    rest, ids = logits, []
    for _ in range(TOP_K):
        top = rest.max(axis=1, keepdims=True)
        best = xp.where(rest == top, every, width).min(axis=1, keepdims=True)
        rest = xp.where(every == best, -xp.inf, rest)
        ids.append(best)
    return xp.concatenate(ids, axis=1)
