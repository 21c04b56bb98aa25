"""decode_attention: its float64 reference, batches of several lengths, and its peers."""

from functools import cache

import numpy as np

SCALE = 0.08838834764831845  # of scores: 128 ** -0.5
K_SCALE = 1.0
V_SCALE = 1.0
EMPTY = 0.25  # share of the sequences without tokens, in `zeros`
SHARP = ("x3", "extreme")  # few tokens have nearly all of the weight


def reference(xp, inputs, axes, KV="bf16", LENGTHS="uniform"):
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
        scores = SCALE * K_SCALE * xp.matmul(q, keys.transpose(0, 2, 1))
        powers = xp.exp(scores - scores.max(axis=2, keepdims=True))
        mean = xp.matmul(powers / powers.sum(axis=2, keepdims=True), values)
        out[sequence] = V_SCALE * mean.reshape(-1, width)
    return {"out": out}


def spread_lengths(sequences, longest, tokens, LENGTHS):
    """Spread `tokens` over sequences of 1 to `longest`, always in the same way.

    Peers plan by it, for what they plan on the host cannot follow lengths that change.

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
    return lengths[np.random.default_rng(tokens).permutation(sequences)]


def inputs(xp, rng, axes, fill, LENGTHS="uniform"):
    """Draw pages in any order, and values whose means are near 1 for every length.

    Some pages belong to nobody, and behind a sequence's pages the table has others'. What no
    sequence holds is NaN in `nonfinite`; in `zeros` some sequences have no tokens.
    """
    chance = np.random.default_rng(int(float(rng.random(1)[0]) * 2**32))
    sequences, page = axes["B"], axes["P"]
    lengths = spread_lengths(sequences, axes["L"], axes["S"], LENGTHS)
    if fill == "zeros":
        shorter = np.delete(np.arange(sequences), lengths.argmax())
        empty = shorter[chance.random(len(shorter)) < EMPTY]
        lengths[empty if len(empty) else shorter[:1]] = 0
    used = -(-lengths // page)
    pages = -(-axes["S"] // page) + sequences
    order = chance.permutation(pages)
    columns = np.arange(axes["W"])
    table = order[((used.cumsum() - used)[:, None] + columns) % pages]

    taken = order[: used.sum()]
    owners = np.full(pages, -1)
    owners[taken] = np.repeat(np.arange(sequences), used)
    before = np.zeros(pages, np.int64)  # tokens of the pages before
    before[taken] = page * np.concatenate([np.arange(count) for count in used])
    held = np.append(lengths, 0)[owners] - before
    shape = (pages, page, axes["H"], axes["D"])
    drawn = {"lengths": xp.asarray(lengths), "page_table": xp.asarray(table)}
    drawn["v"] = rng.standard_normal(shape, dtype=xp.float32)
    if fill not in SHARP:
        # A mean of n values has a variance of about exp(variance of scores) / n.
        spread = np.sqrt(np.append(lengths, 1)[owners] * np.exp(-axes["D"] * SCALE**2))
        drawn["v"] *= xp.asarray(spread.astype(np.float32))[:, None, None, None]
    if fill == "nonfinite":
        nobodys = xp.asarray(np.arange(page) >= held[:, None])[:, :, None, None]
        drawn["k"] = rng.standard_normal(shape, dtype=xp.float32)
        for name in "kv":
            drawn[name] = xp.where(nobodys, xp.float32(xp.nan), drawn[name])
    return drawn


class Plans:
    """What engines make once a step of lengths and page table, for the attention of all layers.

    The neighbour `metadata` makes it in the graph of each chain, where it is no part of the cost;
    a peer that is captured or called without it makes its own, as part of its time.
    """

    def __init__(self):
        self._axes, self._made = {}, {}

    def make(self, name, tensors, axes, **operators):
        """Make one of `MAKERS` anew; what graphs were captured with is kept for a workload."""
        if axes != self._axes:
            self._axes, self._made = dict(axes), {}
        made = MAKERS[name](tensors, axes, **operators)
        self._made.setdefault((self._capture(), tensors["lengths"].data_ptr(), name), made)
        return made

    def of(self, name, tensors, axes, **operators):
        """Find what was made in this capture, of these lengths."""
        capture = self._capture()
        made = self._made.get((capture, tensors["lengths"].data_ptr(), name))
        found = capture and made is not None
        return made if found else self.make(name, tensors, axes, **operators)

    @staticmethod
    def _capture():
        """Number the capture of the current stream; 0 for none."""
        import torch
        from cuda.bindings import driver

        stream = torch.cuda.current_stream().cuda_stream
        _, status, number, *_ = driver.cuStreamGetCaptureInfo(stream)
        return int(number) if int(status) else 0


def fa3_schedule(tensors, axes, **operators):
    """Let FlashAttention 3 decide how sequences are split, as SGLang does once a step."""
    from sgl_kernel.flash_attn import get_scheduler_metadata

    return get_scheduler_metadata(
        batch_size=axes["B"],
        max_seqlen_q=1,
        max_seqlen_k=axes["L"],
        num_heads=axes["H"] * axes["G"],
        num_heads_k=axes["H"],
        headdim=axes["D"],
        cache_seqlens=tensors["lengths"],
        qkv_dtype=tensors["k"].dtype,
        cu_seqlens_q=first_rows(axes["B"]),
        page_size=axes["P"],
        causal=True,
        has_softcap=False,
        num_splits=0,
    )


def page_list(tensors, axes, LENGTHS="uniform", **others):
    """List the pages of all sequences, one behind the other."""
    return tensors["page_table"].view(-1)[pages_of(LENGTHS, **axes)[0]]


def long_page_list(tensors, axes, **operators):
    """List them in 64 bits, as SGLang's Triton backend has them."""
    return page_list(tensors, axes, **operators).long()


