"""`tune fleet --invariant`: from config.json files to one table of an engine's products."""

from __future__ import annotations

import json
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from model_configs import write_config
from product_sessions import TIMES, write_product_session

from tuner.cli import devices_command
from tuner.cli.devices_command import Gpu
from tuner.extensions.engines import fleet
from tuner.extensions.engines.configs.needed import linear_layers
from tuner.extensions.engines.configs.products import Product
from tuner.extensions.engines.invariant_fleet import ROWS, jobs_of, wanted_products
from tuner.model.errors import DeviceError, InputError, KernelError
from tuner.session.session import Session

ROOT = Path(__file__).parents[4]
LLAMA, QWEN = (ROOT / f"benchmarks/models/{name}.json" for name in ("llama-3-8b", "qwen3-30b-a3b"))
H200 = Gpu("cuda:0", "NVIDIA H200", "sm_90a", 132, 139.8)
TINY = {
    **{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 300},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "torch_dtype": "bfloat16"},
}
HERE = ("--triton", "3.6.0")


@pytest.mark.parametrize(
    ("tp", "shapes"),
    [
        (1, [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)]),
        (8, [(768, 4096), (4096, 512), (3584, 4096), (4096, 1792), (16032, 4096)]),
    ],
)
def test_a_dense_model_s_layers_are_cut_over_gpus(tp: int, shapes: list[tuple[int, int]]) -> None:
    found = linear_layers(LLAMA, "sglang", tp=tp)
    assert [(one.n, one.k) for one in found] == shapes
    assert [one.name for one in found][-1] == "logits"


def test_a_model_of_experts_has_its_router_whole_and_no_expert() -> None:
    shapes = [(one.name, one.n, one.k) for one in linear_layers(QWEN, "vllm", tp=4)]
    assert shapes == [
        ("attention: q, k, v", 1280, 2048),
        ("attention: out", 2048, 1024),
        ("router", 128, 2048),
        ("logits", 37984, 2048),
    ]


