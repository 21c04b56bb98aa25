"""The files that an engine lacks for a model: what is tuned for them, and what is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import operator_sessions
import pytest
from manifests import manifest
from operator_sessions import choices, write_operator_session

from tuner.extensions.engines import fleet
from tuner.extensions.engines.configs.files import BlockFp8Key, Key, MoeKey
from tuner.extensions.engines.configs.found import EngineFile, FileState
from tuner.extensions.engines.configs.needed import Needed
from tuner.extensions.engines.configs.winners import Configs, Tables, marks_of
from tuner.extensions.engines.fleet import (
    BATCHES,
    MadeConfigs,
    TuningJob,
    jobs_of,
    make,
    proofs_of,
    prove,
)
from tuner.model.config import Config
from tuner.model.errors import DeviceError, InputError, KernelError, OutOfMemory
from tuner.model.settings import ENOUGH, ENOUGH_OF_A_FLEET
from tuner.model.trial import INITIAL, Status, Trial
from tuner.session.events import LeftUndecided
from tuner.session.session import Session
from tuner.session.store import DATABASE

ROOT = Path(__file__).parents[4]


AXES = (("K", 2048), ("TOP_K", 8), ("EP", 1))


def lacking(key: Key, state: FileState = FileState.MISSING, axes: Any = AXES) -> EngineFile:
    wanted = Path(f"{'experts' if isinstance(key, MoeKey) else 'attention'}.json")
    return EngineFile(Needed("experts", key, axes=axes), state, wanted)


def test_a_moe_file_becomes_a_session_of_all_numbers_of_tokens() -> None:
    jobs, refused = jobs_of([lacking(MoeKey(128, 192))])
    assert refused == ()
    (job,) = jobs
    assert (job.kernel, job.operators["WEIGHTS"]) == ("fused_moe", "bf16")
    assert len(job.workloads) == len(BATCHES) == 18
    assert job.workloads[0] == "M=1,E=128,N=192,K=2048,TOP_K=8,EP=1"


def test_configs_for_each_gemm_are_a_session_of_their_own_for_both_files() -> None:
    key = MoeKey(128, 192)
    second = EngineFile(
        Needed("second", key, down=True, axes=AXES), FileState.MISSING, Path("down.json")
    )
    assert jobs_of([second]) == ((), ()), "the engine can do without it"
    ((one,), _), ((two,), _) = (
        jobs_of([lacking(key), second], two=asked) for asked in (False, True)
    )
    assert (one.operators["CONFIGS"], two.operators["CONFIGS"]) == ("one", "two")
    assert two.name == f"{one.name}-two"
    ((alone,), _) = jobs_of([lacking(key, FileState.THERE), second], two=True)
    assert alone == two, "the first has to fit the second"


@pytest.mark.parametrize("state", [FileState.STALE, FileState.THERE])
def test_a_second_file_that_the_engine_would_read_is_made_with_the_first(state: FileState) -> None:
    key, down = MoeKey(128, 192), Path("down.json")
    second = EngineFile(Needed("second", key, down=True, axes=AXES), state, down, down, "3.4.0")
    ((job,), _) = jobs_of([lacking(key), second])
    assert job.operators["CONFIGS"] == "two"


def test_a_block_fp8_file_becomes_one_by_n_and_k() -> None:
    ((job,), _) = jobs_of([lacking(BlockFp8Key(2112, 7168))], batches=[1, 64])
    assert job == TuningJob(
        "block-fp8-N2112-K7168", "w8a8_block_fp8", {}, ("M=1,N=2112,K=7168", "M=64,N=2112,K=7168")
    )


def test_what_is_there_is_not_made_and_what_cannot_be_is_told() -> None:
    files = [
        lacking(MoeKey(128, 768), FileState.THERE),
        lacking(MoeKey(128, 384, "fp8_w8a8", per_channel=True)),
        lacking(MoeKey(128, 384, "float32")),
        lacking(BlockFp8Key(2112, 7168, (64, 64))),
    ]
    jobs, refused = jobs_of(files)
    assert jobs == ()
    assert [one.partition(": ")[2] for one in refused] == [
        "only bf16, and fp8 in blocks of 128 by 128 or 32 by 32, can be tuned",
        "float32 cannot be tuned",
        "only bf16, and fp8 in blocks of 128 by 128 or 32 by 32, can be tuned",
    ]


@pytest.mark.parametrize(
    ("key", "name", "kernel"),
    [
        (MoeKey(512, 128, "fp8_w8a8", (32, 32)), "moe-fp8_block32-E512", "fused_moe_block32"),
        (BlockFp8Key(2112, 7168, (32, 32)), "block-fp832-N2112-K7168", "w8a8_block_fp8"),
    ],
)
def test_blocks_of_32_by_32_are_tuned_too(key: Key, name: str, kernel: str) -> None:
    ((job,), refused) = jobs_of([lacking(key)], batches=[1])
    assert (job.name.startswith(name), job.kernel, refused) == (True, kernel, ())
    assert (job.operators.get("SCALES") == "block32") == isinstance(key, BlockFp8Key)
    assert "WEIGHTS" not in job.operators


def test_a_model_without_its_sizes_is_one_error() -> None:
    with pytest.raises(InputError, match="`hidden_size` is None"):
        jobs_of([lacking(MoeKey(8, 1024), axes=())])


def test_what_traffic_takes_longest_with_comes_first_and_gets_the_most_time() -> None:
    files = [lacking(BlockFp8Key(n, 1024)) for n in (512, 1024, 2048)]
    ((first, *_), _) = jobs_of(files)
    assert first.name == "block-fp8-N2048-K1024", "it has the most weights"
    seen = {("w8a8_block_fp8", frozenset({"N=512", "K=1024"})): 900.0}
    ((first, *others), _) = jobs_of(files, traffic=seen)
    assert (first.name, first.worth) == ("block-fp8-N512-K1024", 900.0)
    assert [one.worth for one in others] == [9.0, 9.0]


def test_what_no_trace_has_shapes_of_is_worth_its_weights_beside_what_was_seen() -> None:
    files = [lacking(MoeKey(128, width)) for width in (192, 384)]
    files += [lacking(BlockFp8Key(n, 1024)) for n in (512, 1024)]
    weights = {job.name: job.worth for job in jobs_of(files)[0]}
    seen = {("fused_moe", frozenset({"E=128", "N=192", "K=2048", "TOP_K=8"})): 900.0}
    worth = {job.name: job.worth for job in jobs_of(files, traffic=seen)[0]}
    assert next(iter(worth)) == "moe-bf16-E128-N192-K2048-top8-ep1"
    assert worth["moe-bf16-E128-N384-K2048-top8-ep1"] == 9.0
    rate = 900.0 / weights["moe-bf16-E128-N192-K2048-top8-ep1"]
    for name in ("block-fp8-N512-K1024", "block-fp8-N1024-K1024"):
        assert worth[name] == pytest.approx(rate * weights[name])


Make = Callable[..., tuple[MadeConfigs, list[str]]]


def begin(session: Path) -> Path:
    return write_operator_session(session, "fused_moe", choices("fused_moe")[0])


def jobs_for(*batches: int) -> tuple[TuningJob, ...]:
    return jobs_of([lacking(MoeKey(128, 192))], batches=batches)[0]


@pytest.fixture
def made_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make the files of jobs with a stand-in for `tune`; return them, and what was said."""
    monkeypatch.chdir(ROOT)

    def make_files(
        tuned: Callable[..., None], jobs: Sequence[TuningJob], **settings: Any
    ) -> tuple[MadeConfigs, list[str]]:
        monkeypatch.setattr(fleet, "tune", tuned)
        said: list[str] = []
        place = (tmp_path / "s", tmp_path / "to", "sglang", "3.6.0")
        return make(jobs, *place, settings, say=said.append), said

    return make_files


