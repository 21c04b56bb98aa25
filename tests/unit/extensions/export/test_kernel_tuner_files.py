"""Sessions as Kernel Tuner's files: what they hold, and that they answer as the device did."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.simulated_device import H200_LIKE, SimulatedDevice
from tuner.app.run import tune
from tuner.device.select import open_device
from tuner.extensions.study.kernel_tuner_recordings import write_both
from tuner.model.errors import DeviceError, InputError, SessionError
from tuner.model.trial import Status
from tuner.session.records import file_sha
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.space.surroundings import choose_surroundings

ENVIRONMENT = {
    "device": H200_LIKE.name,
    "architecture": H200_LIKE.architecture,
    "multiprocessors": str(H200_LIKE.multiprocessors),
    "streaming_gbps": str(H200_LIKE.streaming_gbps),
    "gpu_driver_version": "580.1",
    "compiler": "NVRTC 13.5",
}


def answer(program):
    """Failures among them; fastest with 256 threads."""
    (launch,) = program.launches
    if launch.threads == 512:
        return Status.INCORRECT
    return 10.0 + abs(launch.threads - 256) / 64 + launch.grid[0] / 1000


@pytest.fixture
def tuned(make_plan, make_session, compiler, listener, tmp_path):
    """A plan and the folder of its finished session."""
    plan = make_plan(workloads=make_plan().spec.tuned)
    with make_session(plan, "first") as first:
        manifest = first.manifest
    device = SimulatedDevice(answer)
    with Session.create(tmp_path / "session", manifest, ENVIRONMENT) as session:
        tune(plan, session=session, device=device, compiler=compiler, listener=listener)
    return plan, tmp_path / "session"


def test_there_is_a_cache_and_t4_results_for_every_workload(tuned, tmp_path: Path) -> None:
    paths = write_both(tuned[1], tmp_path / "out")
    assert [path.name for path in paths] == [
        "scale-N1000.json",
        "scale-N1000_T4.json",
        "scale-N100000.json",
        "scale-N100000_T4.json",
    ]
    head = json.loads(paths[0].read_text())
    assert head["device_name"] == "simulated H200"
    assert (head["kernel_name"], head["problem_size"]) == ("scale", [1000])
    assert head["cache"]["512,1"]["time"] == "RuntimeFailedConfig"


@pytest.mark.parametrize("which", [0, 1], ids=["cache", "T4"])
def test_a_run_on_the_file_finds_what_the_device_gave(
    tuned, make_session, compiler, listener, tmp_path, which
) -> None:
    plan, folder = tuned
    path = write_both(folder, tmp_path / "out")[which]
    workloads = plan.config.workloads[:1]
    again = replace(plan, config=replace(plan.config, workloads=workloads))
    device = open_device(f"recorded:{path}", plan.spec, {}, workloads)
    assert replace(device.info, recorded=False, l2_bytes=0, environment={}) == replace(
        H200_LIKE, l2_bytes=0
    )
    assert device.info.environment == {
        "recorded_compiler": "NVRTC 13.5",
        "gpu_driver_version": "580.1",
    }
    with make_session(again, "again") as session:
        tune(again, session=session, device=device, compiler=compiler, listener=listener)
        found = outcomes(session, workloads[0])
    with Session.open(folder, read_only=True) as session:
        assert outcomes(session, workloads[0]) == found


AROUND = "surroundings: {decode: {chain: [{before: [{stream: N, writes: in}]}]}}\n"


@pytest.fixture
def around(project, make_plan, make_session, compiler, listener, tmp_path) -> Plan:
    """Tune between neighbours, in the folder `session`."""
    space = project / "scale.yaml"
    space.write_text(space.read_text() + AROUND)
    plan = make_plan(workloads=make_plan().spec.tuned[:1])
    with make_session(plan, "first") as first:
        manifest = replace(first.manifest, space_sha=file_sha(space))
    with Session.create(tmp_path / "session", manifest, ENVIRONMENT) as session:
        device = SimulatedDevice(answer)
        tune(plan, session=session, device=device, compiler=compiler, listener=listener)
    return plan


def test_a_file_says_in_which_surroundings_its_times_were_measured(around, tmp_path) -> None:
    plan, workloads = around, around.config.workloads
    for path in write_both(tmp_path / "session", tmp_path / "out"):
        right = open_device(f"recorded:{path}", plan.spec, {}, workloads)
        right.configs_of(workloads[0])  # does not raise
        alone = open_device(
            f"recorded:{path}", choose_surroundings(plan.spec, "alone"), {}, workloads
        )
        with pytest.raises(DeviceError, match=r"between other neighbours \(decode\)"):
            alone.configs_of(workloads[0])


def test_surroundings_come_from_the_search_space_that_was_tuned_wherever_it_is_now(
    around, tmp_path
) -> None:
    folder, space = tmp_path / "session", around.spec.path
    before = [path.read_text() for path in write_both(folder, tmp_path / "out")]
    moved = space.rename(space.with_name("moved.yaml"))
    with pytest.raises(SessionError, match="its search space is gone") as caught:
        write_both(folder, tmp_path / "out")
    assert "--space" in str(caught.value)
    after = [path.read_text() for path in write_both(folder, tmp_path / "again", moved)]
    assert after == before
    moved.write_text(moved.read_text().replace("stream: N", "stream: 2 * N"))
    with pytest.raises(SessionError, match="changed since the session began"):
        write_both(folder, tmp_path / "again", moved)


def outcomes(session, workload):
    """All trials and the result; times to the tick of a recording."""
    (result,) = (one for one in session.results() if one.workload == workload)
    trials = session.trials(None, workload)
    times = {(t.config, t.status, t.reason, t.time_us and round(t.time_us, 4)) for t in trials}
    return times, result.config, round(result.speedup, 6)


def test_kernel_tuner_reads_both(tuned, tmp_path: Path) -> None:
    import jsonschema
    from kernel_tuner import tune_cache
    from kernel_tuner.file_utils import output_file_schema

    cache, t4, *_ = write_both(tuned[1], tmp_path / "out")
    with pytest.warns(UserWarning, match="thread block dimensions"):
        results, _ = tune_cache(str(cache), quiet=True)
    assert {r["block"] for r in results if "__error__" not in r} == {32, 64, 128, 256}
    jsonschema.validate(json.loads(t4.read_text()), output_file_schema("results")[1])


def test_what_cannot_be_exported_says_why(make_plan, make_session, tuned, tmp_path: Path) -> None:
    with make_session(make_plan(), "empty") as session:
        empty = session.directory
    with pytest.raises(SessionError, match="no trial to export"):
        write_both(empty, tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_both(tuned[1], tmp_path / "file")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({**ENVIRONMENT, "on_cpu": "true"}, "was run on a CPU"),
        ({"device": "some GPU"}, "does not hold the numbers of its GPU"),
    ],
)
def test_a_session_without_a_gpu_is_refused(
    make_plan, make_session, compiler, listener, tmp_path, environment, words
) -> None:
    plan = make_plan(workloads=make_plan().spec.tuned[:1], trials=2)
    with make_session(plan, "first") as first:
        manifest = first.manifest
    with Session.create(tmp_path / "session", manifest, environment) as session:
        device = SimulatedDevice(answer)
        tune(plan, session=session, device=device, compiler=compiler, listener=listener)
    with pytest.raises(SessionError, match=words):
        write_both(tmp_path / "session", tmp_path / "out")