def triton_splits(tensors, axes, **operators):
    """Let SGLang's Triton backend decide how many parts each sequence has."""
    import torch
    from sglang.kernels.ops.attention.metadata import get_num_kv_splits_triton

    splits = torch.empty(axes["B"], dtype=torch.int32, device="cuda")
    heads, most = axes["H"], 1 << (axes["B"] - 1).bit_length()
    units = torch.cuda.get_device_properties("cuda").multi_processor_count
    counts = (axes["B"], 1, heads * axes["G"], heads, SPLITS, units)
    get_num_kv_splits_triton[(1,)](splits, tensors["lengths"], *counts, MAX_NUM_SEQ=max(256, most))
    return splits


SPLITS = 8  # of SGLang's Triton backend, at most
MAKERS = {
    "fa3": fa3_schedule,
    "pages": page_list,
    "long_pages": long_page_list,
    "splits": triton_splits,
}
PLANS = Plans()


def metadata(tensors, axes, **operators):
    """Make what peers that are installed need once a step."""
    for name in MAKERS:
        try:
            PLANS.make(name, tensors, axes, **operators)
        except ImportError:
            continue


@cache
def first_rows(sequences):
    import torch

    return torch.arange(sequences + 1, dtype=torch.int32, device="cuda")


@cache
def pages_of(LENGTHS, B, L, S, P, W, **others):
    """Find where in the table all pages are, and where each sequence's begin in a list of them."""
    import torch

    used = -(-spread_lengths(B, L, S, LENGTHS) // P)
    places = np.concatenate([row * W + np.arange(count) for row, count in enumerate(used)])
    begins = np.append(0, used.cumsum()).astype(np.int32)
    return torch.from_numpy(places).cuda(), torch.from_numpy(begins)


@cache
def scale_of_heads(sequences, heads, scale):
    import torch

    return torch.full((sequences, heads), scale, dtype=torch.float32, device="cuda")


def sgl_aot(tensors, axes, KV="bf16", **others):
    """FlashAttention 3, prebuilt by SGLang and called as it does: fp8 keys want fp8 queries."""
    from sgl_kernel.flash_attn import flash_attn_with_kvcache

    scales = {}
    if KV == "fp8":
        descale = [scale_of_heads(axes["B"], axes["H"], one) for one in (K_SCALE, V_SCALE)]
        scales = dict(zip(("k_descale", "v_descale"), descale, strict=True))
    flash_attn_with_kvcache(
        q=tensors["q"].to(tensors["k"].dtype),
        k_cache=tensors["k"],
        v_cache=tensors["v"],
        page_table=tensors["page_table"],
        cache_seqlens=tensors["lengths"],
        cu_seqlens_q=first_rows(axes["B"]),
        max_seqlen_q=1,
        softmax_scale=SCALE,
        causal=True,
        num_splits=0,
        out=tensors["out"],
        scheduler_metadata=PLANS.of("fa3", tensors, axes, KV=KV, **others),
        **scales,
    )


@cache
def flashinfer_workspace():
    """Make the memory that all plans use, of which one runs at a time."""
    import torch

    return torch.empty(512 << 20, dtype=torch.uint8, device="cuda")


@cache
def planned_wrapper(tensor_cores, KV="bf16", LENGTHS="uniform", **axes):
    import torch
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    _, begins = pages_of(LENGTHS, **axes)
    lengths = torch.from_numpy(spread_lengths(axes["B"], axes["L"], axes["S"], LENGTHS))
    last = ((lengths - 1) % axes["P"] + 1).int()
    pages = torch.zeros(int(begins[-1]), dtype=torch.int32, device="cuda")
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        flashinfer_workspace(),
        "NHD",
        use_cuda_graph=True,
        use_tensor_cores=tensor_cores,
        paged_kv_indptr_buffer=begins.cuda(),
        paged_kv_indices_buffer=pages,
        paged_kv_last_page_len_buffer=last.cuda(),
    )
    heads = axes["H"] * axes["G"], axes["H"], axes["D"], axes["P"]
    kept = torch.float8_e4m3fn if KV == "fp8" else torch.bfloat16
    types = {"q_data_type": torch.bfloat16, "kv_data_type": kept}
    wrapper.plan(begins, pages, last, *heads, **types, sm_scale=SCALE)
    return wrapper