def test_each_job_is_tuned_once_and_its_files_are_written(tmp_path: Path, made_by: Make) -> None:
    asked: list[dict[str, object]] = []

    def tuned(kernel: Path, *, session: Path, progress: object, **settings: object) -> None:
        asked.append(settings)
        if not session.exists():
            begin(session)

    (_, said), (made, _) = (made_by(tuned, jobs_for(1), device="cuda") for _ in range(2))
    assert said[0] == "1 of 1: moe-bf16-E128-N192-K2048-top8-ep1, 1 numbers of tokens"
    first, again = asked
    assert sorted(first) == ["device", "enough", "operators", "workloads"]
    assert (first["enough"], again) == (ENOUGH_OF_A_FLEET, {})
    written = [path.is_file() for path in (tmp_path / "to" / name for name in made.configs.files)]
    assert (written, made.failed) == ([True], {})


def test_a_shape_that_fails_leaves_the_others_to_be_made(tmp_path: Path, made_by: Make) -> None:
    def tuned(kernel: Path, *, session: Path, **_: object) -> None:
        if "N192" in session.name:
            raise KernelError("the baseline is wrong")
        begin(session)

    files = [lacking(MoeKey(128, width)) for width in (192, 384)]
    made, _ = made_by(tuned, jobs_of(files, batches=[1])[0])
    assert made.failed == {"moe-bf16-E128-N192-K2048-top8-ep1": "the baseline is wrong"}
    assert len(made.configs.files) == len([*(tmp_path / "to").rglob("*.json")]) == 1


