"""Decode steps of SGLang's own runner, buffers and attention backend, with stand-ins for the GPU.

A kernel is PyTorch on the CPU, and a CUDA graph the list of the launches that were captured.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

HEADS, QUERIES, WIDTH, LAYERS = 8, 4, 128, 2
CONTEXT, SEQUENCES = 2944, 4
POOL = (SEQUENCES + 1) * CONTEXT
SCALE = WIDTH**-0.5
H200 = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    shared_memory_per_block_optin=232448,
)
CAPTURED: list[list[Callable[[], None]]] = []
RAN: list[str] = []


class Graph:
    """Launches in their order."""

    def __init__(self) -> None:
        self.launches: list[Callable[[], None]] = []

    def replay(self) -> None:
        for launch in self.launches:
            launch()


@contextmanager
def capturing(cuda_graph: Graph, **_: Any) -> Iterator[None]:
    CAPTURED.append(cuda_graph.launches)
    yield
    CAPTURED.pop()


def launch(who: str, out: Any, q: Any, k: Any, v: Any, table: Any, lengths: Any) -> None:
    """Attend with the lengths and pages of when it runs, not of when it was launched."""

    def run() -> None:
        RAN.append(who)
        page = k.shape[1]
        for row, length in enumerate(lengths.tolist()):
            places = torch.arange(length)
            pages = table[row, places // page].long()
            keys, values = (one_of(each, pages, places % page) for each in (k, v))
            scores = torch.einsum("hgd,lhd->hgl", q[row].float().view(HEADS, -1, WIDTH), keys)
            mean = torch.einsum("hgl,lhd->hgd", (scores * SCALE).softmax(-1), values)
            out[row] = mean.reshape(-1, WIDTH).to(out.dtype)

    CAPTURED[-1].append(run) if CAPTURED else run()


def one_of(cache: Any, pages: Any, places: Any) -> Any:
    # An operator is given a part of the pool and finds all of it: pages are behind an address.
    whole = cache.as_strided((POOL // cache.shape[1], *cache.shape[1:]), cache.stride())
    return whole[pages, places].float()


def production(q: Any, k_cache: Any, v_cache: Any, **given: Any) -> Any:
    out = torch.empty_like(q)
    launch("production", out, q, k_cache, v_cache, given["page_table"], given["cache_seqlens"])
    return out


def serve(operator: Any) -> Callable[..., bool]:
    """Stand in for a package's launches: what its own table chooses, and shapes as it has them."""
    table = operator.table

    def attempt(*tensors: Any, scale: float, **given: int) -> bool:
        shapes = tuple(tuple(each.shape) for each in tensors)
        axes = table.read_axes(*shapes, *(given[name] for name in table.given))
        assert table.shapes(*axes) == shapes
        assert scale == SCALE
        number, launches = operator.launches_at(0, axes)
        if not launches:
            return False
        operator.calls[number] += 1
        launch(f"tuned for {given['L']}", *tensors)
        return True

    return attempt


