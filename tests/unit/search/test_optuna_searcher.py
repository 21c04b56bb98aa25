"""The Optuna searcher learns from failures and keeps a journal that Optuna opens."""

from __future__ import annotations

import json
import logging
import resource
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from tuner.model.config import Config
from tuner.model.errors import SessionError
from tuner.search.journal import JournalFile
from tuner.search.optuna import OptunaSearcher
from tuner.search.pool import RemainingConfigs, valid_configs
from tuner.testing import searchers
from tuner.testing.searchers import make_space

SPACE = make_space({**dict.fromkeys("abcd", range(5)), "s": ("x", "y")})
POOL = valid_configs(SPACE, {})
_STUDY: dict[str, object] = {
    "op_code": 0,
    "worker_id": "w",
    "study_name": "tune",
    "directions": [1],
}
_TRIAL: dict[str, object] = {
    "op_code": 4,
    "worker_id": "w",
    "study_id": 0,
    "datetime_start": "2026-01-01T00:00:00",
    "datetime_complete": "2026-01-01T00:00:00",
    "state": 1,
    "value": 1.0,
    "distributions": {},
    "params": {},
}


def _lines(*rows: dict[str, object]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def _of_trial(**changed: object) -> str:
    return _lines(_STUDY, {**_TRIAL, **changed})


JOURNALS = {
    "another file": "{broken\n[]\n",
    "bytes": "\0" * 100 + "\n",
    "a list": "[]\n",
    "a number": "5\n",
    "nothing": "null\n",
    "no operation": "{}\n",
    "an unknown operation": _lines({**_STUDY, "op_code": 99}),
    "lists in lists": "[" * 100_000 + "]" * 100_000 + "\n",
    "two objectives": _lines({**_STUDY, "directions": [1, 1]}),
    "a maximum": _lines({**_STUDY, "directions": [2]}),
    "a state that is none": _of_trial(state=9),
    "a time that is none": _of_trial(datetime_start=5),
    "parameters in a list": _of_trial(params=[1]),
    "a parameter without a range": _of_trial(params={"a": 1}),
    "a range that is none": _of_trial(distributions={"a": '{"name": "Evil"}'}),
    "half a trial": _lines(_STUDY, {"op_code": 4, "worker_id": "w", "study_id": 0}),
    "20,000 studies": "".join(_lines({**_STUDY, "study_name": str(n)}) for n in range(20_000)),
}


def time_of(config: Config) -> float | None:
    return None if config["s"] == "y" else 10.0 + sum(int(config[name]) for name in "abcd")


def drive(searcher: OptunaSearcher, limit: int) -> list[Config]:
    return searchers.drive(searcher, time_of, limit)


def open_study(path: Path, name: str) -> optuna.Study:
    return optuna.load_study(study_name=name, storage=JournalStorage(JournalFileBackend(str(path))))


class TestLearning:
    def test_it_turns_away_from_values_that_fail(self) -> None:
        for seed in range(3):
            asked = drive(OptunaSearcher(POOL, SPACE, seed), 80)
            assert sum(config["s"] == "y" for config in asked[40:]) <= 8

    def test_failures_never_count_as_good_however_few_configs_are_correct(self) -> None:
        def mostly_failing(config: Config) -> float | None:
            return 1.0 if (config["a"], config["b"]) == (0, 0) else None

        for seed in range(3):
            searcher = OptunaSearcher(POOL, SPACE, seed, seeds=[POOL[0]])
            asked = searchers.drive(searcher, mostly_failing, 100)
            found = sum(mostly_failing(config) is not None for config in asked)
            assert found >= 25, "50 of 1250 are correct: random search finds 4"

    def test_outstanding_configs_spread_out(self) -> None:
        searcher = OptunaSearcher(POOL, SPACE, 0)
        drive(searcher, 40)
        assert len(set(searcher.ask(16))) == 16


class TestSnapping:
    def test_the_fewest_differing_parameters_win_then_the_fewest_steps(self) -> None:
        pool = valid_configs(make_space({"a": (4, 1, 2), "b": (False, True)}), {})
        remaining = RemainingConfigs(pool)
        wish = pool.encoded[pool.index({"a": 1, "b": True})]
        order = [str(pool[remaining.take_nearest(wish)]) for _ in range(6)]
        assert order == [
            "a=1 b=true",
            "a=1 b=false",
            "a=2 b=true",
            "a=4 b=true",
            "a=2 b=false",
            "a=4 b=false",
        ]


class TestJournal:
    def test_every_told_trial_is_in_it_with_its_status(self, tmp_path: Path) -> None:
        path = tmp_path / "optuna.log"
        asked = drive(
            OptunaSearcher(POOL, SPACE, 0, journal=JournalFile(path), study_name="T=1"), 30
        )
        assert asked == drive(OptunaSearcher(POOL, SPACE, 0), 30), "it changes nothing"
        trials = open_study(path, "T=1").trials
        assert [trial.params for trial in trials] == [dict(config) for config in asked]
        for trial, config in zip(trials, asked, strict=True):
            time_us = time_of(config)
            status = "resource_limit" if time_us is None else "correct"
            reason = "failed" if time_us is None else ""
            assert trial.user_attrs == {"status": status, "reason": reason}
            assert trial.values == (None if time_us is None else [time_us])

    def test_resuming_adds_only_what_is_new(self, tmp_path: Path) -> None:
        path = tmp_path / "optuna.log"
        first = drive(
            OptunaSearcher(POOL, SPACE, 0, journal=JournalFile(path), study_name="T=1"), 20
        )
        again = drive(
            OptunaSearcher(POOL, SPACE, 0, journal=JournalFile(path), study_name="T=1"), 32
        )
        assert again[:20] == first
        assert [t.params for t in open_study(path, "T=1").trials] == [dict(c) for c in again]

    def test_workloads_share_a_file_and_not_a_study(self, tmp_path: Path) -> None:
        path = tmp_path / "optuna.log"
        journal = JournalFile(path)
        for name, count in (("T=1", 5), ("T=16", 8)):
            drive(OptunaSearcher(POOL, SPACE, 0, journal=journal, study_name=name), count)
        assert [len(open_study(path, name).trials) for name in ("T=1", "T=16")] == [5, 8]

    def test_a_line_that_a_kill_cut_short_is_taken_back(self, tmp_path: Path) -> None:
        path = tmp_path / "optuna.log"
        drive(OptunaSearcher(POOL, SPACE, 0, journal=JournalFile(path)), 10)
        with path.open("a") as file:
            file.write('{"op_code":4,"wor')
        asked = drive(OptunaSearcher(POOL, SPACE, 0, journal=JournalFile(path)), 20)
        assert [t.params for t in open_study(path, "tune").trials] == [dict(c) for c in asked]

    def test_a_full_disk_is_an_error_with_the_command_that_goes_on(self, tmp_path: Path) -> None:
        path = tmp_path / "optuna.log"
        drive(OptunaSearcher(POOL, SPACE, 0, journal=JournalFile(path)), 10)
        room = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, room[1]))
        try:
            with pytest.raises(SessionError) as raised:
                drive(OptunaSearcher(POOL, SPACE, 0, journal=JournalFile(path)), 20)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, room)
        assert str(raised.value).startswith(
            f"{path}: cannot write Optuna's journal: File too large"
        )
        assert f"continue with `--resume {tmp_path}`" in str(raised.value)
        asked = drive(OptunaSearcher(POOL, SPACE, 0, journal=JournalFile(path)), 20)
        assert [t.params for t in open_study(path, "tune").trials] == [dict(c) for c in asked]

    @pytest.mark.parametrize("content", JOURNALS.values(), ids=JOURNALS)
    def test_what_no_run_writes_is_refused_with_its_path(
        self, tmp_path: Path, content: str
    ) -> None:
        path = tmp_path / "optuna.log"
        path.write_text(content)
        with pytest.raises(SessionError, match=r"optuna\.log.*not an Optuna journal: .") as raised:
            OptunaSearcher(POOL, SPACE, 0, journal=JournalFile(path))
        assert len(str(raised.value).splitlines()) == 2

    def test_a_huge_one_is_refused_unread(self, tmp_path: Path) -> None:
        path = tmp_path / "optuna.log"
        with path.open("wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(SessionError, match="over 67,108,864 bytes"):
            OptunaSearcher(POOL, SPACE, 0, journal=JournalFile(path))


class TestQuiet:
    def test_nothing_is_printed_and_the_users_logging_is_as_before(
        self, capfd: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        level = logging.getLogger("optuna").level
        drive(OptunaSearcher(POOL, SPACE, 0, journal=JournalFile(tmp_path / "optuna.log")), 12)
        assert capfd.readouterr() == ("", "")
        assert logging.getLogger("optuna").level == level