def test_numbers_of_tokens_for_which_there_is_no_memory_are_left_out(made_by: Make) -> None:
    asked: list[list[str]] = []

    def tuned(kernel: Path, *, session: Path, workloads: list[str], **_: object) -> None:
        asked.append(workloads)
        begin(session)
        if len(asked) == 1:
            raise OutOfMemory("not enough memory for M=64", workloads[2])

    made, said = made_by(tuned, jobs_for(1, 16, 64, 256))
    assert [len(workloads) for workloads in asked] == [4, 2]
    assert not made.failed
    assert said[1].endswith("left out: M=64 and M=256: not enough memory for M=64")


def test_a_fleet_that_is_started_again_leaves_out_what_finds_no_memory_as_well(
    tmp_path: Path, made_by: Make
) -> None:
    asked, jobs = list[object](), jobs_for(1, 16, 64)

    def tuned(kernel: Path, *, session: Path, **settings: object) -> None:
        asked.append(settings.get("workloads"))
        if len(asked) == 1:
            raise OutOfMemory("not enough memory for M=64", jobs[0].workloads[2])
        begin(session)

    session = begin(tmp_path / "s" / jobs[0].name)
    (session / "notes.txt").write_text("mine")
    made, _ = made_by(tuned, jobs)
    assert asked == [None, list(jobs[0].workloads[:2])]
    assert not made.failed
    assert (session / "notes.txt").read_text() == "mine"


def test_numbers_of_tokens_on_which_memory_ended_later_are_told(made_by: Make) -> None:
    def tuned(kernel: Path, *, session: Path, workloads: list[str], **_: object) -> None:
        with Session.open(begin(session)) as opened:
            opened.record_event(LeftUndecided(0, workloads[1], "not enough memory for M=16"))

    jobs = jobs_for(1, 16)
    made, said = made_by(tuned, jobs)
    assert not made.failed
    assert said[1] == f"{jobs[0].name}: undecided: M=16: not enough memory for M=16"


def test_what_was_left_undecided_is_tried_again_though_its_file_is_there(tmp_path: Path) -> None:
    there = [lacking(MoeKey(128, 192), FileState.THERE)]
    assert jobs_of(there, sessions=tmp_path) == ((), ())
    ((job,), _) = jobs_of([lacking(MoeKey(128, 192))])
    session = begin(tmp_path / job.name)
    assert jobs_of(there, sessions=tmp_path) == ((), ())
    with Session.open(session) as opened:
        opened.record_event(LeftUndecided(0, job.workloads[1], "not enough memory"))
    assert jobs_of(there, sessions=tmp_path) == ((job,), ())


def test_what_was_interrupted_is_gone_on_with_though_its_file_is_there(tmp_path: Path) -> None:
    there = [lacking(MoeKey(128, 192), FileState.THERE)]
    ((job,), _) = jobs_of([lacking(MoeKey(128, 192))])
    with Session.open(begin(tmp_path / job.name)) as opened:
        opened.mark("interrupted")
    assert jobs_of(there, sessions=tmp_path) == ((job,), ())


