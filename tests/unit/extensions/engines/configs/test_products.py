"""From sessions of an engine's invariant product to a table that its own code multiplies with."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from operator_sessions import write_operator_session
from product_sessions import OUT, QKV, TIMES, config, write_product_session

from tuner.cli import cli
from tuner.compiler.base import PythonCompiler
from tuner.extensions.engines.configs import asking
from tuner.extensions.engines.configs.files import Engine, write_files
from tuner.extensions.engines.configs.products import (
    ProductConfigs,
    ProductTable,
    product_table,
    shared_bytes,
    table_files,
    tell_deepgemm,
    too_large_on,
    used_products,
)
from tuner.model.errors import InputError, SessionError, WorkerError

Python = Sequence[str]


def test_a_session_becomes_a_table_by_shape_and_rows(tmp_path: Path) -> None:
    found = product_table([write_product_session(tmp_path, TIMES)], "vllm", "3.6.0")
    assert (found.gpu, found.capability) == ("NVIDIA H200", (9, 0))
    assert [*found.products] == [OUT, QKV]
    assert found.products[QKV].rows == {1: config(16), 64: config(64)}
    assert found.products[QKV].speedup == pytest.approx(5**0.5, rel=0.01)


def test_vllm_has_the_step_along_k_that_costs_least_over_all_sizes(tmp_path: Path) -> None:
    times = {(1, QKV): {64: 5.0, 128: 5.1, 32: 9.0}, (64, QKV): {64: 8.0, 128: 4.0, 32: 4.1}}
    found = product_table([write_product_session(tmp_path / "v", times)], "vllm", "3.6.0")
    rows = found.products[QKV].rows
    assert rows == {1: config(16, 128), 64: config(64, 128)}
    own = product_table([write_product_session(tmp_path / "s", times, "sglang")], "sglang", "3.6.0")
    assert [one["BLOCK_SIZE_K"] for one in own.products[QKV].rows.values()] == [64, 128]


def test_a_shape_that_the_engine_multiplies_faster_by_itself_is_left_out(tmp_path: Path) -> None:
    times = {**TIMES, (1, OUT): {64: 20.0}}
    found = product_table([write_product_session(tmp_path, times)], "vllm", "3.6.0")
    assert [*found.products] == [QKV]
    assert found.notes == ("N=4096, K=4096: vLLM's own is 2.00x as fast",)
    alone = write_product_session(tmp_path / "alone", {(1, OUT): {64: 20.0}})
    with pytest.raises(InputError, match="there is no product to write"):
        table_files(product_table([alone], "vllm", "3.6.0"))


def test_of_two_sessions_the_faster_one_has_the_shape(tmp_path: Path) -> None:
    slow = write_product_session(tmp_path / "slow", {(1, QKV): {64: 5.0}})
    fast = write_product_session(tmp_path / "fast", {(1, QKV): {128: 4.0}})
    for sessions in ([slow, fast], [fast, slow]):
        assert product_table(sessions, "vllm", "3.6.0").products[QKV].session == fast


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine": "sglang"}, "is of matmul_persistent of sglang, no invariant product of vLLM"),
        ({"kept": False}, "has chosen no class of bits"),
        (
            {"compiler": "triton 3.5.1"},
            "was measured with Triton 3.5.1, and the table is for 3.6.0",
        ),
    ],
)
def test_a_session_that_proves_nothing_for_the_table_is_refused(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(SessionError, match=re.escape(said)):
        product_table([write_product_session(tmp_path, TIMES, **given)], "vllm", "3.6.0")


DEEPGEMM = "Python 3.11, triton 3.6.0, sglang 0.5.17, sgl-deep-gemm 0.1.5"


@pytest.mark.parametrize("off", [False, True])
def test_what_measures_knows_whether_deepgemm_multiplies(
    monkeypatch: pytest.MonkeyPatch, off: bool
) -> None:
    monkeypatch.setattr("tuner.compiler.base.version", lambda name: "1.0")
    monkeypatch.setenv("SGLANG_BATCH_INVARIANT_OPS_ENABLE_MM_DEEPGEMM", "False" if off else "1")
    assert ("sgl-deep-gemm 1.0" in PythonCompiler().version) is not off


def test_a_table_says_whether_it_was_measured_over_deepgemm(tmp_path: Path) -> None:
    with_it = {(1, QKV): {64: 5.0}}, "sglang"
    one = write_product_session(tmp_path / "1", *with_it, compiler=DEEPGEMM)
    other = write_product_session(tmp_path / "2", {(1, OUT): {64: 5.0}}, "sglang")
    init = Path("invariant_sglang/invariant_sglang/__init__.py")
    found = product_table([one], "sglang", "3.6.0")
    assert "deepgemm=True," in table_files(found)[init]
    assert [*tell_deepgemm(found)] == []
    mixed = product_table([one, other], "sglang", "3.6.0")
    assert "deepgemm" not in table_files(mixed)[init]
    assert [*tell_deepgemm(mixed)] == [
        "N=4096, K=4096: measured without DeepGEMM, unlike the others: tune them anew"
    ]


def test_sessions_of_two_gpus_are_no_table(tmp_path: Path) -> None:
    one = write_product_session(tmp_path / "1", TIMES)
    two = write_product_session(tmp_path / "2", TIMES, device="NVIDIA B200")
    with pytest.raises(SessionError, match="was measured on NVIDIA B200, and others on"):
        product_table([one, two], "vllm", "3.6.0")


def table(engine: Engine = "vllm", **changed: Any) -> ProductTable:
    rows = {1: config(16), 16: config(32), 256: config(128, BLOCK_SIZE_N=128, num_stages=5)}
    products = {OUT: ProductConfigs(rows, 1.25, Path("s")), QKV: ProductConfigs(rows, 2, Path("s"))}
    return replace(ProductTable(engine, "NVIDIA H200", (9, 0), "3.6.0", products), **changed)


def test_vllm_s_table_is_in_vllm_s_form() -> None:
    files = table_files(table())
    text = files[Path("invariant_vllm/invariant_vllm/table.py")]
    assert '"hopper": {' in text
    assert "(6144, 4096): _MatmulShapeConfig(\n            block_k=64," in text
    assert "(16, _MatmulMConfig(32, 64, 4, 3)),\n" in text
    assert "(128, 128, 4, 5)),  # too large for 8.6, 8.9, 12.0, 12.1\n" in text
    assert (
        'invariant_vllm = "invariant_vllm:register"' in files[Path("invariant_vllm/pyproject.toml")]
    )
    for path, content in files.items():
        if path.suffix == ".py":
            compile(content, str(path), "exec")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"capability": (8, 0), "gpu": "NVIDIA A100"}, "reads no table on NVIDIA A100"),
        (
            {"products": {QKV: ProductConfigs({1: config(16), 2: config(16, 32)}, 1, Path("s"))}},
            "has one BLOCK_SIZE_K for all sizes and GROUP_SIZE_M=8, not [32, 64] and [8]",
        ),
    ],
)
def test_what_vllm_s_table_cannot_say_is_one_error(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        table_files(table(**changed))


def test_shared_memory_is_that_which_kills_sglang_s_mode() -> None:
    # In fp16 128 by 256 by 64 in three stages; it takes 106,496 bytes (SGLang #29149).
    own = config(128, BLOCK_SIZE_N=256, num_warps=8)
    assert 106_496 <= shared_bytes(own, (8, 9)) <= 106_496 + (24 << 10)
    assert too_large_on(own) == ("8.6", "8.9", "12.0", "12.1")
    assert too_large_on(config(16)) == ()


def test_export_writes_the_package_and_refuses_other_kernels_beside_it(tmp_path: Path) -> None:
    session = write_product_session(tmp_path / "s", TIMES, "sglang")
    moe = write_operator_session(tmp_path / "moe", "w8a8_block_fp8", {})
    words = [
        "export",
        "--format",
        "sglang-configs",
        "--triton",
        "3.6.0",
        "--to",
        str(tmp_path / "to"),
    ]
    done = CliRunner().invoke(cli, [*words, str(session)], prog_name="tune")
    assert done.exit_code == 0, done.stderr
    assert "invariant_sglang (2 shapes): pip install --no-deps" in done.stdout
    assert "SGLang is not installed here: not checked by its own code" in done.stdout
    assert (tmp_path / "to/invariant_sglang/invariant_sglang/products.py").is_file()
    for pair in ((session, moe), (moe, session)):
        refused = CliRunner().invoke(cli, [*words, *map(str, pair)], prog_name="tune")
        assert refused.exit_code == 2
        assert "apart" in refused.stderr


def ask_engine(
    engine: Engine, python: Python, folder: Path, made: ProductTable, **how: Any
) -> tuple[str, ...]:
    write_files(folder, table_files(made), replace=True)
    found = used_products(how.pop("as_", made), folder / f"invariant_{engine}", python, **how)
    return found.differences


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_linear_layers_in_the_deterministic_mode_multiply_with_the_table_and_else_do_not(
    engine: Engine, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    python: Python = request.getfixturevalue(f"{engine}_python")
    made = table(engine)
    assert ask_engine(engine, python, tmp_path, made) == ()
    plain = ask_engine(engine, python, tmp_path, made, mode="plain")
    assert len(plain) == 8, "three sizes and one beyond, of two shapes"
    assert plain[0].endswith("multiplies with PyTorch's own product")


GRAPHS = """
import importlib, json, runpy, sys
from types import SimpleNamespace

