"""decode_attention: its float64 reference, batches of sequences of several lengths, and its peers."""

import numpy as np

SCALE = 0.08838834764831845  # of scores: 128 ** -0.5
EMPTY = 0.25  # share of the sequences without tokens, in `zeros`
SHARP = ("x3", "extreme")  # few tokens have nearly all of the weight


def reference(xp, inputs, axes, LENGTHS="uniform"):
    """Compute out in float64, one sequence after the other; `xp` is NumPy or CuPy."""
    heads, queries, width, page = (axes[name] for name in "HGDP")
    out = xp.zeros((axes["B"], heads * queries, width))
    for sequence, length in enumerate(inputs["lengths"].astype(int).tolist()):
        if length == 0:
            continue
        pages = inputs["page_table"][sequence, : -(-length // page)].astype(xp.int64)
        keys, values = (
            inputs[name][pages].reshape(-1, heads, width)[:length].transpose(1, 0, 2)
            for name in "kv"
        )
        q = inputs["q"][sequence].reshape(heads, queries, width)
        scores = SCALE * xp.matmul(q, keys.transpose(0, 2, 1))
        powers = xp.exp(scores - scores.max(axis=2, keepdims=True))
        mean = xp.matmul(powers / powers.sum(axis=2, keepdims=True), values)
        out[sequence] = mean.reshape(-1, width)
    return {"out": out}


def draw_lengths(chance, sequences, longest, tokens, LENGTHS):
    """Draw lengths from 1 to `longest`, the length of one at least, that add up to `tokens`.

    Each is `longest` times a share to the power that gives the sum: shares are spread evenly
    (uniform), those of Zipf's law, or one and many equal ones.
    """
    if not longest + sequences - 1 <= tokens <= sequences * longest:
        raise ValueError(f"no {sequences} sequences of up to {longest} tokens have {tokens} in all")
    ranks = np.arange(1, sequences + 1)
    shares = {
        "uniform": 1.0 - (ranks - 1) / sequences,
        "zipf": 1.0 / ranks,
        "one_long": np.where(ranks == 1, 1.0, 0.5),
    }[LENGTHS]
    low, high = 0.0, 64.0
    for _ in range(60):
        middle = (low + high) / 2
        enough = np.maximum(longest * shares**middle, 1.0).sum() >= tokens
        low, high = (middle, high) if enough else (low, middle)
    lengths = np.maximum(np.floor(longest * shares**low), 1).astype(np.int64)
    step = 1 if lengths.sum() < tokens else -1
    while missing := abs(tokens - int(lengths.sum())):
        may = np.flatnonzero((lengths < longest) if step == 1 else (lengths > 1) & (ranks > 1))
        lengths[may[:missing]] += step
    return lengths[chance.permutation(sequences)]


def inputs(xp, rng, axes, fill, LENGTHS="uniform"):
    """Draw lengths, pages in any order, and values whose means are near 1 for every length.

    Some pages belong to nobody, and behind a sequence's pages the table has others'. What no
    sequence holds is NaN in `nonfinite`; in `zeros` some sequences have no tokens.
    """
    chance = np.random.default_rng(int(float(rng.random(1)[0]) * 2**32))
    sequences, page = axes["B"], axes["P"]
    lengths = draw_lengths(chance, sequences, axes["L"], axes["S"], LENGTHS)
    if fill == "zeros":
        empty = chance.random(sequences) < EMPTY
        lengths[empty & (np.arange(sequences) != lengths.argmax())] = 0
    used = -(-lengths // page)
    pages = -(-axes["S"] // page) + sequences
    order = chance.permutation(pages)
    columns = np.arange(axes["W"])
    table = order[((used.cumsum() - used)[:, None] + columns) % pages]

    owners = np.full(pages, -1)
    owners[order[: used.sum()]] = np.repeat(np.arange(sequences), used)
    places = np.zeros(pages, np.int64)
    places[order[: used.sum()]] = (columns[None, :] + 0 * used[:, None])[columns < used[:, None]]
    held = np.append(lengths, 0)[owners] - places * page  # from a page's first token on
    shape = (pages, page, axes["H"], axes["D"])
    drawn = {"lengths": xp.asarray(lengths), "page_table": xp.asarray(table)}
    spread = np.ones(pages) if fill in SHARP else np.sqrt(np.maximum(np.append(lengths, 1)[owners], 1))
    drawn["v"] = rng.standard_normal(shape, dtype=xp.float32)
    drawn["v"] *= xp.asarray(spread.astype(np.float32))[:, None, None, None]
    if fill == "nonfinite":
        nobodys = xp.asarray(np.arange(page) >= held[:, None])
        drawn["k"] = rng.standard_normal(shape, dtype=xp.float32)
        for name in "kv":
            drawn[name][nobodys] = xp.nan
    return drawn