@pytest.mark.parametrize(
    ("began", "asked", "given", "said"),
    [
        ({"trials": 100}, {"trials": 100, "enough": ENOUGH}, {}, []),
        ({"trials": 10}, {"trials": 200, "enough": 0.002}, {"trials": 200}, ["--enough 0.005"]),
        ({}, {"gpus": "1"}, {}, ["no --gpus"]),
        ({"gpus": "0,1"}, {"gpus": "1"}, {"gpus": "1"}, []),
        ({"time_s": 45.0}, {}, {}, ["45 s of a --budget"]),
        ({"time_s": 45.0}, {"time_s": 900.0}, {}, ["45 s of a --budget"]),
        ({}, {"time_s": 900.0}, {}, ["no --budget"]),
    ],
)
def test_a_session_keeps_what_it_was_started_with_and_says_so(
    tmp_path: Path,
    made_by: Make,
    monkeypatch: pytest.MonkeyPatch,
    began: dict[str, Any],
    asked: dict[str, Any],
    given: dict[str, object],
    said: list[str],
) -> None:
    renewed: list[dict[str, object]] = []

    def tuned(kernel: Path, *, session: Path, progress: object, **settings: object) -> None:
        renewed.append(settings)

    monkeypatch.setattr(operator_sessions, "manifest", partial(manifest, **began))
    jobs = jobs_for(1)
    begin(tmp_path / "s" / jobs[0].name)
    _, told = made_by(tuned, jobs, **asked)
    assert renewed == [given]
    kept = [one.partition("goes on with ")[2] for one in told if "goes on with" in one]
    assert kept == [f"{one}, as it was started" for one in said]


def test_a_session_with_trials_is_kept_where_memory_ends(tmp_path: Path, made_by: Make) -> None:
    def tuned(kernel: Path, **_: object) -> None:
        raise OutOfMemory("not enough memory for M=16", jobs[0].workloads[1])

    jobs = jobs_for(1, 16)
    session = begin(tmp_path / "s" / jobs[0].name)
    with Session.open(session) as opened:
        (of,) = {one.workload for one in opened.comparisons()}
        config = Config.of({"num_warps": 4})
        opened.record(Trial(INITIAL, of, config, Status.COMPILE, "an error"))
    made, _ = made_by(tuned, jobs)
    assert made.failed == {jobs[0].name: "not enough memory for M=16"}
    assert (session / DATABASE).exists()


def test_a_shape_whose_fewest_tokens_find_no_memory_has_no_file(made_by: Make) -> None:
    def tuned(kernel: Path, *, session: Path, workloads: list[str], **_: object) -> None:
        begin(session)
        raise OutOfMemory("not enough memory for M=1", workloads[0])

    jobs = jobs_for(1, 16)
    assert made_by(tuned, jobs)[0].failed == {jobs[0].name: "not enough memory for M=1"}


def test_without_a_gpu_it_ends_at_the_first(tmp_path: Path, made_by: Make) -> None:
    def tuned(kernel: Path, **_: object) -> None:
        raise DeviceError("no NVIDIA GPU was found")

    jobs = jobs_for(1)
    with pytest.raises(DeviceError):
        made_by(tuned, jobs)
    # One that was opened and has failed since, for lack of memory say, is another matter.
    begun = tmp_path / "s" / jobs[0].name / DATABASE
    begun.parent.mkdir(parents=True)
    begun.touch()
    assert [*made_by(tuned, jobs)[0].failed] == [jobs[0].name]


def test_a_budget_is_shared_by_worth_and_what_is_left_over_is_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, float] = {}

    def tuned(kernel: Path, *, session: Path, time_s: float, **_: object) -> None:
        asked[session.name] = time_s
        raise KernelError("it ends at once")

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(fleet, "tune", tuned)
    jobs = [TuningJob(str(worth), "fused_moe", {}, ("M=1",), worth) for worth in (6, 3, 1)]
    place = (tmp_path / "s", tmp_path / "to", "sglang", "3.6.0")
    make(jobs, *place, {}, say=print, budget_s=1000.0)
    assert asked == pytest.approx({"6": 600.0, "3": 750.0, "1": 1000.0}, rel=0.01)
    asked.clear()
    made = make(jobs, *place, {}, say=print, budget_s=100.0)
    assert asked == pytest.approx({"6": 60.0, "3": 75.0, "1": 100.0}, rel=0.05)
    assert len(made.failed) == 3


def test_what_a_session_without_a_budget_takes_is_not_expected_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, asked = 0.0, list[float]()

    def tuned(kernel: Path, *, session: Path, time_s: float = 3600.0, **_: object) -> None:
        nonlocal now_s
        now_s += time_s
        if not session.exists():
            asked.append(time_s)
            begin(session)

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(fleet, "tune", tuned)
    monkeypatch.setattr(fleet, "time", SimpleNamespace(monotonic=lambda: now_s))
    jobs = [TuningJob(str(number), "fused_moe", {}, ("M=1",)) for number in range(8)]
    begin(tmp_path / "0")
    failed: dict[str, str] = {}
    made = fleet.tune_each(
        jobs, tmp_path, "tokens", {}, lambda session: session, failed, say=print, budget_s=14400.0
    )
    assert len([*made]) == 8
    assert (asked, failed) == ([pytest.approx(10800.0 / 7)] * 7, {})


