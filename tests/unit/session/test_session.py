"""A session keeps every record, through kills and resumes, and refuses what would spoil it."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from manifests import manifest

from tuner.model.config import Config
from tuner.model.errors import SessionError
from tuner.model.kernel import Workload
from tuner.model.trial import (
    INITIAL,
    Accuracy,
    Comparison,
    Correctness,
    Energy,
    EnergyWindow,
    Measurement,
    Occupancy,
    PeerTrial,
    Resources,
    Result,
    Status,
    Trial,
    Variant,
)
from tuner.session.records import from_row, to_row
from tuner.session.session import Baseline, CandidateRecord, Session
from tuner.session.store import SCHEMA_VERSION

SMALL = Workload.of({"T": 1, "D": 14336})
LARGE = Workload.of({"T": 8192, "D": 14336})
HELD_OUT = Workload.of({"T": 3, "D": 4096}, held_out=True)
MANIFEST = manifest(
    kernel="silu_and_mul",
    space_sha="a" * 64,
    template_sha="b" * 64,
    source_sha="c" * 64,
    device="recorded:NVIDIA H200",
    trials=100,
    seed=7,
    workloads=(SMALL, LARGE, HELD_OUT),
    operators={"ACTIVATION": "gelu_tanh"},
    command=("tune", "kernels/silu_and_mul.cu", "--trials", "100"),
    peers=("pytorch", "sgl-kernel"),
)
ENVIRONMENT = {"gpu": "NVIDIA H200", "driver": "580.1", "compiler": "NVRTC 13.5"}
CONFIG = Config.of({"vector_bytes": 16, "cache": "streaming", "pdl": True, "share": 0.5})
VARIANT = Variant(INITIAL, CONFIG)
MEASUREMENT = Measurement((10.25, 10.125, 9.0000001, 1 / 3), 20, 4, True, 1.25)
RESOURCES = Resources(40, 8, 4, 1024, 16, 2, "insufficient register resources", 48, 12, 512)
OCCUPANCY = Occupancy(0.75, 6, "registers")
CORRECTNESS = Correctness(
    False,
    ("normal", "x3"),
    (("out", 1.5), ("scale", float("inf"))),
    "out",
    "0f",
    accuracy=(("out", Accuracy(2.5, 40.0)),),
)
TRIAL = Trial(
    candidate="base",
    workload=HELD_OUT,
    config=CONFIG,
    status=Status.INCORRECT,
    reason="out differs from the reference",
    resources=RESOURCES,
    occupancy=OCCUPANCY,
    measurement=MEASUREMENT,
    correctness=CORRECTNESS,
    seconds=0.125,
    stage="finals",
)
WINDOW = EnergyWindow(3127.000244140625, 5.037193, 1 / 3, 384, False, 61, 1980, ("power limit",))
ENERGIES = [
    Energy(SMALL, "idle", EnergyWindow(551.25, 5.0), created="2026-11-20T17:00:00+00:00"),
    Energy(SMALL, "variant", WINDOW, Variant("r1", CONFIG), "2026-11-20T17:00:09+00:00"),
    # A program may be measured again.
    Energy(SMALL, "variant", WINDOW, Variant("r1", CONFIG)),
    Energy(LARGE, "variant", WINDOW, Variant(INITIAL, CONFIG)),
]
PEERS = [
    PeerTrial(SMALL, "pytorch", Status.CORRECT),
    PeerTrial(SMALL, "flashinfer", Status.INCORRECT, "out[0] is 1", "2026-11-20T18:00:00+00:00"),
    PeerTrial(HELD_OUT, "pytorch", Status.NOT_RECORDED, "No module named 'torch'"),
]
RESULT = Result(
    workload=LARGE,
    baseline_us=60.5,
    tuned_us=30.25,
    speedup=2.0,
    interval=(1.97, 2.03),
    paired=True,
    roofline_share=0.93,
    config=CONFIG,
    resources=RESOURCES,
    occupancy=OCCUPANCY,
    baseline_wins=True,
    isolated_us=31.0,
    candidate="r2",
    isolated_baseline_us=61.0,
    surroundings="decode",
    alone_us=33.0,
    alone_baseline_us=66.0,
)


def create(directory: Path) -> Session:
    session = Session.create(directory, MANIFEST, ENVIRONMENT)
    session.add_candidate("base", "__global__ ...", "version: 1")
    return session


def timed(index: int, workload: Workload = SMALL, status: Status = Status.CORRECT) -> Trial:
    measurement = Measurement((10.0 + index, 11.0 + index), 20, 4)
    return Trial("base", workload, Config.of({"n": index}), status, measurement=measurement)


def differs_in_every_field(record: object) -> bool:
    """Whether no field with a default has it, so that a forgotten one would be noticed."""
    return all(getattr(record, f.name) != f.default for f in fields(record))  # type: ignore[arg-type]


class TestRoundTrip:
    @pytest.mark.parametrize(
        ("changes", "environment"),
        [({}, ENVIRONMENT), ({"trials": None, "time_s": 300.0, "operators": {}}, {})],
    )
    def test_manifest_and_environment_come_back(
        self, tmp_path: Path, changes: dict[str, Any], environment: dict[str, str]
    ) -> None:
        made = replace(MANIFEST, config=replace(MANIFEST.config, **changes))
        Session.create(tmp_path, made, environment).close()
        with Session.open(tmp_path) as session:
            assert session.manifest == made
            assert [w.held_out for w in session.manifest.config.workloads] == [False, False, True]
            assert list(session.environment.items()) == list(environment.items())

    def test_every_field_of_a_trial_comes_back(self, tmp_path: Path) -> None:
        assert all(map(differs_in_every_field, (TRIAL, MEASUREMENT, CORRECTNESS, RESOURCES)))
        with create(tmp_path) as session:
            session.record(TRIAL)
        with Session.open(tmp_path) as session:
            (trial,) = session.trials(stage=None)
        assert trial == TRIAL
        assert trial.workload.held_out

    @pytest.mark.parametrize(
        ("changes", "refused"),
        [
            ({"alone_us": (1.0,)}, "not a time for each program"),
            ({"alone_us": (1.0, -1.0)}, "at alone_us.1: '-1.0'"),
            ({"production": "pytorch"}, "not a time for each program"),
        ],
        ids=["too few", "no time", "no peer"],
    )
    def test_a_comparison_has_a_time_alone_for_each_program(self, changes, refused) -> None:
        whole = Comparison(SMALL, (Variant("r1", CONFIG),), ((2.0, 1.0),), alone_us=(2.0, 1.5))
        assert from_row(**to_row(whole)) == whole
        with pytest.raises(ValueError, match=refused):
            from_row(**to_row(replace(whole, **changes)))

    def test_every_field_of_the_other_records_comes_back(self, tmp_path: Path) -> None:
        assert differs_in_every_field(RESULT)
        comparison = Comparison(
            SMALL,
            (Variant("r1", CONFIG), Variant("r2", Config.of({"n": 1}))),
            ((1.5, 1.25, 1.0, 2.0), (1.75, 1.5, 0.1, 3.0)),
            False,
            (None, 2.5, 3.5, None),
            ("pytorch",),
            noise_us=1.5,
            surroundings="decode",
            alone_us=(5.0, 4.5, 5.5, 4.0),
            production="pytorch",
            raced_us=(1.25, 1.5),
            candidates=("initial", "r1"),
            unvaried=True,
        )
        assert differs_in_every_field(comparison)
        columns = (None, Variant("r2", Config.of({"n": 1})), "pytorch")
        assert [comparison.column(one) for one in columns] == [0, 2, 3]
        with create(tmp_path) as session:
            session.record_baseline(LARGE, MEASUREMENT, CORRECTNESS, RESOURCES, OCCUPANCY)
            session.record_baseline(HELD_OUT, MEASUREMENT)
            session.append(comparison)
            session.append(Comparison(LARGE, (), ()))
            session.add_candidate("r2", "other", "version: 1", parent="base")
            session.append(RESULT)
        with Session.open(tmp_path) as session:
            assert session.baselines() == {
                LARGE: Baseline(LARGE, MEASUREMENT, CORRECTNESS, RESOURCES, OCCUPANCY),
                HELD_OUT: Baseline(HELD_OUT, MEASUREMENT),
            }
            assert session.comparisons() == [comparison, Comparison(LARGE, (), ())]
            assert session.results() == [RESULT]
            assert session.candidates() == (
                CandidateRecord("base", "__global__ ...", "version: 1"),
                CandidateRecord("r2", "other", "version: 1", "base"),
            )

    def test_energies_and_peers_come_back_in_order_and_the_last_word_on_a_peer_counts(
        self, tmp_path: Path
    ) -> None:
        failed = PeerTrial(SMALL, "pytorch", Status.LAUNCH, "died")
        with create(tmp_path) as session:
            for energy in ENERGIES:
                session.append(energy)
            for trial in PEERS:
                session.append(trial)
            assert session.peers() == PEERS
        with Session.open(tmp_path) as session:
            session.append(failed)
        with Session.open(tmp_path, read_only=True) as session:
            assert session.energies() == ENERGIES
            assert session.energies(LARGE) == ENERGIES[-1:]
            assert session.peers(SMALL) == [failed, PEERS[1]]
            assert session.peers(LARGE) == []

    @given(st.data())
    @settings(
        max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    def test_any_trial_comes_back_with_types_and_bits(
        self, tmp_path: Path, data: st.DataObject
    ) -> None:
        directory = tmp_path / "s"
        recorded = data.draw(st.lists(trials(), min_size=1, max_size=8, unique_by=identity))
        with create(directory) as session:
            for trial in recorded:
                session.record(trial)
        with Session.open(directory) as session:
            # repr tells 1 from True, 1.0 from 1 and -0.0 from 0.0; == does not
            assert repr(session.trials(stage=None)) == repr(recorded)
        shutil.rmtree(directory)

    def test_values_that_python_takes_for_equal_are_different_configs(self, tmp_path: Path) -> None:
        values = (1, 1.0, True, "1")
        with create(tmp_path) as session:
            for value in values:
                config = Config.of({"x": value})
                assert session.trial("base", SMALL, config) is None
                session.record(Trial("base", SMALL, config, Status.COMPILE))
        with Session.open(tmp_path) as session:
            assert [type(t.config["x"]) for t in session.trials()] == [int, float, bool, str]


NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
VALUES = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
SIZES = st.integers(0, 2**31)
MEASUREMENTS = st.builds(
    Measurement,
    st.lists(st.floats(1e-3, 1e7), min_size=1, max_size=40).map(tuple),
    SIZES,
    SIZES,
    st.booleans(),
    st.none() | st.floats(0, 100),
)


def identity(trial: Trial) -> tuple[str, ...]:
    return trial.workload.key, trial.config.key, trial.stage


def trials() -> st.SearchStrategy[Trial]:
    sizes = st.dictionaries(NAMES, SIZES, min_size=1, max_size=3)
    return st.builds(
        Trial,
        candidate=st.just("base"),
        workload=st.builds(Workload, sizes.map(lambda axes: tuple(axes.items())), st.booleans()),
        config=st.dictionaries(NAMES, VALUES, max_size=5).map(Config.of),
        status=st.sampled_from(Status),
        reason=st.text(max_size=20),
        resources=st.none() | st.builds(Resources, SIZES, SIZES, SIZES, SIZES, SIZES, SIZES),
        occupancy=st.none() | st.builds(Occupancy, st.floats(0, 1), SIZES, NAMES),
        measurement=st.none() | MEASUREMENTS,
        correctness=st.none()
        | st.builds(
            Correctness,
            st.booleans(),
            st.lists(NAMES, max_size=3).map(tuple),
            st.lists(st.tuples(NAMES, st.floats()), max_size=3).map(tuple),
            st.text(max_size=20),
        ),
        seconds=st.floats(0, 1e6),
        stage=st.sampled_from(["search", "finals"]),
    )  # fmt: skip


class TestRecording:
    def test_trials_are_listed_in_order_with_growing_times(self, tmp_path: Path) -> None:
        with create(tmp_path) as session:
            for index in (3, 1, 2):
                session.record(timed(index))
            before = session.records()
        with Session.open(tmp_path) as session:
            assert session.records() == before
        assert [trial.config["n"] for trial, _ in before] == [3, 1, 2]
        elapsed = [elapsed_s for _, elapsed_s in before]
        assert elapsed == sorted(elapsed)
        assert 0 <= elapsed[0] <= elapsed[-1] < 60

    def test_trials_are_selected_by_candidate_and_workload(self, tmp_path: Path) -> None:
        with create(tmp_path) as session:
            session.add_candidate("second", "other", "version: 1", parent="base")
            session.record(timed(1))
            session.record(timed(1, LARGE, Status.RESOURCE_LIMIT))
            session.record(replace(timed(1), candidate="second"))
            assert len(session.trials()) == 3
            assert [t.workload for t in session.trials("base")] == [SMALL, LARGE]
            assert [t.candidate for t in session.trials(workload=SMALL)] == ["base", "second"]
            assert session.trials("second", LARGE) == []
            assert session.trials(workload=HELD_OUT) == []

    def test_a_finalist_is_kept_beside_its_trial_of_the_search(self, tmp_path: Path) -> None:
        searched, final = timed(1), replace(timed(1, status=Status.INCORRECT), stage="finals")
        with create(tmp_path) as session:
            session.record(searched)
            assert session.trial("base", SMALL, searched.config, stage="finals") is None
            session.record(final)
            with pytest.raises(SessionError, match="recorded already"):
                session.record(final)
        with Session.open(tmp_path) as session:
            assert session.trial("base", SMALL, searched.config) == searched
            assert session.trial("base", SMALL, searched.config, stage="finals") == final
            assert session.trials() == [searched]
            assert session.trials(stage="finals") == [final]
            assert session.trials(stage=None) == [searched, final]
            assert [trial.status for trial in session.trials()] == [Status.CORRECT]

    def test_a_second_record_of_a_trial_or_a_baseline_is_refused(self, tmp_path: Path) -> None:
        with create(tmp_path) as session:
            session.record(timed(1))
            session.record_baseline(SMALL, MEASUREMENT)
        with Session.open(tmp_path) as session:
            with pytest.raises(SessionError, match=r"n=1 on T=1 D=14336 .* recorded already"):
                session.record(timed(1, status=Status.TIMEOUT))
            with pytest.raises(SessionError, match="baseline on T=1 D=14336"):
                session.record_baseline(SMALL, MEASUREMENT)
            assert session.trials() == [timed(1)]

    def test_an_unknown_candidate_and_a_changed_one_are_refused(self, tmp_path: Path) -> None:
        with create(tmp_path) as session:
            with pytest.raises(SessionError, match=r"no candidate named 'other'\n.*base"):
                session.record(replace(timed(1), candidate="other"))
            with pytest.raises(SessionError, match="no candidate named 'other'"):
                session.add_candidate("third", "", "", parent="other")
        with Session.open(tmp_path) as session:
            session.add_candidate("base", "__global__ ...", "version: 1")
            with pytest.raises(SessionError, match="another template"):
                session.add_candidate("base", "changed", "version: 1")
            assert len(session.candidates()) == 1

    def test_a_result_replaces_the_earlier_one_and_keeps_its_place(self, tmp_path: Path) -> None:
        better = replace(RESULT, workload=SMALL, tuned_us=20.0, isolated_us=None)
        with create(tmp_path) as session:
            session.add_candidate("r2", "other", "version: 1", parent="base")
            session.append(replace(RESULT, workload=SMALL))
            session.append(RESULT)
            session.append(better)
            assert session.results() == [better, RESULT]
        with Session.open(tmp_path) as session:
            assert session.results() == [better, RESULT]
            session.withdraw_result(SMALL)
        with Session.open(tmp_path) as session:
            assert session.results() == [RESULT]
            session.append(better)
            assert session.results() == [RESULT, better]

    def test_time_is_summed_over_runs_and_state_is_kept(self, tmp_path: Path) -> None:
        with create(tmp_path) as session:
            assert (session.seconds, session.state) == (0.0, "running")
            session.add_time(10.0)
            session.mark("interrupted")
        with Session.open(tmp_path) as session:
            assert (session.seconds, session.state) == (10.0, "interrupted")
            session.record(timed(1))
            assert session.records()[0].elapsed_s >= 10.0
            session.add_time(2.5)
            session.mark("complete")
        with Session.open(tmp_path, read_only=True) as session:
            assert (session.seconds, session.state) == (12.5, "complete")

    def test_recording_and_looking_up_are_fast(self, tmp_path: Path) -> None:
        times_us = tuple(10.0 + i / 1000 for i in range(60))
        with create(tmp_path) as session:
            costs = []
            for index in range(300):
                trial = replace(TRIAL, config=Config.of({"n": index}), stage="search")
                trial = replace(trial, measurement=replace(MEASUREMENT, times_us=times_us))
                start = time.perf_counter()
                session.record(trial)
                costs.append(time.perf_counter() - start)
            start = time.perf_counter()
            for index in range(300):
                assert session.trial("base", HELD_OUT, Config.of({"n": index})) is not None
            looked_up = (time.perf_counter() - start) / 300
        assert sorted(costs)[150] < 2e-3  # 0.2 ms where nothing else runs
        assert looked_up < 2e-4


class TestVariants:
    def test_a_variant_says_what_it_is_and_replaces_an_earlier_one(self, tmp_path: Path) -> None:
        with create(tmp_path) as session:
            session.write_variant(SMALL, VARIANT, "old")
            path = session.write_variant(SMALL, VARIANT, "__global__ void k() {}\n")
        assert path == tmp_path / "tuned" / "silu_and_mul-T1-D14336.cu"
        assert list(path.parent.iterdir()) == [path]
        text = path.read_text()
        assert text.startswith("// silu_and_mul, tuned for T=1 D=14336 by tune 0.1.0")
        assert "vector_bytes=16 cache=streaming pdl=true share=0.5" in text
        assert "-DACTIVATION=gelu_tanh" in text
        assert text.endswith("\n__global__ void k() {}\n")

    @pytest.mark.parametrize("value", ["a\nb", "a\\", "a\\\n#error", "a\r\nb"])
    def test_no_value_escapes_the_comment(self, tmp_path: Path, value: str) -> None:
        with create(tmp_path) as session:
            path = session.write_variant(
                SMALL, Variant(INITIAL, Config.of({"x": value})), "int code;\n"
            )
        *header, code = path.read_text().splitlines()
        assert code == "int code;"
        assert all(line.startswith("// ") and not line.endswith("\\") for line in header)


class TestRefusals:
    def refused(self, match: str, directory: Path, *, read_only: bool = False) -> SessionError:
        with pytest.raises(SessionError, match=match) as caught:
            Session.open(directory, read_only=read_only)
        assert caught.value.exit_code == 2
        assert caught.value.remedy
        assert caught.value.path is not None
        assert directory in (caught.value.path, *caught.value.path.parents)
        return caught.value

    def test_a_folder_that_holds_a_session_says_how_to_resume_it(self, tmp_path: Path) -> None:
        with create(tmp_path) as session:
            session.record(timed(1))
        with pytest.raises(SessionError, match="already holds a session") as caught:
            create(tmp_path)
        assert f"--resume {tmp_path}" in str(caught.value)
        with Session.open(tmp_path) as session:
            assert session.trials() == [timed(1)]

    def test_parents_are_made_and_other_files_left_alone(self, tmp_path: Path) -> None:
        directory = tmp_path / "a b" / "c?d#e%20"
        directory.mkdir(parents=True)
        (directory / "notes.txt").write_text("mine")
        create(directory).close()
        create(directory / "deeper" / "still").close()
        Session.open(directory, read_only=True).close()
        assert (directory / "notes.txt").read_text() == "mine"

    def test_what_a_run_would_write_over_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "report.html").write_text("mine")
        with pytest.raises(SessionError, match="write over its report"):
            create(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["report.html"]

    @pytest.mark.parametrize("read_only", [False, True])
    def test_what_holds_no_session(self, tmp_path: Path, read_only: bool) -> None:
        self.refused("no such session", tmp_path / "none", read_only=read_only)
        self.refused("session.db is missing", tmp_path, read_only=read_only)
        assert list(tmp_path.iterdir()) == []

    def test_a_file_in_place_of_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        self.refused("this is a file", tmp_path / "file")
        for directory in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(SessionError, match="cannot write here"):
                create(directory)

    @pytest.mark.parametrize("read_only", [False, True])
    @pytest.mark.parametrize(
        ("spoil", "said"),
        [
            (lambda content: b"not a database" * 99, "damaged: file is not a database"),
            (lambda content: content[: len(content) // 2], "damaged"),
            (lambda content: content[:16384] + b"\xff" * 4096 + content[20480:], "damaged"),
        ],
        ids=["no database", "truncated", "an overwritten page"],
    )
    def test_a_damaged_database(
        self, tmp_path: Path, spoil: Callable[[bytes], bytes], said: str, read_only: bool
    ) -> None:
        with create(tmp_path) as session:
            for index in range(100):
                session.record(timed(index))
        database = tmp_path / "session.db"
        database.write_bytes(spoil(database.read_bytes()))
        self.refused(said, tmp_path, read_only=read_only)

    def test_a_foreign_database(self, tmp_path: Path) -> None:
        with sqlite3.connect(tmp_path / "session.db") as other:
            other.execute("CREATE TABLE t (x)")
        other.close()
        self.refused("not a session of tune", tmp_path)

    @pytest.mark.parametrize(
        ("version", "said", "remedy"),
        [
            (SCHEMA_VERSION + 1, "a newer version of tune: schema", "upgrade with `pip install"),
            (SCHEMA_VERSION - 1, "an older version of tune: schema", "start a new session"),
        ],
    )
    @pytest.mark.parametrize("read_only", [False, True])
    def test_another_version(
        self, tmp_path: Path, version: int, said: str, remedy: str, read_only: bool
    ) -> None:
        create(tmp_path).close()
        with closing(sqlite3.connect(tmp_path / "session.db")) as database:
            database.execute(f"PRAGMA user_version = {version}")
        before = (tmp_path / "session.db").read_bytes()
        error = self.refused(f"{said} {version}", tmp_path, read_only=read_only)
        assert f"this version reads {SCHEMA_VERSION}" in error.message
        assert remedy in str(error.remedy)
        assert (tmp_path / "session.db").read_bytes() == before

    @pytest.mark.parametrize(
        ("kind", "content"),
        [
            ("trial", "{}"),
            ("trial", "["),
            ("peer", '{"name": 1}'),
            ("other", "{}"),
            ("event: said", ""),
        ],
    )
    def test_a_record_that_is_none(self, tmp_path: Path, kind: str, content: str) -> None:
        create(tmp_path).close()
        with closing(sqlite3.connect(tmp_path / "session.db")) as database, database:
            row = (kind, content)
            database.execute("INSERT INTO records (kind, content) VALUES (?, ?)", row)
        self.refused("the database is damaged", tmp_path)

    def test_a_refused_or_killed_creation_leaves_nothing_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "session.db").write_bytes(b"")
        self.refused("not a session", tmp_path)
        (tmp_path / "session.db").unlink()
        (tmp_path / "session.new").write_bytes(b"half a database")
        create(tmp_path).close()
        assert not (tmp_path / "session.new").exists()


WRITER = """
import sys
from tuner.model.kernel import Workload
from tuner.session.session import Session
from tuner.model.config import Config
from tuner.model.trial import Measurement, Status, Trial

