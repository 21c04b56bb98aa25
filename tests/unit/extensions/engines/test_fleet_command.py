"""`tune fleet` as a user sees it: what an engine lacks, and what cannot be listed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
from model_configs import BLOCKS, GLM_4_5, GPT_OSS, QWEN3_NEXT, QWEN3_VL, write_config

from tuner.cli import devices_command
from tuner.cli.devices_command import Gpu
from tuner.cli.exits import resumed_by
from tuner.device.select import gpu_count
from tuner.extensions.engines import fleet, fleet_command
from tuner.extensions.engines.configs import used
from tuner.model.errors import WorkerError

ROOT = Path(__file__).parents[4]
QWEN = ROOT / "benchmarks" / "models" / "qwen3-30b-a3b.json"
NAME = "E=128,N=768,device_name=NVIDIA_H200.json"
HERE = ("--gpu", "NVIDIA H200", "--triton", "3.6.0", "--dry-run")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """SGLang's folders, with a file for an older Triton."""
    found = tmp_path / "site-packages" / "sglang"
    (found / "kernels/ops/quantization").mkdir(parents=True)
    shipped = found / "srt/layers/moe/moe_runner/triton_utils/configs/triton_3_4_0"
    shipped.mkdir(parents=True)
    row = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
    (shipped / NAME).write_text(json.dumps({"1": row}))
    return found


@pytest.fixture(autouse=True)
def _no_folder_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in used.FOLDERS.values():
        monkeypatch.delenv(name, raising=False)


def test_a_dry_run_lists_stale_and_missing_files(tune, package: Path) -> None:
    result = tune("fleet", QWEN, *HERE, "--engine-dir", package)
    assert result.exit_code == 0, result.stderr
    head, stale, remark, missing, optional, *_ = result.output.splitlines()
    assert head == "SGLang, NVIDIA H200, Triton 3.6.0, tp 1, ep 1: 1 of 2 files to make"
    assert stale == f"stale    experts                  {NAME}"
    assert remark.strip().startswith("only for Triton 3.4.0: ")
    assert missing.split() == ["missing", "experts,", "second", "product", f"{NAME[:-5]}_down.json"]
    assert optional.strip() == "optional (--two): it has the first product's configs"
    assert "configs/triton_3_6_0" in result.output.partition("they belong into")[2]


def test_with_a_config_for_each_gemm_the_second_file_is_to_be_made_too(tune, package: Path) -> None:
    result = tune("fleet", QWEN, *HERE, "--engine-dir", package, "--two")
    assert "2 of 2 files to make" in result.output.splitlines()[0]
    assert "optional" not in result.output
    listed = tune("fleet", QWEN, *HERE, "--engine-dir", package, "--two", "--json")
    assert [one["to_make"] for one in json.loads(listed.output)["files"]] == [True, True]


def test_json_has_every_file(tune, package: Path) -> None:
    result = tune("fleet", QWEN, *HERE, "--engine-dir", package, "--tp", 4, "--json")
    listed = json.loads(result.output)
    assert (listed["engine"], listed["triton"], listed["tp"]) == ("sglang", "3.6.0", 4)
    first, second = listed["files"]
    assert first["wanted"].endswith("E=128,N=192,device_name=NVIDIA_H200.json")
    assert (first["state"], first["found"], first["optional"]) == ("missing", None, False)
    assert second["optional"]


def test_a_folder_of_ones_own_comes_from_the_environment(
    tune, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_MOE_CONFIG_DIR", str(tmp_path / "own"))
    result = tune("fleet", QWEN, *HERE, "--engine-dir", package)
    assert result.output.splitlines()[1].startswith("missing  experts ")
    assert str(tmp_path / "own" / "configs" / "triton_3_6_0") in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpu", "G", "--triton", "3.6.0", "--json"), "--json is for --dry-run"),
        ((*HERE, "--tp", 5), "cannot be shared by 5 GPUs"),
        ((*HERE, "--two", "--engine", "vllm"), "--two is for SGLang"),
        ((*HERE, "--engine", "vllm"), "vLLM is not installed here"),
        (("--dry-run", "--gpu", "G"), "Triton is not installed here"),
    ],
)
def test_what_cannot_be_listed_is_told_with_a_remedy(
    tune, package: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...], said: str
) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    place = () if "vllm" in words else ("--engine-dir", package)
    result = tune("fleet", QWEN, *words, *place)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "--" in result.stderr.splitlines()[-1], "the last line is the remedy"


