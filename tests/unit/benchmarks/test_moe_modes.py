"""benchmarks/moe_modes.py and fused_moe_file.py: modes by MoE configs, and what they imply."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import fused_moe_file
import moe_modes
import pytest
from moe_modes import Mode

from tuner.extensions.engines.configs.files import MoeKey, file_name

CONFIG = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 3,
}
NAME = Path("configs/triton_3_6_0/E=128,N=768,device_name=NVIDIA_H200.json")


def written(folder: Path, blocks: int) -> Path:
    path = folder / NAME
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"16": {**CONFIG, "BLOCK_SIZE_N": blocks}}), "utf-8")
    return folder


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """SGLang's two modules as far as they matter: files that are remembered, and a caller."""
    own = written(tmp_path / "own", 256)
    files, caller = ModuleType("files"), ModuleType("caller")

    @lru_cache
    def get_moe_configs() -> dict[int, Any]:
        path = Path(os.environ.get(moe_modes.FOLDER, own)) / NAME
        return {int(k): v for k, v in json.loads(path.read_text()).items()} if path.exists() else {}

    def try_get_optimal_moe_config(*shapes: Any, return_down_config: bool) -> Any:
        found = get_moe_configs().get(shapes[4], {"BLOCK_SIZE_M": 16})
        return found, (None, None)

    files.get_moe_configs = get_moe_configs  # type: ignore[attr-defined]
    caller.try_get_optimal_moe_config = try_get_optimal_moe_config  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"{moe_modes.TRITON}.fused_moe_triton_config", files)
    monkeypatch.setitem(sys.modules, f"{moe_modes.TRITON}.fused_moe", caller)
    monkeypatch.setattr(moe_modes, "importlib", Importing)
    monkeypatch.delenv(moe_modes.FOLDER, raising=False)
    yield caller
    os.environ.pop(moe_modes.FOLDER, None)


class Importing:
    """Stands for importlib where the packages above a module are not there."""

    @staticmethod
    def import_module(name: str) -> ModuleType:
        return sys.modules[name]


def launch(sglang: Any) -> None:
    sglang.try_get_optimal_moe_config((), (), 8, None, 16, return_down_config=True)


def test_each_mode_has_the_configs_of_its_folder(sglang: ModuleType, tmp_path: Path) -> None:
    folders = moe_modes.folders_of(
        [("file", written(tmp_path / "tuned", 32))], tmp_path / "no file"
    )
    assert list(folders) == ["no file", "file"]
    configs, found = moe_modes.MoeConfigs(), []
    for folder in (None, *folders.values(), None):
        configs.use(folder)
        launch(sglang)
        launch(sglang)
        (one,) = configs.taken()
        found.append(one["config"].get("BLOCK_SIZE_N"))
    assert found == [256, None, 32, 256]


def test_files_that_sglang_does_not_read_end_the_run(sglang: ModuleType, tmp_path: Path) -> None:
    folder = written(tmp_path / "tuned", 32)
    (folder / NAME).rename(folder / NAME.parent / "E=128,N=768,device_name=NVIDIA_L4.json")
    configs = moe_modes.MoeConfigs()
    configs.use(folder)
    launch(sglang)
    with pytest.raises(SystemExit, match="which no file below"):
        configs.taken()


def test_without_files_of_ours_there_is_no_mode_of_them(tmp_path: Path) -> None:
    assert moe_modes.folders_of([], tmp_path / "no file") == {}


def test_a_folder_can_have_a_name_and_must_have_configs(tmp_path: Path) -> None:
    folder = written(tmp_path / "tuned", 32)
    assert moe_modes.named_folder(str(folder)) == ("file", folder)
    assert moe_modes.named_folder(f"two={folder}") == ("two", folder)
    with pytest.raises(argparse.ArgumentTypeError, match="has no configs"):
        moe_modes.named_folder(str(tmp_path / "other"))


def test_a_step_gains_what_the_kernel_s_share_lets_it() -> None:
    assert moe_modes.implied(1000.0, 500.0, 400.0) == pytest.approx(1000 / 900)
    assert moe_modes.implied(1000.0, 500.0, 500.0) == 1.0
    assert moe_modes.implied(1000.0, 500.0, 600.0) < 1.0


def kernels(us: float) -> dict[str, Any]:
    return {"kinds": {moe_modes.KIND: {"us": us}, "attention": {"us": 100.0}}}