session = Session.open(sys.argv[1])
print("open", flush=True)
for index in range(len(session.trials()), 1_000_000):
    measurement = Measurement((10.0 + index, 11.0 + index), 20, 4)
    config = Config.of({"n": index})
    session.record(Trial("base", Workload.of({"T": 1, "D": 14336}), config, Status.CORRECT,
                         measurement=measurement))
    print(index, flush=True)
"""


def start_writer(directory: Path) -> subprocess.Popen[str]:
    root = Path(__file__).parents[3]
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "open\n"
    return writer


def kill_after(writer: subprocess.Popen[str], trials: int) -> list[int]:
    """Kill it as `kill -9` does in mid-work; return the trials it had said were recorded."""
    assert writer.stdout is not None
    said = [writer.stdout.readline() for _ in range(trials)]
    writer.send_signal(signal.SIGKILL)
    said += writer.stdout.readlines()
    writer.stdout.close()
    writer.wait()
    return [int(line) for line in said if line.endswith("\n")]


class TestProcesses:
    def test_a_killed_writer_loses_nothing_it_recorded(self, tmp_path: Path) -> None:
        create(tmp_path).close()
        last = -1
        for _ in range(2):
            said = kill_after(start_writer(tmp_path), trials=50)
            assert said == list(range(said[0], said[0] + len(said)))
            assert said[0] > last
            last = said[-1]
            with Session.open(tmp_path, read_only=True) as reader:
                found = reader.trials()
            # It may have been killed between the commit and the word.
            assert len(found) >= last + 1
            assert found == [timed(index) for index in range(len(found))]
        with Session.open(tmp_path) as session:
            assert session.state == "running"
            assert session.seconds == session.records()[-1].elapsed_s
            assert session.trial("base", SMALL, Config.of({"n": last})) == timed(last)
            session.record(timed(len(found)))

    def test_a_session_in_use_can_be_read_but_not_written(self, tmp_path: Path) -> None:
        create(tmp_path).close()
        writer = start_writer(tmp_path)
        try:
            assert writer.stdout is not None
            for _ in range(20):
                writer.stdout.readline()
            for refused in (lambda: Session.open(tmp_path), lambda: create(tmp_path)):
                with pytest.raises(SessionError, match=f"in use: process {writer.pid}") as caught:
                    refused()
                assert "the lock ends with the process" in str(caught.value)
            with Session.open(tmp_path, read_only=True) as reader:
                assert len(reader.trials()) >= 20
                assert reader.trials()[7] == timed(7)
        finally:
            kill_after(writer, trials=0)
        Session.open(tmp_path).close()

    def test_a_second_writer_in_the_same_process_is_refused(self, tmp_path: Path) -> None:
        with create(tmp_path), pytest.raises(SessionError, match=f"process {os.getpid()}"):
            Session.open(tmp_path)

    def test_a_reader_cannot_write(self, tmp_path: Path) -> None:
        create(tmp_path).close()
        with Session.open(tmp_path, read_only=True) as reader:
            with pytest.raises(SessionError, match="reading only"):
                reader.record(timed(1))
            with pytest.raises(SessionError, match="reading only"):
                reader.mark("complete")
            assert reader.trials() == []

    def test_a_reader_that_stays_open_does_not_stop_the_writer(self, tmp_path: Path) -> None:
        session = create(tmp_path)
        reader = Session.open(tmp_path, read_only=True)
        session.record(timed(1))
        session.close()
        with Session.open(tmp_path) as session:
            session.record(timed(2))
        assert reader.trials() == []
        reader.close()
        with Session.open(tmp_path, read_only=True) as reader:
            assert len(reader.trials()) == 2

    def test_a_closed_session_is_one_plain_file(self, tmp_path: Path) -> None:
        with create(tmp_path) as session:
            session.record(timed(1))
        session.close()
        elsewhere = tmp_path / "copy"
        elsewhere.mkdir()
        shutil.copy(tmp_path / "session.db", elsewhere)
        with Session.open(elsewhere, read_only=True) as copy:
            assert copy.trials() == [timed(1)]
        assert [path.name for path in elsewhere.iterdir()] == ["session.db"]

    def test_a_full_disk_is_one_clear_message_and_keeps_the_rest(self, tmp_path: Path) -> None:
        session = create(tmp_path)
        session.record(timed(0))
        # SQLite answers "database or disk is full" at this bound as on a full disk.
        session._store._raw.execute("PRAGMA max_page_count=1")
        with pytest.raises(SessionError, match="disk is full") as caught:
            for index in range(1, 500):
                session.record(timed(index))
        assert "--resume" in str(caught.value)
        known = len(session.trials())
        session.close()
        with Session.open(tmp_path) as session:
            assert session.trials() == [timed(index) for index in range(known)]

    def test_importing_the_session_leaves_heavy_libraries_alone(self) -> None:
        heavy = "{'sqlalchemy', 'filelock', 'numpy'}"
        code = f"import sys, tuner.session.session\nprint({heavy} & {{*sys.modules}})"
        root = Path(__file__).parents[3]
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
        )
        assert ran.stdout == "set()\n"


def test_a_tuned_kernel_of_many_axes_has_a_name_that_a_file_may_have(tmp_path: Path) -> None:
    workloads = [Workload.of({f"axis_{n}_stride": last + n for n in range(24)}) for last in (1, 2)]
    session = Session.create(tmp_path, MANIFEST, ENVIRONMENT)
    names = [session.variant_path(workload).name for workload in workloads]
    session.close()
    assert max(map(len, names)) < 200
    assert len({*names}) == 2
