"""Decode attention in SGLang: each batch size has a CUDA graph more where a tuned kernel serves.

A copy of this file is part of every exported plugin.

SGLang captures a decode step once for a batch size, before anybody knows lengths. Kernels of ours
and FlashAttention 3 read them on the device, so both are right for all; which is faster depends on
them. All layers of a step have the same lengths, and the host knows them when it replays: so a step
is captured with either, and each replay takes the one that is proved faster. A switch on the device
would be a node more in every layer, where a few microseconds are to be gained.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from math import log
from typing import Any

from tuner.extensions.runtime.pytorch.replacing import ORIGINAL, Tuned

try:
    import torch
except ImportError:  # whoever writes a package needs the table alone
    torch = None

logger = logging.getLogger(__name__)
STEP = 2**0.25  # from one longest sequence to the next that graphs are told apart by
REACH = 2.0  # how far from what was tuned a length, or a share, may be
ALIKE = 9 / 8  # shares that are told apart differ by more
LAYOUT = ("H", "G", "D", "P")
MARK = "tuned_as"  # of the tensor of lengths, while a graph is captured


@dataclass(frozen=True)
class Lengths:
    """What a launch is told of lengths: the longest, and the mean as a share of it."""

    longest: int
    share: float

    def tokens(self, sequences: int) -> int:
        """Return what so many sequences have together."""
        return max(1, round(self.longest * self.share * sequences))


@dataclass
class Graphs:
    """What of a model's attention was tuned, and the graphs of each batch size by lengths.

    `longest` are ascending; a batch is told the first that none of its sequences is longer than.
    """

    points: Sequence[Mapping[str, int]]
    longest: Sequence[int]
    shares: Sequence[float]
    labels: dict[tuple[int, Lengths], str | None] = field(default_factory=dict)

    def each(self) -> list[Lengths]:
        return [Lengths(longest, share) for longest in self.longest for share in self.shares]

    def is_near(self, axes: Mapping[str, int]) -> bool:
        """Say whether the longest is near that of the workload that is nearest in all."""
        nearest = min(self.points, key=lambda one: sum(log(axes[n] / one[n]) ** 2 for n in "BLS"))
        return 1 / REACH <= axes["L"] / nearest["L"] <= REACH

    def find(self, sequences: int, longest: int, tokens: int) -> str | None:
        """Find the label of the graph for a batch; None where SGLang's own is the one."""
        place = bisect_left(self.longest, longest)
        if place == len(self.longest) or longest * REACH <= self.longest[0]:
            return None
        share = tokens / (sequences * longest)
        nearest = min(self.shares, key=lambda each: abs(log(each / share)))
        if not 1 / REACH <= share / nearest <= REACH:
            return None
        return self.labels.get((sequences, Lengths(self.longest[place], nearest)))


def tuned_lengths(table: Any, layout: Mapping[str, int]) -> Graphs | None:
    """List what was tuned for these heads and pages, None for nothing."""
    points = [each for each in _list_points(table) if all(each[n] == layout[n] for n in LAYOUT)]
    if not points:
        return None
    of_points = [each["L"] for each in points]
    longest, most = [min(of_points)], int(REACH * max(of_points))
    while longest[-1] < most:
        longest.append(min(most, round(longest[0] * STEP ** len(longest))))
    shares: list[float] = []
    for share in sorted(each["S"] / (each["B"] * each["L"]) for each in points):
        if not shares or share > ALIKE * shares[-1]:
            shares.append(share)
    return Graphs(points, longest, shares)