def test_configs_that_failed_are_listed(tmp_path: Path, made_by: Make) -> None:
    def tuned(kernel: Path, *, session: Path, **_: object) -> None:
        with Session.open(begin(session)) as opened:
            (of,) = {one.workload for one in opened.comparisons()}
            for warps, status in ((4, Status.COMPILE), (8, Status.TIMEOUT), (16, Status.CORRECT)):
                config = Config.of({"num_warps": warps})
                opened.record(Trial(INITIAL, of, config, status, "ptxas\ndied"))

    made, said = made_by(tuned, jobs_for(1))
    listed = tmp_path / "s" / jobs_for(1)[0].name / "failed.txt"
    how = "2 of 3 configs failed and were skipped (1 compile, 1 timeout)"
    assert said[1].endswith(f"{how}: {listed}")
    first, second = listed.read_text().splitlines()
    assert first.endswith(": num_warps=4: compile: ptxas died")
    assert second.endswith(": num_warps=8: timeout: ptxas died")
    assert not made.failed


@pytest.mark.parametrize(("factor", "state"), [(1.1, "proved"), (0.9, "stale")])
def test_a_file_that_is_slower_than_the_default_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float, state: str
) -> None:
    monkeypatch.chdir(ROOT)
    there, said = [lacking(MoeKey(128, 192), FileState.THERE)], list[str]()
    ((proof,), *_) = (proofs_of(there, tmp_path),)
    asked: list[dict[str, object]] = []

    def tuned(kernel: Path, *, session: Path, progress: object, **settings: object) -> None:
        asked.append(settings)
        with Session.open(begin(session)) as opened:
            (one,) = opened.comparisons()
            baseline = [row[0] for row in one.rounds]
            rounds = tuple(
                (*row, factor * us) for row, us in zip(one.rounds, baseline, strict=True)
            )
            opened.append(replace(one, rounds=rounds, peers=("without_file",)))

    monkeypatch.setattr(fleet, "tune", tuned)
    assert prove([proof], tmp_path, "3.6.0", {}, say=said.append) == {}
    assert (asked[0]["trials"], asked[0]["peers"]) == (1, ("without_file",))
    assert said[-1].startswith(
        f"{state}: {factor:.2f}x to {factor:.2f}x the default on Triton 3.6.0"
    )
    assert proofs_of(there, tmp_path) == (), "once is enough"
    assert len(jobs_of(there, sessions=tmp_path)[0]) == (state == "stale")


def test_models_that_want_one_file_share_it(tmp_path: Path, made_by: Make) -> None:
    def tuned(kernel: Path, *, session: Path, workloads: list[str], **_: object) -> None:
        begin(session)

    axes = [(("K", k), ("TOP_K", 8), ("EP", 1)) for k in (2048, 4096)]
    jobs, _ = jobs_of([lacking(MoeKey(128, 192), axes=one) for one in axes], batches=[1])
    assert len(jobs) == 2
    made, _ = made_by(tuned, jobs)
    assert len(made.configs.files) == 1
    assert any("where it gains more than that of" in note for note in made.configs.notes)


def test_rows_that_other_gpus_cannot_hold_are_said(made_by: Make) -> None:
    def tuned(kernel: Path, *, session: Path, **_: object) -> None:
        begin(session)

    _, said = made_by(tuned, jobs_for(1))
    assert not any("too large for GPUs" in one for one in said), "the default config is small"
    key = MoeKey(128, 192)
    row = dict.fromkeys(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), 128) | {"num_stages": 3}
    made = Configs({}, tables={key: Tables(own={16: row, 64: {**row, "num_stages": 2}})}, gpu="H")
    (mark,) = marks_of(made, "sglang")
    assert mark.startswith("E=128,N=192,device_name=H.json: too large for GPUs of 8.6, 8.9, 12.0")
    assert mark.endswith(": 16 tokens")


def test_it_is_started_where_the_kernels_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = TuningJob("one", "fused_moe", {}, ("M=1",))
    with pytest.raises(InputError, match=r"no kernels.sglang.fused_moe"):
        make([job], tmp_path / "s", tmp_path / "to", "sglang", "3.6.0", {}, say=print)