def run_flashinfer(tensor_cores, tensors, axes, **operators):
    wrapper = planned_wrapper(tensor_cores, **operators, **axes)
    # Each call has pages of its own, which it takes from where `plan` would have copied them.
    wrapper._paged_kv_indices_buf = PLANS.of("pages", tensors, axes, **operators)
    caches, scales = (tensors["k"], tensors["v"]), {"k_scale": K_SCALE, "v_scale": V_SCALE}
    wrapper.run(tensors["q"], caches, out=tensors["out"], **scales)


def flashinfer(tensors, axes, **operators):
    """FlashInfer on tensor cores, planned before."""
    run_flashinfer(True, tensors, axes, **operators)


def flashinfer_cuda(tensors, axes, **operators):
    """FlashInfer on CUDA cores."""
    run_flashinfer(False, tensors, axes, **operators)


def triton(tensors, axes, LENGTHS="uniform", **others):
    """SGLang's Triton kernels."""
    import torch
    from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd

    if axes["P"] != 1:
        raise NotImplementedError("compared with pages of one token only")
    q = tensors["q"]
    logits = torch.empty(*q.shape[:2], SPLITS, axes["D"], dtype=torch.float32, device="cuda")
    sums = torch.empty(*q.shape[:2], SPLITS, dtype=torch.float32, device="cuda")
    decode_attention_fwd(
        q,
        tensors["k"].view(-1, axes["H"], axes["D"]),
        tensors["v"].view(-1, axes["H"], axes["D"]),
        tensors["out"],
        first_pages(LENGTHS, **axes),
        PLANS.of("long_pages", tensors, axes, LENGTHS=LENGTHS),
        logits,
        sums,
        PLANS.of("splits", tensors, axes),
        SPLITS,
        SCALE,
        K_SCALE,
        V_SCALE,
    )


@cache
def first_pages(LENGTHS, **axes):
    return pages_of(LENGTHS, **axes)[1].cuda()


@cache
def cudnn_workspace():
    import torch

    return torch.empty(128 << 20, dtype=torch.uint8, device="cuda")


def cudnn(tensors, axes, KV="bf16", **others):
    """cuDNN's attention over pages, through FlashInfer."""
    if KV == "fp8":
        raise NotImplementedError("bf16 only")
    from flashinfer.cudnn import cudnn_batch_decode_with_kv_cache

    cudnn_batch_decode_with_kv_cache(
        tensors["q"],
        tensors["k"].transpose(1, 2),
        tensors["v"].transpose(1, 2),
        SCALE,
        cudnn_workspace(),
        max_sequence_kv=axes["L"],
        actual_seq_lens_kv=tensors["lengths"].view(-1, 1, 1, 1),
        block_tables=tensors["page_table"],
        out=tensors["out"],
    )


@cache
def compiled(longest, page):
    """Compile the operator as one would write it in PyTorch."""
    import torch

    def attend(q, k, v, page_table, lengths):
        pages = page_table[:, : -(-longest // page)].long()
        keys, values = (
            one[pages].flatten(1, 2)[:, :longest].transpose(1, 2).to(q.dtype) for one in (k, v)
        )
        there = torch.arange(longest, device=q.device) < lengths[:, None]
        return torch.nn.functional.scaled_dot_product_attention(
            q[:, :, None], keys, values, there[:, None, None], scale=SCALE, enable_gqa=True
        )[:, :, 0]

    return torch.compile(attend, dynamic=False)


def torch_compile(tensors, axes, **operators):
    """What PyTorch's compiler makes of it."""
    names = ("q", "k", "v", "page_table", "lengths")
    return {"out": compiled(axes["L"], axes["P"])(*(tensors[name] for name in names))}


neighbours = {"metadata": metadata}
production = "sgl-aot"
peers = {
    "sgl-aot": sgl_aot,
    "flashinfer": flashinfer,
    "flashinfer-cuda": flashinfer_cuda,
    "triton": triton,
    "cudnn": cudnn,
    "torch.compile": torch_compile,
}
