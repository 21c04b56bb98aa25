"""A run and the store: seeds once, nothing on trust, and never in the way."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from tests.support.simulated_device import H200_LIKE, SimulatedDevice
from tuner.app.run import tune
from tuner.model.config import Config
from tuner.model.errors import InputError
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Measurement, Status, Trial
from tuner.session.database import ReadOnlyError, find_store
from tuner.session.events import WarmSeed, WarmStarted
from tuner.session.knowledge import KnowledgeStore
from tuner.tuning.evaluator import evaluator_of
from tuner.tuning.warm_start import MOST_SEEDS, Knowledge, open_knowledge, warm_seeds

SMALL, LARGE = Workload((("N", 1000),)), Workload((("N", 100000),))
BUDGETS = {SMALL: 100, LARGE: 100}


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def knowledge(store, warnings) -> Knowledge:
    return Knowledge(store, H200_LIKE, warnings.append)


@pytest.fixture
def plan(make_plan):
    return make_plan()


@pytest.fixture
def evaluator(plan, compiler):
    return evaluator_of(plan, compiler, SimulatedDevice(lambda program: 1.0))


@pytest.fixture
def session(plan, make_session):
    with make_session(plan) as made:
        made.add_candidate(INITIAL, plan.template.text, "space")
        made.environment = {"device": H200_LIKE.name, "architecture": H200_LIKE.architecture}
        yield made


def trial(block: int, time_us: float) -> Trial:
    config = Config.of({"block": block, "items": 1})
    measurement = Measurement((time_us,) * 3, 20, 4)
    return Trial(INITIAL, SMALL, config, Status.CORRECT, measurement=measurement)


def test_what_one_run_keeps_another_tries_first(
    knowledge, plan, session, evaluator, make_session, warnings
) -> None:
    session.record(trial(32, 2.0))
    session.record(trial(256, 1.0))
    assert knowledge.keep(session) == 1
    assert knowledge.keep(session) == 0, "nothing new"
    with make_session(plan, "another") as other:
        other.add_candidate(INITIAL, plan.template.text, "space")
        found = warm_seeds(knowledge, plan, other, evaluator, BUDGETS)
    assert [config["block"] for config in found[SMALL]] == [256, 32]
    assert found[LARGE] == found[SMALL], "the nearest shape"
    assert warnings == []


def test_a_resumed_session_starts_as_it_did_whatever_the_store_says_by_now(
    knowledge, plan, session, evaluator, store, make_search
) -> None:
    store.add([make_search({32: 1.0})])
    first = warm_seeds(knowledge, plan, session, evaluator, BUDGETS)
    store.add([make_search({64: 0.5})])
    session.record(trial(512, 1.0))
    assert warm_seeds(None, plan, session, evaluator, BUDGETS) == first
    assert warm_seeds(knowledge, plan, session, evaluator, BUDGETS) == first
    (started,) = session.events(WarmStarted)
    told = started.seeds["N=1000"]
    assert told == (WarmSeed({"block": 32, "items": 1}, "NVIDIA H200", "N=1000"),)
    warm_seeds(knowledge, replace(plan, candidate="r1"), session, evaluator, BUDGETS)
    candidates = [event.candidate for event in session.events(WarmStarted)]
    assert candidates == [INITIAL, "r1"], "each is asked for by itself"


def test_a_session_that_began_without_goes_on_without(
    knowledge, plan, session, evaluator, store, make_search
) -> None:
    session.record(trial(512, 1.0))
    store.add([make_search({32: 1.0})])
    assert warm_seeds(knowledge, plan, session, evaluator, BUDGETS) == {}


class WithBits(SimulatedDevice):
    """All configs have the same bits."""

    def run(self, program, **options):
        outcome = super().run(program, **options)
        return replace(outcome, correctness=replace(outcome.correctness, bits="bits"))


def test_a_run_that_keeps_bits_starts_from_it_too(
    knowledge, make_plan, make_session, compiler, listener, store, make_search
) -> None:
    store.add([make_search({32: 1.0})])
    plan = make_plan(keep_bits=True, trials=10)
    with make_session(plan) as session:
        of = {"session": session, "compiler": compiler, "listener": listener}
        tune(plan, **of, device=WithBits(lambda program: 10.0), knowledge=knowledge)
        (started,) = session.events(WarmStarted)
        assert started.seeds["N=1000"] == (
            WarmSeed({"block": 32, "items": 1}, "NVIDIA H200", "N=1000"),
        )


@pytest.mark.parametrize(("budget", "most"), [(1000, MOST_SEEDS), (30, 3), (9, 0)])
def test_a_few_trials_and_a_tenth_of_them_are_the_most_it_costs(
    knowledge, plan, session, evaluator, store, make_search, budget, most
) -> None:
    blocks = dict.fromkeys([32, 64, 128, 256, 512], 1.0)
    store.add([make_search(blocks, size=size) for size in (1000, 2000, 3000)])
    found = warm_seeds(knowledge, plan, session, evaluator, {SMALL: budget})
    assert len(found[SMALL]) == min(most, len(blocks))


def test_a_config_that_breaks_a_constraint_is_not_tried(
    knowledge, plan, session, evaluator, store, make_search
) -> None:
    known = make_search({512: 1.0, 64: 2.0})
    (past,) = known.workloads
    configs = tuple(
        replace(one, config=Config.of({**one.config, "items": 8})) for one in past.configs
    )
    store.add([replace(known, workloads=(replace(past, configs=configs),))])
    found = warm_seeds(knowledge, plan, session, evaluator, {SMALL: 100})
    assert [config["block"] for config in found[SMALL]] == [64], "512 * 8 is over 2048"


def broken(store: KnowledgeStore, make_search, how: str) -> None:
    store.add([make_search({32: 1.0})])
    path = store.location.file
    if how == "newer":
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.execute("UPDATE tune_knowledge SET version = 99")
    elif how == "damaged":
        path.write_bytes(path.read_bytes()[:4096] + b"\xa5" * 20_000)
    else:
        path.write_text("text\n" * 999)


@pytest.mark.parametrize("how", ["newer", "damaged", "something else"])
def test_a_store_that_fails_costs_a_warning_and_a_last_word(
    plan, session, evaluator, tmp_path, make_search, warnings, how
) -> None:
    store = KnowledgeStore(find_store(None, {"TUNE_STORE": str(tmp_path / "x.db")}))
    broken(store, make_search, how)
    knowledge = Knowledge(store, H200_LIKE, warnings.append)
    knowledge.check()
    assert not any(warm_seeds(knowledge, plan, session, evaluator, BUDGETS).values())
    session.record(trial(32, 1.0))
    assert knowledge.keep(session) == 0
    first, last = warnings
    assert first.startswith("the store of past runs is not used: ")
    assert last.startswith("what this run found is not in the store of past runs: ")
    assert f"`tune knowledge add {session.directory}`" in last


def test_one_that_was_named_and_cannot_be_right_is_refused_at_the_start(
    store, make_search, knowledge, warnings
) -> None:
    broken(store, make_search, "newer")
    knowledge.check()
    assert len(warnings) == 1
    store.location.file.write_text("text\n" * 999)
    with pytest.raises(InputError, match="is no SQLite database"):
        knowledge.check()


def test_a_store_that_can_only_be_read_is_refused_where_it_was_named_and_else_read(
    store, make_search, warnings, monkeypatch
) -> None:
    store.add([make_search({32: 1.0})])

    def prepare(raw: sqlite3.Connection, record: object) -> None:
        raw.isolation_level = None
        raw.execute("PRAGMA query_only = ON")

    monkeypatch.setattr("tuner.session.database._prepare", prepare)
    path = str(store.location.file)
    with pytest.raises(ReadOnlyError, match="readonly database"):
        Knowledge(KnowledgeStore(find_store(path, {})), H200_LIKE, warnings.append).check()
    own = KnowledgeStore(find_store(None, {"TUNE_STORE": path}))
    Knowledge(own, H200_LIKE, warnings.append).check()
    assert warnings == []
    assert len(own.searches()) == 1


@pytest.mark.parametrize(
    ("changes", "option", "used"),
    [
        ({}, None, True),
        ({}, "x.db", True),
        ({}, "none", False),
        ({"recorded": True}, None, False),
        ({"recorded": True}, "x.db", True),
        ({"on_cpu": True}, None, False),
        ({"on_cpu": True}, "x.db", False),
    ],
)
def test_a_gpu_has_a_store_a_recording_only_a_named_one_and_a_cpu_none(
    tmp_path, monkeypatch, warnings, changes, option, used
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"TUNE_STORE": str(tmp_path / "own.db")}
    info = replace(H200_LIKE, **changes)
    found = open_knowledge(option, environment, info, warnings.append)
    assert (found is not None) is used
    assert len(warnings) == (info.on_cpu and option is not None)


def test_a_run_may_do_without_a_server_that_does_not_answer(warnings) -> None:
    pytest.importorskip("psycopg")
    url = "postgresql://me:s3cret@127.0.0.1:9/tune"
    with pytest.raises(InputError, match="cannot be reached") as told:
        open_knowledge(url, {}, H200_LIKE, warnings.append)
    assert "or use --store none" in str(told.value)