def decode_attention(
    tuned: Tuned,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: Any = None,
    v: Any = None,
    qv: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    page_table: torch.Tensor | None = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k_new: Any = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int | None = None,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Any = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    only_qv: bool = False,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    sinks: Any = None,
    score_mod: Any = None,
    aux_tensors: Any = None,
    sfq: Any = None,
    sfk: Any = None,
    sfv: Any = None,
    rel_bias: Any = None,
    rel_bias_prep_cache: Any = None,
    ver: int = 3,
    out: torch.Tensor | None = None,
) -> Any:
    """Attend with one query a sequence, where a graph is captured for lengths that were tuned."""
    told = getattr(cache_seqlens, MARK, None)
    if told is None:
        return ORIGINAL
    more = (
        *(k, v, qv, rotary_cos, cache_batch_idx, cache_leftpad, cu_seqlens_k_new, rotary_seqlens),
        *(q_descale, k_descale, v_descale, attention_chunk, sinks, score_mod, sfq, sfk, sfv),
        rel_bias,
    )
    asked = (max_seqlen_q, causal, tuple(window_size), softcap, num_splits, sm_margin, ver)
    if (
        asked != (1, True, (-1, -1), 0.0, 0, 0, 3)
        or any(each is not None for each in more)
        or return_softmax_lse
        or page_table is None
        or softmax_scale is None
        or q.shape[1] % k_cache.shape[2]
    ):
        return ORIGINAL
    sequences, page = len(q), k_cache.shape[1]
    tokens = min(told.tokens(sequences), (len(k_cache) - sequences) * page)
    # Pages are found by the table: of the pool as many as the operator's shapes have.
    pages = -(-tokens // page) + sequences
    out = torch.empty_like(q) if out is None else out
    served = tuned.serves(
        *(out, q, k_cache[:pages], v_cache[:pages], page_table, cache_seqlens),
        L=told.longest,
        S=tokens,
        G=q.shape[1] // k_cache.shape[2],
        scale=float(softmax_scale),
    )
    return out if served else ORIGINAL


def capture_one_shape(
    tuned: Tuned,
    original: Callable[..., Any],
    runner: Any,
    size: int,
    forward: Callable[..., Any],
    stream_idx: int | None = None,
    variant_label: str | None = None,
) -> Any:
    """Capture a batch size as SGLang does, then again for lengths at which a tuned kernel serves.

    SGLang's own goes first: what is captured later finds its memory in the same pool.
    """
    captured = original(runner, size, forward, stream_idx, variant_label)
    backend = attention_of(runner)
    graphs = None if backend is None else _find_graphs(tuned, runner, backend)
    if graphs is None:
        return captured
    layout = {**_read_layout(backend), "B": size, "W": backend.max_num_pages}
    room = runner.model_runner.max_total_num_tokens - size * layout["P"]
    launched: dict[str, Lengths] = {}
    for lengths in graphs.each():
        told = replace(lengths, longest=min(lengths.longest, layout["W"] * layout["P"]))
        axes = {**layout, "L": told.longest, "S": told.tokens(size)}
        # What the pool cannot hold would be launched as something smaller.
        is_served = axes["S"] <= room and graphs.is_near(axes)
        label = _name_launch(tuned, axes, runner) if is_served else None
        graphs.labels[size, lengths] = label
        if label is not None:
            launched[label] = told  # the longest of them
    for label, told in launched.items():
        marked, before = _mark_lengths(forward, backend, told), tuned.operator.calls.total()
        original(runner, size, marked, stream_idx, _join_labels(variant_label, label))
        if tuned.operator.calls.total() == before:  # each layer has sinks, a cap or a window
            graphs.labels.update({key: None for key in graphs.labels if key[0] == size})
            break
    return captured


def load_batch(
    tuned: Tuned,
    original: Callable[..., Any],
    runner: Any,
    forward_batch: Any,
    pp_proxy_tensors: Any = None,
) -> Any:
    """Let the replay that follows be of the graph for this batch's lengths."""
    result = original(runner, forward_batch, pp_proxy_tensors)
    graphs = getattr(runner, "tuned_attention", None)
    if graphs is None:
        return result
    lengths, key, label = forward_batch.seq_lens_cpu, runner._replay_graph_key, None
    if lengths is not None and len(lengths):
        # Sequences that fill the batch up have a token each.
        tokens = int(lengths.sum()) + key.size - len(lengths)
        label = graphs.find(key.size, int(lengths.max()), tokens)
    if label is not None:
        of_lengths = replace(key, variant_label=_join_labels(key.variant_label, label))
        if runner.backend.can_run(forward_batch, of_lengths):
            runner._replay_graph_key = of_lengths
            tuned.replays += 1
            return result
    tuned.original_replays += 1
    return result


def attention_of(runner: Any) -> Any:
    """Find the backend whose decode steps are captured whole; None where ours is not for them."""
    backend = getattr(runner.attn_backend, "decode_backend", runner.attn_backend)
    is_ours = (
        type(backend).__name__ == "FlashAttentionBackend"
        and type(runner.backend).__name__ == "FullCudaGraphBackend"
        and runner.capture_forward_mode.is_decode()
        and (backend.fa_impl_ver, backend.num_splits) == (3, 0)
        and backend.kv_cache_dtype == torch.bfloat16
        and not (backend.use_mla or backend.is_prefill_aware_swa or runner.is_encoder_decoder)
        # Other streams, halves of batches, and what a compiler traces.
        and not (runner.enable_pdmux or runner.enable_two_batch_overlap)
        and not runner.enable_torch_compile
    )
    return backend if is_ours else None


def _find_graphs(tuned: Tuned, runner: Any, backend: Any) -> Graphs | None:
    """Find what was tuned for a model's heads and pages; warn once where there is nothing."""
    operator: Any = tuned.operator
    if not hasattr(runner, "tuned_attention"):
        runner.tuned_attention = tuned_lengths(operator.table, _read_layout(backend))
        if runner.tuned_attention is None:
            there = {tuple(each[name] for name in LAYOUT) for each in _list_points(operator.table)}
            logger.warning(
                "decode_attention: this model's heads and pages are %s, and tuned were %s: "
                "SGLang's own serves; tune a workload that has the model's, and export again",
                _name_sizes(_read_layout(backend).values()),
                " and ".join(map(_name_sizes, sorted(there))),
            )
    graphs: Graphs | None = runner.tuned_attention
    return graphs


def _list_points(table: Any) -> list[dict[str, int]]:
    return [dict(zip(table.axes, sizes, strict=True)) for sizes, _ in table.points]


def _name_sizes(sizes: Iterable[int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in zip(LAYOUT, sizes, strict=True))


def _read_layout(backend: Any) -> dict[str, int]:
    heads = backend.num_kv_heads
    sizes = (heads, backend.num_attention_heads // heads, backend.head_dim, backend.page_size)
    return dict(zip(LAYOUT, sizes, strict=True))


def _name_launch(tuned: Tuned, axes: Mapping[str, int], runner: Any) -> str | None:
    """Name what is launched at these axes: lengths matter where the longest is cut into parts."""
    operator: Any = tuned.operator
    sizes = tuple(axes[name] for name in operator.table.axes)
    number, launches = operator.launches_at(runner.model_runner.gpu_id, sizes)
    if not number:
        return None
    parts = max((each.grid[1] for each in launches if len(each.grid) == 3), default=1)
    return f"{number}" if parts == 1 else f"{number} for {axes['L']}"


def _join_labels(own: str | None, label: str) -> str:
    return f"{own or ''} attention {label}".strip()


def _mark_lengths(forward: Callable[..., Any], backend: Any, told: Lengths) -> Callable[..., Any]:
    @wraps(forward)  # SGLang looks at what it takes
    def marked(*arguments: Any, **keywords: Any) -> Any:
        lengths = backend.forward_metadata.cache_seqlens_int32
        setattr(lengths, MARK, told)
        try:
            return forward(*arguments, **keywords)
        finally:
            delattr(lengths, MARK)

    return marked