@pytest.mark.parametrize(
    ("changed", "tp", "said"),
    [
        ({"model_type": "mamba"}, 1, "model_type 'mamba' is not known"),
        ({"torch_dtype": "float16"}, 1, "weights are float16"),
        ({"quantization_config": {"quant_method": "fp8"}}, 1, "weights are quantized"),
        ({}, 3, "4 attention heads cannot be shared by 3 GPUs"),
        ({"vocab_size": 64}, 128, "cannot be shared by 128 GPUs"),
        ({"hidden_size": "64"}, 1, "hidden_size is '64'"),
    ],
)
def test_a_model_without_a_table_is_one_error(
    tmp_path: Path, changed: dict[str, Any], tp: int, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        linear_layers(write_config(tmp_path, TINY, **changed), "sglang", tp=tp)


def test_shapes_of_several_models_are_sessions_once(tmp_path: Path) -> None:
    again = write_config(tmp_path, json.loads(LLAMA.read_text("utf-8")), vocab_size=32000)
    wanted = wanted_products([LLAMA, again], "sglang", tmp_path)
    assert [one.product.n for one in wanted] == [6144, 4096, 28672, 4096, 128256, 32000]
    jobs = jobs_of(wanted, "sglang")
    assert jobs[0].name == "invariant-sglang-N6144-K4096"
    assert jobs[0].workloads[-1] == "M=2048,N=6144,K=4096"
    assert (len(jobs[0].workloads), jobs[0].operators) == (len(ROWS), {"ENGINE": "sglang"})


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is tuned, on what passes for an H200: sessions with made-up times."""
    names: list[str] = []

    def tune(kernel: Path, *, session: Path, workloads: Sequence[str] = (), **_: object) -> None:
        names.append(session.name)
        if "K96" in session.name:
            raise KernelError("the compiler crashed")
        if session.exists():
            return
        axes = [dict(pair.split("=") for pair in one.split(",")) for one in workloads]
        times = {(int(one["M"]), Product(int(one["N"]), int(one["K"]))): {64: 5.0} for one in axes}
        write_product_session(session, times, "vllm" if "vllm" in session.name else "sglang")

    monkeypatch.setattr(devices_command, "list_gpus", lambda: iter([H200]))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.6.0")
    monkeypatch.setattr(fleet, "tune", tune)
    monkeypatch.chdir(ROOT)
    return names


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_config_json_becomes_a_table_and_a_shape_that_fails_costs_itself_alone(
    tune, tmp_path: Path, tuned: list[str], engine: str
) -> None:
    model = write_config(tmp_path, TINY)
    place = ("--to", tmp_path / "to", "--sessions", tmp_path / "s", "--engine", engine)
    result = tune("fleet", model, "--invariant", *HERE, *place)
    assert result.exit_code == 1
    assert len(tuned) == 5
    assert "1 of 5 shapes are not in the table: invariant-" in result.stderr
    assert "N64-K96: the compiler crashed" in result.output
    package = tmp_path / "to" / f"invariant_{engine}" / f"invariant_{engine}"
    text = (package / "table.py").read_text("utf-8")
    assert all(f"({n}, 64): " in text for n in (128, 64, 192, 320))
    assert "(64, 96)" not in text
    assert "(4 shapes): pip install --no-deps" in result.output
    if engine == "sglang":
        shapes = runpy.run_path(str(package / "table.py"))["CONFIGS"]["bfloat16"]
        assert [*shapes[128, 64]] == [*ROWS]


def test_a_second_model_s_shapes_join_those_of_the_first_in_one_table(
    tune, tmp_path: Path, tuned: list[str]
) -> None:
    place = ("--to", tmp_path / "to", "--sessions", tmp_path / "s")
    for width in (96, 128):
        folder = tmp_path / str(width)
        folder.mkdir()
        model = write_config(folder, TINY, intermediate_size=width)
        tune("fleet", model, "--invariant", *HERE, *place)
    table = tmp_path / "to/invariant_sglang/invariant_sglang/table.py"
    text = table.read_text("utf-8")
    assert all(f"({n}, {k}): " in text for n, k in ((192, 64), (256, 64), (64, 128)))
    states = tune("fleet", model, "--invariant", *HERE, *place, "--dry-run").output.splitlines()
    assert states[0] == "SGLang, NVIDIA H200, Triton 3.6.0, tp 1: 0 of 5 shapes to tune"
    assert states[1].split(maxsplit=3) == ["complete", "N=128", "K=64", "attention: q, k, v"]


def test_a_dry_run_lists_shapes_and_what_a_smaller_gpu_cannot_hold(tune, tmp_path: Path) -> None:
    words = ("--invariant", *HERE, "--dry-run", "--sessions", tmp_path, "--gpu")
    listed = tune("fleet", LLAMA, QWEN, *words, "NVIDIA L40S")
    assert listed.exit_code == 0, listed.stderr
    head, *_, last = listed.output.splitlines()
    assert head == "SGLang, NVIDIA L40S, Triton 3.6.0, tp 1: 9 of 9 shapes to tune"
    assert last.startswith("SGLang's own config for fp16 takes up to 131,072 bytes")
    assert "its mode may die there" in last
    fitting = tune("fleet", LLAMA, *words, "NVIDIA H200").output
    assert "own config" not in fitting
    made = json.loads(tune("fleet", LLAMA, *words, "NVIDIA H200", "--json").output)
    assert made["products"][0] == {
        **{"n": 6144, "k": 4096, "layers": ["attention: q, k, v"], "state": "missing"},
        "session": str(tmp_path / "NVIDIA_H200/triton-3.6.0/invariant-sglang-N6144-K4096"),
    }


@pytest.mark.parametrize("words", [("--two",), ("--keep-bits",), ("--dtype", "fp8_w8a8")])
def test_what_belongs_to_other_files_is_refused(tune, words: tuple[str, ...]) -> None:
    result = tune("fleet", LLAMA, "--invariant", "--gpu", "G", *HERE, "--dry-run", *words)
    assert result.exit_code == 2
    assert "--invariant is for linear layers in bf16" in result.stderr


def test_without_a_gpu_it_ends_at_the_first(
    tune, tmp_path: Path, tuned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*_: object, **__: object) -> None:
        raise DeviceError("no NVIDIA GPU was found")

    monkeypatch.setattr(fleet, "tune", without)
    place = ("--to", tmp_path / "to", "--sessions", tmp_path / "s")
    result = tune("fleet", LLAMA, "--invariant", *HERE, *place)
    assert result.exit_code == 2
    assert "no NVIDIA GPU was found" in result.stderr
    assert not (tmp_path / "to").exists()


def test_a_session_that_is_not_complete_is_not_in_the_table_of_others(
    tune, tmp_path: Path, tuned: list[str]
) -> None:
    sessions = tmp_path / "s/NVIDIA_H200/triton-3.6.0"
    begun = write_product_session(
        sessions / "invariant-sglang-N6144-K4096", TIMES, "sglang", kept=False
    )
    with Session.open(begun) as session:
        session.mark("interrupted")
    place = ("--to", tmp_path / "to", "--sessions", tmp_path / "s")
    tune("fleet", write_config(tmp_path, TINY), "--invariant", *HERE, *place)
    text = (tmp_path / "to/invariant_sglang/invariant_sglang/table.py").read_text("utf-8")
    assert "(6144, 4096)" not in text