question = json.load(sys.stdin)
asking = runpy.run_path(question["program"])
module = importlib.import_module(asking["MODULES"]["vllm", "product"])
asking["pretend_gpu"]("vllm", module, question["gpu"])
asking["vllm_layer"](module, question)
torch, vllm = importlib.import_module("torch"), importlib.import_module("vllm.config.vllm")
decides = vllm.VllmConfig._uses_breakable_cudagraph_for_batch_invariance
for hidden in (4096, 4032):
    sizes = {"get_hidden_size": hidden, "get_head_size": 128}
    heads = {"get_num_attention_heads": 32, "get_num_kv_heads": 8}
    model = SimpleNamespace(
        enforce_eager=False,
        dtype=torch.bfloat16,
        quantization=None,
        hf_text_config=SimpleNamespace(intermediate_size=14336),
        **{name: lambda *_, size=size: size for name, size in {**sizes, **heads}.items()},
    )
    parallel = SimpleNamespace(tensor_parallel_size=1)
    print(decides(SimpleNamespace(model_config=model, parallel_config=parallel)))
"""


@pytest.mark.slow
def test_vllm_captures_graphs_that_look_a_table_up_for_a_model_of_its_shapes(
    vllm_python: Python, tmp_path: Path
) -> None:
    # Else torch.compile would freeze the config of the largest batch into the graph (vLLM #54243).
    made, program = table(), tmp_path / "graphs.py"
    write_files(tmp_path, table_files(made))
    program.write_text(GRAPHS, encoding="utf-8")
    question = {"engine": "vllm", "gpu": made.gpu, "capability": [9, 0], "triton": made.triton}
    question |= {"mode": "deterministic", "package": "invariant_vllm", "program": asking.__file__}
    done = subprocess.run(
        [*vllm_python, str(program)],
        input=json.dumps({**question, "folder": str(tmp_path / "invariant_vllm")}),
        env={**os.environ, "VLLM_BATCH_INVARIANT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-2:] == ["True", "False"], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_table_that_an_engine_cannot_use_is_one_error(
    engine: Engine, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    python: Python = request.getfixturevalue(f"{engine}_python")
    made = table(engine)
    wrong = "is a table of NVIDIA H200 with Triton 3.5.0, and this is NVIDIA H200 with Triton 3.6.0"
    if engine == "sglang":
        with pytest.raises(WorkerError, match=wrong):
            ask_engine(engine, python, tmp_path, replace(made, triton="3.5.0"))
    other = replace(made, gpu="NVIDIA L40S")
    with pytest.raises(WorkerError, match=r"and this is NVIDIA L40S .* `tune fleet --invariant`"):
        ask_engine(engine, python, tmp_path, made, as_=other)
    shipped = tmp_path / f"invariant_{engine}" / f"invariant_{engine}" / "products.py"
    moved = {"vllm": '"_get_matmul_config",', "sglang": '"_matmul_persistent_deepgemm",'}[engine]
    text = shipped.read_text("utf-8")
    shipped.write_text(text.replace(moved, '"_moved_away",', 1), encoding="utf-8")
    with pytest.raises(WorkerError, match=r"has no such place: _moved_away; it was tested with"):
        used_products(made, shipped.parents[1], python)