def attention_backend(page: int) -> Any:
    """Make SGLang's own backend of FlashAttention 3 for two layers of Llama-3-8B's heads."""
    module: Any = importlib.import_module("sglang.srt.layers.attention.flashattention_backend")
    caches = torch.randn(2, LAYERS, POOL, HEADS, WIDTH, dtype=torch.bfloat16).unbind()
    pool = SimpleNamespace(
        get_kv_buffer=lambda layer: tuple(each[layer] for each in caches),
        set_kv_buffer=lambda *_: None,
    )
    config = SimpleNamespace(
        context_len=CONTEXT,
        is_encoder_decoder=False,
        attention_arch=None,
        is_local_attention_model=False,
        head_dim=WIDTH,
        hf_text_config=SimpleNamespace(num_attention_heads=HEADS * QUERIES),
        get_num_kv_heads=lambda _: HEADS,
    )
    asked = dict.fromkeys(
        (
            *("speculative_eagle_topk", "enable_deterministic_inference", "is_embedding"),
            *("chunked_prefill_size", "disable_radix_cache"),
            *("enable_prefill_cp", "enable_dp_attention"),
        )
    )
    pages = torch.randperm(POOL // page)[: SEQUENCES * CONTEXT // page].view(SEQUENCES, -1)
    requests = pages.repeat_interleave(page, 1) * page + torch.arange(CONTEXT) % page
    runner = SimpleNamespace(
        sliding_window_size=None,
        model_config=config,
        device="cpu",
        req_to_token_pool=SimpleNamespace(req_to_token=requests.int(), size=SEQUENCES),
        token_to_kv_pool=pool,
        token_to_kv_pool_allocator=None,
        kv_cache_dtype=torch.bfloat16,
        kv_cache_dtype_str="auto",
        page_size=page,
        ps=SimpleNamespace(attn_cp_size=1, tp_size=1),
        is_draft_worker=False,
        server_args=SimpleNamespace(**asked),
        attention_chunk_size=None,
    )
    names = "flash_attn_varlen_func", "flash_attn_with_kvcache", "get_scheduler_metadata"
    library: Any = SimpleNamespace(**dict.fromkeys(names))  # without a schedule to compute
    sys.modules["sgl_kernel.flash_attn"] = library
    spec = SimpleNamespace(speculative_num_draft_tokens=None)
    module.get_spec = lambda: spec
    backend = module.FlashAttentionBackend(runner)

    def set_metadata(
        lengths: Any, _: Any, table: Any, tokens: Any, rows: Any, *more: Any, **__: Any
    ) -> None:
        lengths.copy_(more[2] + more[3])
        for row, length in enumerate(lengths.tolist()):
            found = tokens[rows[row], :length:page] // page
            table[row, : len(found)] = found

    module.normal_decode_set_metadata = set_metadata
    return backend


def decode_runner(backend: Any, sizes: tuple[int, ...]) -> Any:
    """Make SGLang's own runner of decode graphs, without a model, and its buffers."""
    runner_module = importlib.import_module("sglang.srt.model_executor.runner")
    name = f"{runner_module.__name__}.decode_cuda_graph_runner"
    module: Any = importlib.import_module(name)
    graphs: Any = importlib.import_module(
        "sglang.srt.model_executor.runner_backend.full_cuda_graph_backend"
    )
    algorithm = importlib.import_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm
    modes: Any = importlib.import_module("sglang.srt.model_executor.forward_batch_info")
    module.enable_num_token_non_padded = lambda: False  # experts are not spread over GPUs
    nothing = SimpleNamespace(
        capture_one_batch_size=lambda *_, **__: None, capture=lambda **_: None, replay=lambda: None
    )
    runner = object.__new__(module.DecodeCudaGraphRunner)
    off = (
        *("enable_pdmux", "enable_two_batch_overlap", "enable_torch_compile", "is_encoder_decoder"),
        *("ragged_verify_mode", "require_mlp_tp_gather", "require_attn_tp_gather", "is_dllm"),
        *("require_gathered_buffer", "enable_prefill_cp", "record_nolora_graph"),
    )
    asked = dict.fromkeys(("enable_lora", "debug_cuda_graph", "disable_flashinfer_autotune"), False)
    runner.__dict__ |= {
        **dict.fromkeys(off, False),
        "attn_backend": backend,
        "capture_bs": list(sizes),
        "capture_forward_mode": modes.ForwardMode.DECODE,
        "capture_hidden_mode": modes.CaptureHiddenMode.NULL,
        "captured_req_width": 1,
        "pp_size": 1,
        "dp_size": 1,
        "seq_len_fill_value": backend.get_cuda_graph_seq_len_fill_value(),
        "deepep_adapter": nothing,
        "tbo_plugin": nothing,
        "device_module": SimpleNamespace(synchronize=lambda: None, graph=capturing),
        "model_runner": SimpleNamespace(
            server_args=SimpleNamespace(**asked),
            spec_algorithm=algorithm.from_string(None),
            is_draft_worker=False,
            attn_backend=backend,
            capture_tail_hooks=(),
            canary_manager=None,
            hisparse_coordinator=None,
            device="cpu",
            gpu_id=0,
            max_total_num_tokens=POOL - CONTEXT,
            tp_group=SimpleNamespace(barrier=lambda: None),
        ),
    }
    most = max(sizes)
    backend.init_cuda_graph_state(most, most)
    sized: dict[str, Any] = {
        "device": torch.device("cpu"),
        "max_bs": most,
        "max_num_token": most,
        "seq_len_fill_value": runner.seq_len_fill_value,
        "cache_loc_dtype": torch.int64,
    }
    runner.buffers = module.DecodeInputBuffers.create(
        **sized,
        hidden_size=8,
        next_token_logits_buffer=torch.zeros(most, 8),
        dtype=torch.bfloat16,
        dp_size=1,
        pp_size=1,
        is_encoder_decoder=False,
        require_mlp_tp_gather=False,
        encoder_len_fill_value=0,
        num_tokens_per_req=1,
        enable_mamba_track=False,
    )
    runner.buffer_registry = module.build_decode_registry(**sized, source=runner.buffers)
    runner.backend = graphs.FullCudaGraphBackend(runner)
    return runner


def layer_of(number: int) -> Any:
    return SimpleNamespace(
        layer_id=number,
        is_cross_attention=False,
        attn_type=None,
        sliding_window_size=None,
        k_scale=None,
        tp_q_head_num=HEADS * QUERIES,
        tp_k_head_num=HEADS,
        tp_v_head_num=HEADS,
        head_dim=WIDTH,
        v_head_dim=WIDTH,
        scaling=SCALE,
        logit_cap=0.0,
    )


def batch_of(lengths: list[int], modes: Any) -> Any:
    """Make a decode batch as SGLang's scheduler does, of the last sequences of all."""
    count = len(lengths)
    sizes = torch.tensor(lengths)
    return modes.ForwardBatch(
        forward_mode=modes.ForwardMode.DECODE,
        batch_size=count,
        input_ids=torch.zeros(count, dtype=torch.int64),
        req_pool_indices=torch.arange(SEQUENCES - count, SEQUENCES),
        seq_lens=sizes,
        seq_lens_cpu=sizes.clone(),
        seq_lens_sum=sum(lengths),
        out_cache_loc=torch.zeros(count, dtype=torch.int64),
        positions=sizes - 1,
        capture_hidden_mode=modes.CaptureHiddenMode.NULL,
    )


def tune_two_classes(operator: Any) -> None:
    """Split one sequence of 1,024 in four, have four whole, leave longer ones to SGLang."""
    table = operator.table
    whole = table.variants[0]

    def split(*axes: Any) -> Any:
        (launched,) = whole.launches(*axes)
        return (replace(launched, grid=(HEADS, 4, axes[0])),)

    rest = (HEADS, QUERIES, WIDTH, 1, 8196)
    points = (
        ((1, 1024, 1024, *rest), 2),
        ((4, 1024, 4096, *rest), 1),
        ((4, 2048, 8192, *rest), 0),
    )
    variants = (whole, replace(whole, number=2, launches=split))
    operator.table = replace(table, variants=variants, points=points)
    operator.attempt = serve(operator)


# One sequence; up to four, which fill a batch of four up; longer ones; and one long among short.
BATCHES = (
    *([700], [1024], [1025], [1500], [2900], [512], [300]),
    *([900, 800, 1000], [1000, 1000, 1000, 1000], [1400, 1300, 1448, 1100], [1400, 700, 600]),
    *([1500, 1449, 1300, 1400], [2000, 1900, 1800, 1700], [1000, 10, 10, 10], [500, 500, 500]),
)


def steps(plugin: str, page: int) -> dict[str, Any]:
    """Capture two sizes of batches, replay a step of each of BATCHES: who ran, how far off."""
    cuda: Any = torch.cuda
    cuda.CUDAGraph, cuda.get_device_properties = Graph, lambda _: H200
    attention: Any = importlib.import_module("sglang.kernels.ops.attention.flash_attention")
    attention.fa3_flash_attn_with_kvcache = production
    package: Any = importlib.import_module(plugin)
    tune_two_classes(package.OPERATORS["decode_attention"])
    modes: Any = importlib.import_module("sglang.srt.model_executor.forward_batch_info")
    backend = attention_backend(page)
    runner = decode_runner(backend, (1, SEQUENCES))
    queries = torch.randn(LAYERS, SEQUENCES, HEADS * QUERIES * WIDTH, dtype=torch.bfloat16)
    layers = [layer_of(number) for number in range(LAYERS)]

    def forward(input_ids: Any, positions: Any, forward_batch: Any) -> Any:
        return [
            backend.forward_decode(queries[i, : len(input_ids)], None, None, layer, forward_batch)
            for i, layer in enumerate(layers)
        ]

    for size in (SEQUENCES, 1):
        runner.capture_one_shape(size, forward)
    found = []
    for lengths in BATCHES:
        RAN.clear()
        batch = batch_of(lengths, modes)
        runner.load_batch(batch)
        outs = runner.backend.replay(runner._replay_graph_key, batch)
        ran, wanted = sorted(set(RAN)), []
        for number in range(LAYERS):
            caches = backend.token_to_kv_pool.get_kv_buffer(number)
            caches = [each.view(-1, page, HEADS, WIDTH) for each in caches]
            rows = backend.req_to_token[batch.req_pool_indices, ::page] // page
            q = queries[number, : len(lengths)].view(len(lengths), -1, WIDTH)
            out = torch.empty_like(q)
            launch("", out, q, *caches, rows, batch.seq_lens)
            wanted.append(out.flatten(1))
        far = max(float((a[: len(b)] - b).abs().max()) for a, b in zip(outs, wanted, strict=True))
        found.append({"lengths": lengths, "ran": ran, "error": far})
    labels = sorted(str(key.variant_label) for key in runner.backend._graphs if key.size == 1)
    ours: Any = importlib.import_module(f"{plugin}.sglang")
    return {"steps": found, "graphs_of_one": labels, "calls": ours.calls()["decode_attention"]}
