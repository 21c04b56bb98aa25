"""`tune knowledge`: list, forget, merge."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tuner.cli.knowledge_command import command
from tuner.model.config import Config
from tuner.model.errors import InputError, SessionError
from tuner.model.kernel import Workload
from tuner.model.trial import Measurement, Status, Trial
from tuner.session.database import find_store
from tuner.session.knowledge import KnowledgeStore, PastConfig, PastSearch, PastWorkload


def knowledge(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)


def past(kernel: str, device: str = "NVIDIA H200", time_us: float = 2.0, **changes) -> PastSearch:
    config = PastConfig(Config.of({"block": 64}), Status.CORRECT, time_us)
    fields = {
        "operators": {"ACTIVATION": "silu"},
        "architecture": "sm_90a",
        "candidate": "initial",
        "template_sha": "t",
        "parameters": ("block",),
        "tuner_version": "0",
        "created": "2026-11-20T10:00:00+00:00",
        "state": "complete",
        "workloads": (PastWorkload(Workload((("N", 1000),)), 9.0, (config,)),),
    }
    return PastSearch(kernel=kernel, device=device, **{**fields, **changes})


@pytest.fixture
def filled(tmp_path: Path):
    """Make a store in a file of a name, of these searches."""

    def make(name: str, *known: PastSearch) -> Path:
        place = find_store(str(tmp_path / name), {})
        assert place is not None
        KnowledgeStore(place).add(known)
        return tmp_path / name

    return make


def test_a_list_has_a_line_for_each_kernel_and_device(filled) -> None:
    path = filled(
        "a.db",
        past("silu", created="2026-11-19"),
        past("silu"),
        past("silu", "NVIDIA A100", operators={}),
    )
    result = knowledge("list", "--store", path)
    assert result.output.splitlines() == [
        f"store {path}",
        "kernel                device       searches  workloads  best speedup  last run",
        "silu                  NVIDIA A100  1         1          4.50x         2026-11-20",
        "silu ACTIVATION=silu  NVIDIA H200  2         1          4.50x         2026-11-20",
    ]


def test_a_list_as_json(filled) -> None:
    path = filled("a.db", past("silu"))
    told = json.loads(knowledge("list", "--json", "--store", path).output)
    assert told["store"] == str(path)
    (kernel,) = told["kernels"]
    assert kernel["kernel"] == "silu"
    assert kernel["speedup"] == 4.5
    assert set(kernel) == {
        *("kernel", "operators", "device", "searches", "workloads", "configs", "speedup", "last")
    }


def test_an_empty_store_is_none_yet(tmp_path: Path) -> None:
    result = knowledge("list", "--store", tmp_path / "new.db")
    assert "nothing is known yet" in result.output
    assert not (tmp_path / "new.db").exists()


def test_a_kernel_is_forgotten(filled) -> None:
    path = filled("a.db", past("silu"), past("silu", "NVIDIA A100"), past("norm"))
    result = knowledge("forget", "silu", "--device", "NVIDIA A100", "--store", path)
    assert result.output == "forgotten: 1 search of silu\n"
    assert "forgotten: 1 search of silu" in knowledge("forget", "silu", "--store", path).output
    with pytest.raises(InputError, match="nothing is known of silu"):
        knowledge("forget", "silu", "--store", path)
    with pytest.raises(InputError, match="nothing is known of norm on X"):
        knowledge("forget", "norm", "--device", "X", "--store", path)


def test_another_store_is_merged_once(filled) -> None:
    own, other = filled("a.db", past("silu")), filled("b.db", past("silu"), past("norm"))
    assert knowledge("merge", other, "--store", own).output == f"added: 1 search from {other}\n"
    assert knowledge("merge", other, "--store", own).output == f"added: 0 searches from {other}\n"


def test_a_merge_needs_another_store_that_is_there(filled, tmp_path: Path) -> None:
    own = filled("a.db", past("silu"))
    with pytest.raises(InputError, match="there is no store"):
        knowledge("merge", tmp_path / "b.db", "--store", own)
    with pytest.raises(InputError, match="is the store itself"):
        knowledge("merge", own, "--store", own)
    with pytest.raises(InputError, match="there is no store: it is `none`"):
        knowledge("merge", "none", "--store", own)


def test_a_session_is_added_once(make_plan, make_session, tmp_path: Path) -> None:
    with make_session(make_plan()) as session:
        session.add_candidate("initial", "template", "space")
        measurement = Measurement((1.0,) * 3, 20, 4)
        config, workload = Config.of({"block": 64, "items": 1}), Workload((("N", 1000),))
        session.record(Trial("initial", workload, config, Status.CORRECT, measurement=measurement))
        folder = session.directory
    path = tmp_path / "a.db"
    with pytest.raises(SessionError, match="does not say what its times are of"):
        knowledge("add", folder, "--store", path)
    with closing(sqlite3.connect(folder / "session.db")) as raw, raw:
        known = json.dumps({"device": "NVIDIA H200", "architecture": "sm_90a"})
        raw.execute("UPDATE session SET environment = ?", (known,))
    assert knowledge("add", folder, "--store", path).output == f"added: 1 search to {path}\n"
    assert knowledge("add", folder, "--store", path).output == f"added: 0 searches to {path}\n"
    with pytest.raises(SessionError, match="no such session"):
        knowledge("add", tmp_path / "nowhere", "--store", path)


def test_the_environment_names_the_store(filled, monkeypatch) -> None:
    monkeypatch.setenv("TUNE_STORE", str(filled("a.db", past("silu"))))
    assert "silu" in knowledge("list").output
    monkeypatch.setenv("TUNE_STORE", "none")
    with pytest.raises(InputError, match="there is no store"):
        knowledge("list")