@pytest.mark.skipif(gpu_count() > 0, reason="it would make them")
def test_making_them_wants_the_gpu(
    tune, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    folders = ("--to", tmp_path / "to", "--sessions", tmp_path / "s")
    words = ("--gpu", "G", "--triton", "3.6.0", *folders, "--engine-dir", package)
    result = tune("fleet", QWEN, *words)
    assert result.exit_code == 2
    assert "no NVIDIA GPU was found" in result.stderr
    assert result.stderr.splitlines()[-1].endswith("--dry-run")
    assert "--device" not in result.stderr, "it is no option of this command"
    assert not (tmp_path / "to").exists()


H200 = Gpu("cuda:0", "NVIDIA H200", "sm_90a", 132, 139.8)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpu", "NVIDIA H100"), "files for 'NVIDIA H100' cannot be made on 'NVIDIA H200'"),
        (("--triton", "3.5.0"), "files for Triton 3.5.0 cannot be made with Triton 3.6.0"),
    ],
)
def test_files_are_made_for_what_measures_them_alone(
    tune, package: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, str], said: str
) -> None:
    monkeypatch.setattr(devices_command, "list_gpus", lambda: iter([H200]))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.6.0")
    result = tune("fleet", QWEN, *words, "--engine-dir", package)
    assert result.exit_code == 2
    assert said in result.stderr
    assert tune("fleet", QWEN, *words, "--engine-dir", package, "--dry-run").exit_code == 0


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--engine-dir", "files are made beside the sglang that is installed"),
        ("--folder", "the engine is told of no folder of your own"),
    ],
)
def test_files_are_made_beside_what_the_baseline_runs_with(
    tune, package: Path, monkeypatch: pytest.MonkeyPatch, option: str, said: str
) -> None:
    monkeypatch.setattr(devices_command, "list_gpus", lambda: iter([H200]))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.6.0+git1234")
    monkeypatch.setattr(fleet_command, "_find_engine", lambda engine: package)
    result = tune("fleet", QWEN, option, package.parent)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.splitlines()[-1].endswith("--dry-run")


def test_what_cannot_be_tuned_is_named_and_the_exit_code_says_so(
    tune, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices_command, "list_gpus", lambda: iter([H200]))
    words = ("--engine-dir", package, "--dtype", "fp8_w8a8", "--triton", "3.6.0")
    listed = tune("fleet", QWEN, *words, "--dry-run").output.splitlines()
    assert listed[0].endswith("0 of 2 files to make, 1 cannot be made")
    why = "cannot be made: only bf16, and fp8 in blocks of 128 by 128 or 32 by 32, can be tuned"
    assert why in [one.strip() for one in listed]
    (first, _) = json.loads(tune("fleet", QWEN, *words, "--dry-run", "--json").output)["files"]
    assert (first["to_make"], first["refused"]) == (False, why.partition(": ")[2])
    result = tune("fleet", QWEN, *words)
    assert result.exit_code == 1
    assert "nothing to make" in result.output
    assert "1 of 2 files cannot be made" in result.stderr