def test_measured_gains_stand_beside_those_of_the_profile_and_of_the_record(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "tuned"
    folder.mkdir()
    rows = [{"tokens": 64, "over": {"sglang": 1.25}}]
    (folder / moe_modes.RECORDED).write_text(json.dumps({"rows": rows}), "utf-8")
    modes = [Mode("sglang"), Mode("no file", configs=tmp_path), Mode("file", configs=folder)]
    pairs = moe_modes.pairs_of(modes)
    assert pairs == [("no file", "sglang"), ("file", "sglang"), ("file", "no file")]
    case = {
        "us": {"sglang": 1000.0, "no file": 1060.0, "file": 950.0},
        "kernels": {"sglang": kernels(500.0), "no file": kernels(560.0), "file": kernels(450.0)},
    }
    measured = {pair: {"median": 1.05, "interval": [1.04, 1.06]} for pair in pairs}
    over_none, file, file_over_none = moe_modes.gains(modes, measured, case, 64)
    assert (file["share"], file["implied"]) == (0.5, 1.0526)
    assert (file["recorded"], file["implied_by_record"]) == (1.25, 1.1111)
    assert file_over_none["implied"] == round(1060 / 950, 4)
    assert "recorded" not in file_over_none
    assert over_none["implied"] < 1.0


FLEET: dict[str, Any] = {
    "commit": "0123456789ab",
    "columns": 768,
    "two": True,
    "seed": 0,
    "rows": [
        {
            "tokens": 16,
            "config": {**CONFIG, "down_BLOCK_SIZE_N": 32, "down_num_stages": 2},
            "over_engine": [1.03, 1.02, 1.04],
            "over_default": [1.05, 1.04, 1.06],
        },
        {"tokens": 64, "config": None, "over_engine": [1.0, 1.0, 1.0]},
    ],
}


def test_a_fleet_s_configs_are_read_back_out_of_its_result() -> None:
    found = fused_moe_file.tables_of(FLEET)
    assert found.own == {16: CONFIG}
    assert found.down == {16: {**CONFIG, "BLOCK_SIZE_N": 32, "num_stages": 2}}
    assert list(found.undecided) == [64]


def test_what_a_fleet_recorded_is_kept_by_the_names_of_the_modes() -> None:
    found = fused_moe_file.recorded(FLEET)
    assert found["rows"] == [{"tokens": 16, "over": {"sglang": 1.03, "no file": 1.05}}]
    assert found["commit"] == "0123456789ab"


def test_a_fleet_that_was_not_made_is_said_to_be_missing() -> None:
    assert fused_moe_file.fleet_of({"fleets": [FLEET]}, 768, 0, two=True) == FLEET
    with pytest.raises(SystemExit, match="192 columns, seed 0"):
        fused_moe_file.fleet_of({"fleets": [FLEET]}, 192, 0, two=False)


BLOCKS = "dtype=fp8_w8a8,block_shape=[128, 128]"


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        (768, "E=128,N=768,device_name=NVIDIA_H200.json"),
        (192, "E=128,N=192,device_name=NVIDIA_H200.json"),
        (256, f"E=256,N=256,device_name=NVIDIA_H200,{BLOCKS}.json"),
        (2048, f"E=32,N=2048,device_name=NVIDIA_H200,{BLOCKS}.json"),
    ],
)
def test_a_file_is_named_for_the_slice_that_its_fleet_was_of(columns: int, name: str) -> None:
    key = fused_moe_file.key_of({"columns": columns})
    assert file_name(key, "sglang", "NVIDIA H200") == name


def test_what_a_fleet_says_of_its_slice_is_believed() -> None:
    said = {"columns": 256, "experts": 257, "weights": "bf16"}
    assert fused_moe_file.key_of(said) == MoeKey(257, 256)


def write_again(folder: Path, fleet: dict[str, Any], *words: str) -> Path:
    """Write the files of a result with one fleet; give their folder."""
    environment = {"device": "NVIDIA H200", "compiler": "Python 3.12.3, triton 3.6.0"}
    result, made = folder / "fused_moe.json", folder / "to"
    result.write_text(json.dumps({"fleets": [fleet], "environment": environment}), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fused_moe_file.py", str(result), "--to", str(made), *words])
        fused_moe_file.main()
    return made


# Of a number of tokens without a config SGLang would be asked.
DECIDED = {**FLEET, "rows": FLEET["rows"][:1]}


def test_the_files_of_local_experts_in_fp8_are_written(tmp_path: Path) -> None:
    made = write_again(tmp_path, {**DECIDED, "columns": 2048}, "--columns", "2048", "--two")
    name = f"E=32,N=2048,device_name=NVIDIA_H200,{BLOCKS}"
    assert json.loads((made / NAME.parent / f"{name}.json").read_text("utf-8")) == {"16": CONFIG}
    assert (made / NAME.parent / f"{name}_down.json").exists()


def test_the_files_and_what_was_recorded_of_them_lie_in_one_folder(tmp_path: Path) -> None:
    write_again(tmp_path, DECIDED, "--two")
    assert json.loads((tmp_path / "to" / NAME).read_text("utf-8")) == {"16": CONFIG}
    assert (tmp_path / "to" / NAME).with_stem(f"{NAME.stem}_down").exists()
    assert moe_modes.named_folder(str(tmp_path / "to"))[1] == tmp_path / "to"
    assert moe_modes.recorded_gains(tmp_path / "to") == {16: {"sglang": 1.03, "no file": 1.05}}
