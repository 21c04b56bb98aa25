"""Decode attention in SGLang: which graph a batch's lengths choose, and steps of SGLang's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_wheels import SGLANG
from installed_plugins import installed, loaded, written

torch = pytest.importorskip("torch")

from tuner.compiler.pool import NvrtcPool  # noqa: E402
from tuner.extensions.runtime.pytorch.replacing import Tuned  # noqa: E402
from tuner.extensions.runtime.sglang import attention  # noqa: E402
from tuner.extensions.runtime.sglang.attention import Graphs, Lengths, tuned_lengths  # noqa: E402

AXES = ("B", "L", "S", "H", "G", "D", "P", "W")
LLAMA = {"H": 8, "G": 4, "D": 128, "P": 1}


def table(*points: tuple[int, int, int]) -> Any:
    rest = (*LLAMA.values(), 8196)
    return SimpleNamespace(axes=AXES, points=tuple(((*point, *rest), 1) for point in points))


def test_lengths_are_told_apart_in_steps_up_to_twice_what_was_tuned() -> None:
    made = table((1, 1024, 1024), (16, 1057, 16912), (64, 2048, 68736))
    found = tuned_lengths(made, LLAMA)
    assert found is not None
    assert found.longest == [1024, 1218, 1448, 1722, 2048, 2435, 2896, 3444, 4096]
    assert found.shares == [68736 / (64 * 2048), 1.0]
    assert tuned_lengths(made, {**LLAMA, "P": 16}) is None


@pytest.mark.parametrize(
    ("longest", "tokens", "told"),
    [
        (1000, 4000, (1024, 1.0)),
        (1024, 2100, (1024, 1.0)),
        (1025, 4100, (1218, 1.0)),
        (1219, 4876, (1448, 1.0)),
        (2048, 8192, (2048, 1.0)),
        (513, 2052, (1024, 1.0)),
        (512, 2048, None),
        (2049, 8196, None),
        (1000, 1999, None),
    ],
)
def test_a_batch_is_told_the_next_step_where_it_is_like_what_was_tuned(
    longest: int, tokens: int, told: tuple[int, float] | None
) -> None:
    graphs = tuned_lengths(table((4, 1024, 4096)), LLAMA)
    assert graphs is not None
    graphs.labels = {(4, each): f"{each.longest}" for each in graphs.each()}
    assert graphs.find(4, longest, tokens) == (told and f"{told[0]}")
    assert graphs.find(8, longest, 2 * tokens) is None, "of a batch that has no graphs"


def test_where_sglangs_own_is_faster_there_is_no_other_graph() -> None:
    graphs = Graphs([], [1024], [1.0], {(4, Lengths(1024, 1.0)): None})
    assert graphs.find(4, 1024, 4096) is None


def test_how_near_lengths_are_is_asked_of_the_workload_that_is_nearest() -> None:
    graphs = tuned_lengths(table((1, 1024, 1024), (64, 4096, 262144)), LLAMA)
    assert graphs is not None
    told = {"L": 4096, **LLAMA}
    assert graphs.is_near({**told, "B": 64, "S": 64 * 4096})
    assert not graphs.is_near({**told, "B": 1, "S": 4096})
    assert graphs.is_near({**told, "L": 2048, "B": 1, "S": 2048})


class FlashAttentionBackend(SimpleNamespace):
    """As SGLang calls it."""


class FullCudaGraphBackend(SimpleNamespace):
    """As SGLang calls it."""


def runner(attn_backend: Any, **other: Any) -> Any:
    off = dict.fromkeys(("enable_pdmux", "enable_two_batch_overlap", "enable_torch_compile"), False)
    mode = SimpleNamespace(is_decode=lambda: True)
    usual = {"capture_forward_mode": mode, "is_encoder_decoder": False, **off}
    graphs = FullCudaGraphBackend()
    return SimpleNamespace(**{"attn_backend": attn_backend, "backend": graphs, **usual, **other})


def backend(**other: Any) -> Any:
    usual = {"fa_impl_ver": 3, "num_splits": 0, "kv_cache_dtype": torch.bfloat16, "use_mla": False}
    return FlashAttentionBackend(**{**usual, "is_prefill_aware_swa": False, **other})


def test_decode_by_flash_attention_is_ours_alone_or_beside_another_prefill() -> None:
    own = backend()
    assert attention.attention_of(runner(own)) is own
    assert attention.attention_of(runner(SimpleNamespace(decode_backend=own))) is own


LONGEST = (1024, 1218, 1448, 1722, 2048)  # that one sequence is told
OTHERS: dict[str, Callable[[], Any]] = {
    "another backend": lambda: runner(SimpleNamespace(**vars(backend()))),
    "FlashAttention 4": lambda: runner(backend(fa_impl_ver=4)),
    "one split, for the same bits": lambda: runner(backend(num_splits=1)),
    "keys in fp8": lambda: runner(backend(kv_cache_dtype=torch.float8_e4m3fn)),
    "latents": lambda: runner(backend(use_mla=True)),
    "windows by prefill": lambda: runner(backend(is_prefill_aware_swa=True)),
    "drafts": lambda: runner(
        backend(), capture_forward_mode=SimpleNamespace(is_decode=lambda: False)
    ),
    "graphs in pieces": lambda: runner(backend(), backend=SimpleNamespace()),
    "what is compiled": lambda: runner(backend(), enable_torch_compile=True),
    "halves of batches": lambda: runner(backend(), enable_two_batch_overlap=True),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_nothing_else_is_captured_twice(other: Callable[[], Any]) -> None:
    captured: list[Any] = []
    given = other(), 4, None
    operator: Any = SimpleNamespace(table=table((4, 1024, 4096)))
    attention.capture_one_shape(Tuned(operator, {}), lambda *one: captured.append(one), *given)
    assert captured == [(*given, None, None)]


class Captures:
    """A runner whose attention counts as served where `serves`, and what it captured."""

    def __init__(self, *, pool: int = 1 << 20, serves: bool = True) -> None:
        sizes = {"num_kv_heads": 8, "num_attention_heads": 32, "head_dim": 128, "page_size": 1}
        self._metadata = SimpleNamespace(cache_seqlens_int32=torch.ones(4, dtype=torch.int32))
        own = backend(**sizes, max_num_pages=8192, forward_metadata=self._metadata)
        model = SimpleNamespace(gpu_id=0, max_total_num_tokens=pool)
        self.runner, self.serves = runner(own, model_runner=model), serves
        self.told: dict[str | None, Lengths | None] = {}
        operator: Any = SimpleNamespace(
            table=table((4, 1024, 4096)), launches_at=self._launches_at, calls=Counter()
        )
        self.tuned = Tuned(operator, {})
        attention.capture_one_shape(
            self.tuned, self._capture, self.runner, 4, self.forward, None, None
        )

    def forward(self) -> Any:
        mark = getattr(self._metadata.cache_seqlens_int32, attention.MARK, None)
        if mark is not None and self.serves:
            self.tuned.operator.calls[3] += 1
        return mark

    def _capture(self, _: Any, size: int, forward: Any, stream: None, label: str | None) -> None:
        self.told[label] = forward()

    def _launches_at(self, gpu: int, axes: tuple[int, ...]) -> tuple[int, list[Any]]:
        of = dict(zip(AXES, axes, strict=True))
        parts = 4 if of["L"] > 1024 else 1
        return (0, []) if of["L"] > 1300 else (3, [SimpleNamespace(grid=(8, parts, of["B"]))])


def test_what_the_pool_cannot_hold_has_no_graph() -> None:
    assert [*Captures(pool=4 * 1024 + 4).told] == [None, "attention 3"]
    assert [*Captures(pool=4 * 1024 + 3).told] == [None]


def test_a_model_that_no_layer_of_is_served_is_captured_once_more_alone() -> None:
    refused = Captures(serves=False)
    assert [*refused.told] == [None, "attention 3"]
    assert set(refused.runner.tuned_attention.labels.values()) == {None}


def test_a_size_is_captured_once_more_for_what_lengths_launch_and_replays_choose() -> None:
    captures = Captures()
    held, tuned, told = captures.runner, captures.tuned, captures.told
    first, second = "attention 3", "attention 3 for 1218"
    assert told == {None: None, first: Lengths(1024, 1.0), second: Lengths(1218, 1.0)}
    assert captures.forward() is None

    held.backend.can_run = lambda _, key: key.variant_label != second
    chosen = []
    for lengths in ([900, 1000, 800], [1100] * 4, [1400] * 4, [], None):
        held._replay_graph_key = Key(4)
        sizes_on_host = None if lengths is None else torch.tensor(lengths)
        batch = SimpleNamespace(seq_lens_cpu=sizes_on_host)
        attention.load_batch(tuned, lambda *_: None, held, batch)
        chosen.append(held._replay_graph_key.variant_label)
    assert chosen == [first, None, None, None, None]
    assert (tuned.replays, tuned.original_replays) == (1, 4)


@dataclass(frozen=True)
class Key:
    """As SGLang names a graph."""

    size: int
    variant_label: str | None = None


@pytest.fixture
def path(tmp_path: Path, compiler: NvrtcPool) -> tuple[Path, ...]:
    """Install a plugin beside SGLang."""
    folder = written("sglang", tmp_path, compiler, "decode_attention")
    return installed(folder), SGLANG.packages(), SGLANG.wheel()


@pytest.mark.slow
def test_each_step_of_sglang_is_right_and_by_who_is_faster_at_its_lengths(
    path: tuple[Path, ...],
) -> None:
    found, log = loaded("sglang", *path, part="--steps=1")
    by_lengths = {tuple(each["lengths"]): each["ran"] for each in found["steps"]}
    assert by_lengths == {
        (700,): ["tuned for 1024"],
        (1024,): ["tuned for 1024"],
        (1025,): ["tuned for 1218"],
        (1500,): ["tuned for 1722"],
        (2900,): ["production"],
        (512,): ["production"],
        (300,): ["production"],
        (900, 800, 1000): ["tuned for 1448"],
        (1000, 1000, 1000, 1000): ["tuned for 1448"],
        (1400, 1300, 1448, 1100): ["tuned for 1448"],
        (1400, 700, 600): ["production"],
        (1500, 1449, 1300, 1400): ["production"],
        (2000, 1900, 1800, 1700): ["production"],
        (1000, 10, 10, 10): ["production"],
        (500, 500, 500): ["production"],
    }
    assert max(each["error"] for each in found["steps"]) == 0.0
    # Two layers; a graph is captured after two warm-ups; one for four sequences.
    layers = 2 * 3
    assert found["calls"] == {
        "tuned": (len(LONGEST) + 1) * layers,
        "original": 2 * layers,
        "replays": 7,
        "original_replays": 8,
    }
    assert found["graphs_of_one"] == [
        "None",
        *(f"attention 2 for {longest}" for longest in LONGEST),
    ]
    assert "is replaced: " not in log


@pytest.mark.slow
def test_other_pages_are_sglangs_and_said_once(path: tuple[Path, ...]) -> None:
    found, log = loaded("sglang", *path, part="--steps=16")
    assert {tuple(each["ran"]) for each in found["steps"]} == {("production",)}
    assert max(each["error"] for each in found["steps"]) == 0.0
    assert found["calls"] == {"tuned": 0, "original": 12}
    said = [line for line in log.splitlines() if line.startswith("decode_attention: this model's")]
    (warning,) = said
    assert "are H=8, G=4, D=128, P=16, and tuned were H=8, G=4, D=128, P=1: SGLang's own" in warning
    assert "tune a workload that has the model's" in warning


@pytest.mark.slow
def test_switched_off_steps_are_sglangs(path: tuple[Path, ...]) -> None:
    found, _ = loaded("sglang", *path, part="--steps=1", TUNED_SGLANG="0")
    assert {tuple(each["ran"]) for each in found["steps"]} == {("production",)}
    assert (found["hooked"], found["graphs_of_one"]) == ([], ["None"])
