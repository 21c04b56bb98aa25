"""From sessions of engines' Triton kernels to the files that these engines read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import operator_sessions
import pytest
from callable_project import FOLDER, SPACE
from click.testing import CliRunner
from dispatch_sample import ENVIRONMENT
from operator_sessions import choices, write_operator_session, write_session_of

from tuner.cli import cli
from tuner.extensions.engines.configs import winners
from tuner.extensions.engines.configs.files import CONFIG_KEYS, Engine, Key
from tuner.extensions.engines.configs.used import UsedConfig, UsedConfigs
from tuner.extensions.engines.configs.winners import configs_of
from tuner.model.errors import SessionError, WorkerError
from tuner.session.session import Session


def session_of(folder: Path, kernel: str, **chosen: str) -> Path:
    return write_operator_session(folder / "s", kernel, {**choices(kernel)[0], **chosen})


def exported(session: Path, to: Path, form: str, *words: str) -> tuple[int, str, str]:
    command = ["export", str(session), "--format", form, "--to", str(to), *words]
    done = CliRunner().invoke(cli, command, prog_name="tune")
    return done.exit_code, done.stdout, done.stderr


def test_a_session_of_fused_moe_becomes_sglang_s_file(tmp_path: Path) -> None:
    session = session_of(tmp_path, "fused_moe")
    code, said, notes = exported(session, tmp_path / "to", "sglang-configs", "--triton", "3.6.0")
    assert code == 0, notes
    (path,) = (tmp_path / "to").rglob("*.json")
    first, last = said.splitlines()
    assert first == str(path)
    assert last == "SGLang is not installed here: not checked by its own loader"
    assert path.parent.relative_to(tmp_path / "to") == Path("configs/triton_3_6_0")
    table = json.loads(path.read_text())
    ((tokens, config),) = table.items()
    assert int(tokens) >= 1
    assert list(config) == list(CONFIG_KEYS)
    assert "left out" in notes  # the other workloads of a made-up session


@pytest.mark.parametrize(
    ("kernel", "chosen"),
    [("fused_moe_block32", {}), ("w8a8_block_fp8", {"SCALES": "block32"})],
)
def test_of_scales_for_32_the_file_has_the_steps_that_were_launched(
    tmp_path: Path, kernel: str, chosen: dict[str, str]
) -> None:
    session = session_of(tmp_path, kernel, **chosen)
    files = configs_of([session], "sglang", "3.6.0").files
    for name, text in files.items():
        assert name.name.endswith("dtype=fp8_w8a8,block_shape=[32, 32].json")
        assert {row["BLOCK_SIZE_K"] for row in json.loads(text).values()} == {32}
    assert files


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_sessions_the_config_that_gains_more_is_written(tmp_path: Path, first: int) -> None:
    sessions = []
    for name, less in (("slow", 1.0), ("fast", 0.9)):
        sessions.append(session_of(tmp_path / name, "fused_moe"))
        with sqlite3.connect(sessions[-1] / "session.db") as store:
            found = store.execute("select id, content from records where kind = 'comparison'")
            for number, text in found.fetchall():
                content = json.loads(text)
                content["rounds"] = [
                    [row[0], *(us * less for us in row[1:])] for row in content["rounds"]
                ]
                store.execute(
                    "update records set content = ? where id = ?", (json.dumps(content), number)
                )
    given = [sessions[first], sessions[1 - first]]
    made = configs_of(given, "sglang", "3.6.0")
    (table,) = made.tables.values()
    ((speedup, session),) = table.proved.values()
    assert session == sessions[1]
    assert speedup > 1.0
    (note,) = (one for one in made.notes if "gains more than" in one)
    assert note.endswith(f"of {sessions[1]}, where it gains more than that of {sessions[0]}")


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_one_config_for_both_products_is_not_mixed_with_two(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    sessions = [session_of(tmp_path / name, "fused_moe", CONFIGS=name) for name in order]
    with pytest.raises(SessionError, match="CONFIGS=one and with CONFIGS=two apart"):
        configs_of(sessions, "sglang", "3.6.0")


def test_another_kernel_s_win_takes_no_config_from_a_file(tmp_path: Path) -> None:
    own, other = (session_of(tmp_path / name, "fused_moe") for name in ("own", "other"))
    with Session.open(other) as session:
        session.add_candidate("r1", "", "", parent="initial")
    with sqlite3.connect(other / "session.db") as store:
        found = store.execute("select id, content from records where kind = 'comparison'")
        ((number, text),) = found.fetchall()
        content = json.loads(text)
        content["finalists"][0]["candidate"] = "r1"
        changed = json.dumps(content), number
        store.execute("update records set content = ? where id = ?", changed)
    for given in ([own, other], [other, own]):
        made = configs_of(given, "sglang", "3.6.0")
        (table,) = made.tables.values()
        assert [session for _, session in table.proved.values()] == [own]
        assert not table.proved.keys() & table.undecided.keys()


def test_what_one_triton_measured_is_no_file_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = {"compiler": "Python 3.12.3, torch 2.11.0, triton 3.5.1, sglang 0.5.17"}
    monkeypatch.setattr(operator_sessions, "ENVIRONMENT", {**ENVIRONMENT, **compiler})
    session = session_of(tmp_path, "w8a8_block_fp8")
    code, _, told = exported(session, tmp_path / "to", "sglang-configs", "--triton", "3.6.0")
    assert code == 2
    assert "was measured with Triton 3.5.1, and the files are for 3.6.0" in told
    assert exported(session, tmp_path / "to", "sglang-configs", "--triton", "3.5.1")[0] == 0


def test_a_config_of_its_own_for_down_has_a_file_of_its_own(tmp_path: Path) -> None:
    session = session_of(tmp_path, "fused_moe", CONFIGS="two")
    assert exported(session, tmp_path / "to", "sglang-configs", "--triton", "3.6.0")[0] == 0
    names = sorted(path.name for path in (tmp_path / "to").rglob("*.json"))
    assert len(names) == 2
    assert names[1] == names[0].replace(".json", "_down.json")


def test_a_session_of_the_block_product_becomes_a_file_by_n_and_k(tmp_path: Path) -> None:
    session = session_of(tmp_path, "w8a8_block_fp8")
    for form, block in (("sglang-configs", "[128, 128]"), ("vllm-configs", "[128,128]")):
        code, said, notes = exported(session, tmp_path / form, form, "--triton", "3.6.0")
        assert code == 0, notes
        assert f"block_shape={block}.json" in said


@pytest.mark.parametrize(
    ("operators", "said"),
    [({"PART": "down"}, "has tuned down alone"), ({}, "name the engine's: --triton 3.6.0")],
)
def test_what_no_file_can_serve_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operators: dict[str, str], said: str
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    session = session_of(tmp_path, "fused_moe", **operators)
    words = ("--triton", "3.6.0") if operators else ()
    code, _, told = exported(session, tmp_path / "to", "sglang-configs", *words)
    assert code != 0
    assert said in told
    assert not (tmp_path / "to").exists()


def test_another_kernel_has_no_file_in_an_engine(tmp_path: Path) -> None:
    session = write_session_of(tmp_path / "s", FOLDER / SPACE, {})
    code, _, told = exported(session, tmp_path / "to", "vllm-configs", "--triton", "3.6.0")
    assert code != 0
    assert "no engine takes configs of it" in told


@pytest.mark.parametrize("form", ["cpp", "torch", "sglang", "kernels", "flashinfer-trace"])
def test_a_python_kernel_has_no_cuda_to_export(tmp_path: Path, form: str) -> None:
    session = write_session_of(tmp_path / "s", FOLDER / SPACE, {})
    code, _, told = exported(session, tmp_path / "to", form)
    assert code != 0
    assert "there is no CUDA to export" in told
    assert "sglang-configs" in told


OWN = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}


def answer(**given: object) -> Callable[..., UsedConfigs]:
    """Make an engine that answers every number of tokens with one config."""
    row = {"config": OWN, "down": None, "differences": (), **given}

    def used(key: Key, engine: Engine, *_: object, tokens: Sequence[int], **__: object) -> object:
        rows = tuple(UsedConfig(one, **row) for one in tokens)
        return UsedConfigs(engine, "0.5.17", "3.6.0", None, None, rows, ())

    return used


def settled(
    session: Path, monkeypatch: pytest.MonkeyPatch, used: Callable[..., object]
) -> tuple[dict[str, dict[str, int]], str]:
    """Export a session where that engine is, and give the file of Qwen3 with what is said."""
    monkeypatch.setattr(winners, "used_configs", used)
    made = configs_of([session], "sglang", "3.6.0", python=("python",))
    found = [path for path in made.files if path.name.startswith("E=128,N=768,")]
    return json.loads(made.files[found[0]]) if found else {}, "\n".join(made.notes)


def test_the_engine_s_own_config_serves_where_no_other_is_proved_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(tmp_path, "fused_moe")
    table, said = settled(session, monkeypatch, answer())
    assert table["16"] == {**OWN, "num_warps": 4, "num_stages": 3}
    assert "E=128,N=768,device_name=NVIDIA_H200.json: 16 tokens have SGLang's own" in said


def test_what_one_session_has_proved_another_that_has_not_leaves_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = choices("fused_moe")[0]
    # Of each the largest workload was compared: 4,096 tokens in one, 256 in the other.
    all_sizes = write_operator_session(tmp_path / "all", "fused_moe", own, 640 << 20)
    few = write_operator_session(tmp_path / "few", "fused_moe", own, 330 << 20)
    monkeypatch.setattr(winners, "used_configs", answer())
    told = []
    for sessions in ([all_sizes, few], [few, all_sizes]):
        made = configs_of(sessions, "sglang", "3.6.0", python=("python",))
        (file,) = (path for path in made.files if path.name.startswith("E=128,N=192,"))
        told.append(json.loads(made.files[file]))
    assert told[0] == told[1]
    assert told[0]["256"]["BLOCK_SIZE_M"] == 64, "the default, which won"
    assert told[0]["16"]["BLOCK_SIZE_M"] == 16, "the engine's"


@pytest.mark.parametrize(
    "given",
    [
        {"config": {**OWN, "USE_TMA": True}},  # what a file of ours does not say
        {"down": {**OWN, "GROUP_SIZE_M": 8}},  # the second product has a config of its own
    ],
)
def test_what_one_file_cannot_say_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, object]
) -> None:
    table, said = settled(session_of(tmp_path, "fused_moe"), monkeypatch, answer(**given))
    assert "16" not in table
    assert "16 tokens are left out, a neighbour's config serves: nothing was compared" in said


def test_the_second_product_s_own_config_goes_into_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(tmp_path, "fused_moe", CONFIGS="two")
    other = {**OWN, "GROUP_SIZE_M": 8}
    monkeypatch.setattr(winners, "used_configs", answer(down=other))
    made = configs_of([session], "sglang", "3.6.0", python=("python",))
    (down,) = (p for p in made.files if p.name == "E=128,N=768,device_name=NVIDIA_H200_down.json")
    assert json.loads(made.files[down])["16"]["GROUP_SIZE_M"] == 8


def test_an_engine_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def used(*_: object, **__: object) -> object:
        raise WorkerError("SGLang gave no answer")

    _, said = settled(session_of(tmp_path, "fused_moe"), monkeypatch, used)
    assert "SGLang gave no answer" in said
    assert "are left out" in said
