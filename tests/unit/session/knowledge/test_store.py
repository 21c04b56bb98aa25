"""Where the store of past searches is, what comes back, what is refused, several runs at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.model.config import Config
from tuner.model.errors import InputError
from tuner.session.database import StoreError, find_store, without_password
from tuner.session.knowledge import KnowledgeStore


def test_without_a_word_it_is_a_file_of_the_users_own(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    place = find_store(None, {})
    assert (place.file, place.explicit) == (tmp_path / "kernel-tune/knowledge.sqlite", False)
    assert not place.file.parent.exists(), "asking makes nothing"


@pytest.mark.parametrize(
    ("option", "variable", "name"),
    [
        (None, "{}/a b?.db", "a b?.db"),
        ("{}/own.db", "none", "own.db"),
        ("sqlite:///{}/x.db", "", "x.db"),
    ],
)
def test_the_option_comes_before_the_environment(tmp_path: Path, option, variable, name) -> None:
    environment = {"TUNE_STORE": variable.format(tmp_path)}
    place = find_store(option and option.format(tmp_path), environment)
    assert (place.file, place.explicit) == (tmp_path / name, option is not None)
    assert str(place) == str(tmp_path / name)


@pytest.mark.parametrize(
    ("option", "variable"), [("none", "x.db"), (None, "none"), (None, " none ")]
)
def test_none_is_no_store(option, variable) -> None:
    assert find_store(option, {"TUNE_STORE": variable}) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--store is empty"),
        ("  ", "--store is empty"),
        ("://", "is no database URL"),
        ("postgresql://host:port/x", "is no database URL"),
        ("oracel://host/x", "knows no database 'oracel'"),
        ("mysql+nothing://host/x", "knows no database 'mysql+nothing'"),
        ("mysql://host/x", "knows no database 'mysql'"),
        ("postgresql+psycopg2://host/x", "knows no database 'postgresql+psycopg2'"),
        ("sqlite://", "keeps nothing"),
        ("sqlite:///:memory:", "keeps nothing"),
    ],
)
def test_what_names_no_database_is_refused_with_a_remedy(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        find_store(text, {})
    assert said in caught.value.message
    assert caught.value.remedy


def test_the_environment_is_named_where_it_is_wrong() -> None:
    with pytest.raises(InputError, match="TUNE_STORE: tune knows no database 'oracel'"):
        find_store(None, {"TUNE_STORE": "oracel://x/y"})


def test_a_password_is_never_shown() -> None:
    assert without_password("postgresql://me:secret@host/db") == "postgresql://me:***@host/db"
    assert "secret" not in without_password("postgresql://me:secret@host:port/db")
    assert "secret" not in without_password("postgresql://me@host/db?password=secret")
    assert without_password("knowledge.db") == "knowledge.db"
    with pytest.raises(InputError) as caught:
        find_store("oracel://me:secret@host/db", {})
    assert "secret" not in str(caught.value)


def test_a_server_may_be_named_as_libpq_names_it() -> None:
    pytest.importorskip("psycopg")
    names = [str(find_store(f"{scheme}://me@host/db", {})) for scheme in ("postgres", "postgresql")]
    assert names[0] == names[1]


def named(path: Path) -> KnowledgeStore:
    return KnowledgeStore(find_store(str(path), {}))


def of_environment(path: Path) -> KnowledgeStore:
    return KnowledgeStore(find_store(None, {"TUNE_STORE": str(path)}))


def test_what_is_added_comes_back_oldest_first(store, make_search) -> None:
    first = make_search({32: 5.0, 64: None}, operators={"ACTIVATION": "silu"})
    second = make_search({128: 1.0}, created="2026-01-02T00:00:00+00:00", baseline_us=None)
    assert store.add([second, first]) == 2
    assert store.searches("scale") == [first, second]
    assert store.searches() == [first, second]
    assert store.searches("other") == []


def test_the_newest_are_read_and_each_is_kept_once(store, make_search) -> None:
    days = [make_search({32: 1.0}, created=f"2026-01-{day:02}") for day in range(1, 10)]
    assert store.add(days) == 9
    assert store.add([days[0], days[0]]) == 0
    assert store.searches("scale", most=2) == days[-2:]
    assert len(store.searches()) == 9


def test_asking_makes_no_file(store) -> None:
    store.check()
    assert store.searches("scale") == []
    assert store.forget("scale") == 0
    assert not store.location.file.exists()


def test_a_kernel_is_forgotten_on_one_device_or_all(store, make_search) -> None:
    store.add(
        [
            make_search({32: 1.0}),
            make_search({32: 1.0}, device="NVIDIA A100"),
            make_search({32: 1.0}, kernel="other"),
        ]
    )
    assert store.forget("scale", "NVIDIA A100") == 1
    assert [one.device for one in store.searches("scale")] == ["NVIDIA H200"]
    assert store.forget("scale") == 1
    assert [one.kernel for one in store.searches()] == ["other"]
    with closing(sqlite3.connect(store.location.file)) as raw:
        assert raw.execute("SELECT kernel, device FROM tune_knowledge").fetchall() == [
            ("other", "NVIDIA H200")
        ]


def spoil(store: KnowledgeStore, content: object) -> None:
    """Overwrite the first search, as whoever may write the file can."""
    with closing(sqlite3.connect(store.location.file)) as raw, raw:
        raw.execute("UPDATE tune_knowledge SET content = ? WHERE id = 1", (content,))


CONFIG = {"config": {"items_": [["block", 64]]}, "status": "correct", "time_us": 2.0}
WORKLOAD = {
    "workload": {"axes": [["N", 1000]], "held_out": False},
    "baseline_us": 9.0,
    "configs": [CONFIG],
}


@pytest.mark.parametrize(
    "changes",
    [
        {"operators": []},
        {"operators": {"A": 1}},
        {"parameters": 7},
        {"device": "\x1b[2J H200"},
        {"workloads": [7]},
        *(
            {"workloads": [WORKLOAD | {"workload": {"axes": axes, "held_out": False}}]}
            for axes in ("", [], [["N", 0]], [["N", -5]], [["N", True]], [["N", 1.5]])
        ),
        *({"workloads": [WORKLOAD | {"baseline_us": us}]} for us in (0.0, -1.0, "9", float("nan"))),
        *(
            {"workloads": [WORKLOAD | {"configs": [CONFIG | changes]}]}
            for changes in [
                *(
                    {"config": {"items_": items}}
                    for items in ("[", None, {}, [], [["block"]], [[1, 2]], [["block", None]])
                ),
                *({"time_us": us} for us in (0.0, -1.0, None, float("inf"), "fast")),
                *({"status": status} for status in ("best", "", "timeout", None)),
            ]
        ),
    ],
)
def test_a_search_that_makes_no_sense_is_left_out(store, make_search, changes) -> None:
    store.add([make_search({32: 1.0}), make_search({64: 2.0})])
    known = json.loads(store.searches()[0].json) | {"workloads": [WORKLOAD]}
    spoil(store, json.dumps(known))
    assert len(store.searches("scale")) == 2
    spoil(store, json.dumps(known | changes))
    (other,) = store.searches("scale")
    assert [one.config["block"] for one in other.workloads[0].configs] == [64]


@pytest.mark.parametrize("content", ["", "[", "null", "[" * 9999, b"\xff", " " * 3_000_000, 7])
def test_content_that_is_no_search_is_left_out(store, make_search, content) -> None:
    store.add([make_search({32: 1.0})])
    spoil(store, content)
    assert store.searches("scale") == []


def add_many(path: str, start: int, made: list) -> None:
    store = named(Path(path))
    for one in made[start::4]:
        store.add([one])


def test_several_runs_add_at_once_and_nothing_is_lost(store, make_search) -> None:
    made = [make_search({32: 1.0 + n}) for n in range(20)]
    context = multiprocessing.get_context("fork")
    runs = [
        context.Process(target=add_many, args=(str(store.location.file), n, made)) for n in range(4)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [run.exitcode for run in runs] == [0] * 4
    assert {one.uid for one in store.searches()} == {one.uid for one in made}


def test_a_locked_store_is_told_after_a_while(store, make_search, monkeypatch) -> None:
    store.add([make_search({32: 1.0})])
    monkeypatch.setattr("tuner.session.database.BUSY_S", 0.05)
    impatient = named(store.location.file)
    with closing(sqlite3.connect(store.location.file)) as raw:
        raw.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="database is locked"):
            impatient.add([make_search({64: 1.0})])
        with pytest.raises(StoreError, match="database is locked"):
            impatient.searches("scale")
    assert len(impatient.searches("scale")) == 1


def test_a_damaged_store_is_told(store, make_search) -> None:
    store.add([make_search({32: 1.0 + n, 64: 2.0}) for n in range(50)])
    content = bytearray(store.location.file.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    store.location.file.write_bytes(content)
    with pytest.raises(StoreError, match="malformed") as caught:
        store.searches("scale")
    assert "move it away" in caught.value.remedy


def test_a_newer_store_is_left_alone(store, make_search) -> None:
    store.add([make_search({32: 1.0})])
    with closing(sqlite3.connect(store.location.file)) as raw, raw:
        raw.execute("UPDATE tune_knowledge SET version = 2")
    with pytest.raises(StoreError, match="has schema 2, this version of tune knows 1") as caught:
        store.searches("scale")
    assert "pip install --upgrade kernel-tune" in caught.value.remedy
    with pytest.raises(StoreError):
        store.add([make_search({64: 1.0})])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_cannot_be_written_can_be_read(store, make_search) -> None:
    store.add([make_search({32: 1.0})])
    store.location.file.chmod(0o400)
    with pytest.raises(StoreError, match="readonly"):
        store.add([make_search({64: 1.0})])
    assert len(store.searches("scale")) == 1


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, make_search) -> None:
    text, other = tmp_path / "kernel.cu", tmp_path / "session.db"
    text.write_text("__global__ void f() {}\n" * 99)
    with closing(sqlite3.connect(other)) as raw, raw:
        raw.execute("CREATE TABLE trials (id INTEGER)")
    for path, said in ((text, "is no SQLite database"), (other, "is a database of something else")):
        before = path.read_bytes()
        for use in (KnowledgeStore.check, lambda store: store.add([make_search({32: 1.0})])):
            with pytest.raises(InputError, match=said) as caught:
                use(named(path))
            assert not isinstance(caught.value, StoreError)
        assert path.read_bytes() == before


def test_a_named_file_needs_its_folder(tmp_path: Path, make_search) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        named(tmp_path / "nowhere/x.db").check()
    with pytest.raises(InputError, match="is a folder"):
        named(tmp_path).check()
    store = of_environment(tmp_path / "new/x.db")
    assert store.add([make_search({32: 1.0})]) == 1, "one that nobody named is made"


def test_a_file_where_a_folder_should_be_is_a_failure(tmp_path: Path, make_search) -> None:
    (tmp_path / "file").write_text("")
    store = of_environment(tmp_path / "file/x.db")
    with pytest.raises(StoreError, match=r"exists|directory"):
        store.add([make_search({32: 1.0})])


def test_a_server_that_is_not_there_cannot_be_reached() -> None:
    pytest.importorskip("psycopg")
    place = find_store("postgresql+psycopg://me:secret@127.0.0.1:9/x", {})
    with pytest.raises(InputError, match="cannot be reached") as caught:
        KnowledgeStore(place).check()
    assert "secret" not in str(caught.value)
    assert "name another with --store" in str(caught.value)


def test_configs_keep_their_types(store, make_search) -> None:
    (past,) = make_search({32: 1.0}).workloads
    values = Config.of({"block": True, "items": 1, "rate": 1.0, "name": "1"})
    kept = replace(past, configs=(replace(past.configs[0], config=values),))
    store.add([make_search({}, workloads=(kept,))])
    (one,) = store.searches()[0].workloads[0].configs
    assert [type(value) for value in one.config.values()] == [bool, int, float, str]


ROOT = Path(__file__).parents[4]


def test_the_pages_table_is_what_was_measured_and_lies_cost_few_trials() -> None:
    page = (ROOT / "docs/knowledge.md").read_text(encoding="utf-8")
    found = json.loads((ROOT / "benchmarks/results/cpu/warm_start.json").read_text())
    for pair in found["pairs"]:
        names = [pair[which].replace(",", " ").replace("_", " ") for which in ("first", "second")]
        kinds = [pair[kind] for kind in ("cold", "warm", "poisoned")]
        trials = [f"{kind['mean_trials']:.1f}" for kind in kinds]
        shares = [f"{kind['share']:.3f}" for kind in kinds]
        assert f"| {' | '.join([*names, *trials, *shares])} |" in page
    (pair,) = [one for one in found["pairs"] if one["first"] == "T=1024,D=11008"]
    cold, warm, poisoned = (pair[kind]["mean_trials"] for kind in ("cold", "warm", "poisoned"))
    assert (pair["second"], warm < cold / 4) == ("T=1024,D=14336", True)
    assert poisoned <= cold + found["most_seeds"]