def test_what_is_no_list_of_gpus_is_refused_before_any_shape(
    tune, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices_command, "list_gpus", lambda: iter([H200]))
    monkeypatch.chdir(ROOT)
    folders = ("--to", tmp_path / "to", "--sessions", tmp_path / "s", "--engine-dir", package)
    result = tune("fleet", QWEN, "--triton", "3.6.0", *folders, "--gpus", "first")
    assert result.exit_code == 2
    assert "--gpus 'first' is no list of GPUs" in result.stderr
    assert "shapes have no file" not in result.stderr


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which shapes were tuned, on what passes for an H200: each fails, which costs no time."""
    names: list[str] = []

    def failing(kernel: Path, *, session: Path, **_: object) -> None:
        names.append(session.name)
        raise WorkerError("no shape can be tuned today")

    monkeypatch.setattr(devices_command, "list_gpus", lambda: iter([H200]))
    monkeypatch.setattr(fleet, "tune", failing)
    monkeypatch.chdir(ROOT)
    return names


def in_the_way(folder: Path, what: str) -> Path:
    """Put something where a folder or one of the files has to be."""
    path = folder / what
    path.parent.mkdir(parents=True, exist_ok=True)
    if what.endswith(".json"):
        path.mkdir()
    elif what.endswith("link"):
        path.symlink_to("nowhere")
    else:
        path.write_text("mine")
    return path


@pytest.mark.parametrize(
    ("what", "below", "said"),
    [
        ("to", "", "is no folder"),
        ("to", "below", "is no folder"),
        ("link", "", "is no folder"),
        ("to/configs", "", "is no folder"),
        ("to/configs/triton_3_6_0", "", "is no folder"),
        (f"to/configs/triton_3_6_0/{NAME}", "", "is in the place of a file to make"),
    ],
)
def test_what_is_in_the_way_of_the_files_is_found_before_anything_is_tuned(
    tune, package: Path, tmp_path: Path, tuned: list[str], what: str, below: str, said: str
) -> None:
    path = in_the_way(tmp_path, what)
    to = tmp_path / what.partition("/")[0] / below
    words = ("--triton", "3.6.0", "--sessions", tmp_path / "s", "--engine-dir", package)
    result = tune("fleet", QWEN, *words, "--to", to)
    assert (result.exit_code, tuned) == (2, [])
    told, remedy = result.stderr.splitlines()
    assert told.endswith(f"{path}: {said}")
    assert remedy.endswith("choose another place with --to")
    assert tune("fleet", QWEN, *words, "--to", to, "--dry-run").exit_code == 0


@pytest.mark.parametrize("names", [(), ("E=8,N=8,device_name=NVIDIA_H200.json", NAME)])
def test_a_folder_with_other_files_or_earlier_ones_is_not_in_the_way(
    tune, package: Path, tmp_path: Path, tuned: list[str], names: tuple[str, ...]
) -> None:
    for name in names:
        in_the_way(tmp_path, "to/configs/triton_3_6_0/other")
        (tmp_path / "to/configs/triton_3_6_0" / name).write_text("{}")
    words = ("--triton", "3.6.0", "--sessions", tmp_path / "s", "--engine-dir", package)
    result = tune("fleet", QWEN, *words, "--to", tmp_path / "to")
    assert (result.exit_code, len(tuned)) == (1, 1)


def write_models(folder: Path, **models: object) -> list[Path]:
    paths = []
    for name, content in models.items():
        (folder / name).mkdir()
        paths.append(write_config(folder / name, content))
    return paths


def test_models_have_one_list_with_each_shape_once_and_one_that_fails_leaves_the_others(
    tune, package: Path, tmp_path: Path
) -> None:
    small = {**QWEN3_NEXT, "quantization_config": {**BLOCKS, "weight_block_size": [32, 32]}}
    models = {"glm": GLM_4_5, "next": QWEN3_NEXT, "again": QWEN3_NEXT, "small": small}
    paths = write_models(tmp_path, **models, oss=GPT_OSS, seen=QWEN3_VL)
    result = tune("fleet", *paths, *HERE, "--engine-dir", package, "--tp", 2)
    assert result.exit_code == 1
    assert f"{paths[-2]}: weights in 'mxfp4'" in result.stderr
    assert "1 of 6 models have no files" in result.stderr
    result = tune("fleet", *paths, *HERE, "--engine-dir", package, "--tp", 2, "--json")
    assert result.exit_code == 1
    listed = json.loads(result.stdout)
    by_name = {Path(one["wanted"]).name: one for one in listed["files"]}
    assert len(by_name) == len(listed["files"])
    name = "E=513,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape={}.json"
    assert by_name[name.format("[128, 128]")]["models"] == ["next", "again"]
    assert by_name[name.format("[32, 32]")]["refused"] is None
    assert [*listed["refused"]] == [str(paths[-2])]


def test_models_are_tuned_in_one_queue(
    tune, package: Path, tmp_path: Path, tuned: list[str]
) -> None:
    paths = write_models(tmp_path, one=QWEN3_NEXT, two=QWEN3_NEXT, vl=QWEN3_VL)
    folders = ("--to", tmp_path / "to", "--sessions", tmp_path / "s", "--engine-dir", package)
    result = tune("fleet", *paths, "--triton", "3.6.0", *folders)
    assert result.exit_code == 1, "each failed"
    assert len(tuned) == len({*tuned}) == 6
    assert sum(name.startswith("moe-fp8_block-") for name in tuned) == 2


def test_without_time_nothing_is_begun_and_what_is_left_is_named(
    tune, package: Path, tmp_path: Path, tuned: list[str]
) -> None:
    folders = ("--to", tmp_path / "to", "--sessions", tmp_path / "s", "--engine-dir", package)
    result = tune("fleet", QWEN, "--triton", "3.6.0", *folders, "--budget", "20s")
    assert (result.exit_code, tuned) == (1, [])
    assert "no time of the budget is left for it" in result.output
    assert "1 of 1 shapes have no file" in result.stderr


def test_a_file_that_is_there_is_compared_with_the_default_before_it_is_trusted(
    tune, package: Path, tmp_path: Path, tuned: list[str]
) -> None:
    older = package / "srt/layers/moe/moe_runner/triton_utils/configs/triton_3_4_0" / NAME
    (newer := older.parents[1] / "triton_3_6_0").mkdir()
    older.rename(newer / NAME)
    folders = ("--to", tmp_path / "to", "--sessions", tmp_path / "s", "--engine-dir", package)
    assert tune("fleet", QWEN, "--triton", "3.6.0", *folders, "--no-proof").exit_code == 0
    assert tuned == []
    result = tune("fleet", QWEN, "--triton", "3.6.0", *folders)
    assert result.exit_code == 1
    assert tuned == ["proof-moe-bf16-E128-N768-K2048-top8-ep1"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("mode", [0o555, 0o666])
def test_a_folder_that_may_not_be_written_to_is_found_before_anything_is_tuned(
    tune, package: Path, tmp_path: Path, tuned: list[str], mode: int
) -> None:
    (tmp_path / "locked").mkdir(mode=mode)
    words = ("--triton", "3.6.0", "--sessions", tmp_path / "s", "--engine-dir", package)
    result = tune("fleet", QWEN, *words, "--to", tmp_path / "locked" / "to")
    assert (result.exit_code, tuned) == (2, [])
    assert "locked: cannot be written to" in result.stderr


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_triton_that_is_no_release_is_refused(tune, package: Path, engine: str) -> None:
    words = ("--gpu", "NVIDIA H200", "--engine", engine, "--engine-dir", package, "--dry-run")
    result = tune("fleet", QWEN, *words, "--triton", "abc")
    assert result.exit_code == 2
    assert "Triton 'abc' is not a release" in result.stderr


def test_one_that_is_terminated_says_how_to_go_on_with_all(
    tune, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminated(kernel: Path, **_: object) -> None:
        with resumed_by(("--resume", "sessions/one")):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

    monkeypatch.setattr(devices_command, "list_gpus", lambda: iter([H200]))
    monkeypatch.setattr(fleet, "tune", terminated)
    monkeypatch.setattr(sys, "argv", ["tune", "fleet", str(QWEN)])
    monkeypatch.chdir(ROOT)
    words = ("--triton", "3.6.0", "--to", tmp_path / "to", "--sessions", tmp_path / "s")
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        result = tune("fleet", QWEN, *words, "--engine-dir", package)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert result.exit_code == 130
    assert f"resume with: tune fleet {QWEN}" in result.stderr


def test_what_another_gpu_or_triton_measured_and_other_bits_are_not_gone_on_with(
    tune, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, object]] = []

    def failing(kernel: Path, *, session: Path, progress: object, **settings: object) -> None:
        asked.append((session, settings["keep_bits"]))
        raise WorkerError("no shape can be tuned today")

    monkeypatch.setattr(devices_command, "list_gpus", lambda: iter([H200]))
    monkeypatch.setattr(fleet, "tune", failing)
    monkeypatch.chdir(ROOT)
    folders = ("--to", tmp_path / "to", "--sessions", tmp_path / "s", "--engine-dir", package)
    for words in (("--triton", "3.6.0"), ("--triton", "3.6.0", "--keep-bits")):
        result = tune("fleet", QWEN, *words, *folders)
        assert result.exit_code == 1
        assert (
            "1 of 1 shapes have no file, or one that is not proved: moe-bf16-E128-N768"
            in result.stderr
        )
    place = tmp_path / "s" / "NVIDIA_H200" / "triton-3.6.0"
    name = "moe-bf16-E128-N768-K2048-top8-ep1"
    assert asked == [(place / name, False), (place / "keep-bits" / name, True)]
