"""Peers in a recording: a run without a GPU shows what the GPU said of them."""

from __future__ import annotations

import json
import lzma

import pytest

from tests.support.simulated_device import SimulatedDevice
from tuner.app.record import record, recording_plan
from tuner.app.run import tune
from tuner.device.base import Outcome
from tuner.device.recorded.recording import RecordedDevice, load_recording, save_recording
from tuner.device.reference import peer_program
from tuner.model.trial import Status

PEERS = ("quick", "absent", "wrong")


class WithPeers(SimulatedDevice):
    def __init__(self) -> None:
        super().__init__(lambda p: 15.0 if p.peer else 10.0 + p.launches[0].threads / 64)

    def verify(self, program):
        failed = {
            "absent": Outcome(Status.NOT_RECORDED, "No module named 'absent'"),
            "wrong": Outcome(Status.INCORRECT, "out[0] is 1, expected 2"),
        }
        return failed.get(program.peer) or super().verify(program)


@pytest.fixture
def path(make_plan, make_session, compiler, listener, tmp_path):
    """The file of a recording with peers."""
    plan = recording_plan(make_plan(peers=PEERS))
    with make_session(plan) as session:
        made = record(
            plan, session=session, device=WithPeers(), compiler=compiler, listener=listener
        )
    path = tmp_path / "scale.json.xz"
    save_recording(made, path)
    return path


def test_their_samples_and_failures_are_in_it(path):
    for workload in load_recording(path).workloads.values():
        assert set(workload.peers) == set(PEERS)
        assert workload.peers["quick"].outcome().measurement.median_us == pytest.approx(15.0)
        assert workload.peers["absent"].reason == "No module named 'absent'"
        assert workload.peers["wrong"].status is Status.INCORRECT
        assert workload.finals.programs[-1] == "peer:quick"
        assert not any(key.startswith("peer:") for key in workload.programs)


def test_a_run_on_it_compares_with_them(path, make_plan, make_session, compiler, listener):
    plan = make_plan(peers=(*PEERS, "newer"), searcher="random", trials=5)
    device = RecordedDevice(path, "scale", {})
    with make_session(plan, "recorded") as session:
        tune(plan, session=session, device=device, compiler=compiler, listener=listener)
        peers, comparisons = session.peers(), session.comparisons()
    assert {one.peers for one in comparisons} == {("quick",)}
    for comparison in comparisons:
        column = comparison.column("quick")
        assert [row[column] for row in comparison.rounds] == pytest.approx([15.0] * 40)
    newer = [one for one in peers if one.name == "newer"]
    assert {(one.status, one.reason) for one in newer} == {
        (Status.NOT_RECORDED, "scale.json.xz was recorded without it")
    }


def test_a_peer_and_a_config_that_shared_no_rounds_are_compared_unpaired(path, make_plan):
    plan = make_plan()
    device, workload = RecordedDevice(path, "scale", {}), plan.config.workloads[0]
    kept = load_recording(path).workloads[workload.key]
    finals = kept.finals.model_copy(update={"programs": (*kept.finals.programs[:-1], "peer:x")})
    device._recording.workloads[workload.key] = kept.model_copy(update={"finals": finals})
    peer = peer_program("quick", plan.spec.reference, workload)
    compared = device.compare([peer, peer], rounds=40)
    assert not compared.paired
    assert {len(row) for row in compared.times_us} == {2}


def test_a_recording_from_before_there_were_peers_has_none(path, make_plan):
    content = json.loads(lzma.decompress(path.read_bytes()))
    assert content["version"] >= 2
    content["version"] = 1
    for workload in content["workloads"].values():
        del workload["peers"]
        workload["finals"]["programs"].pop()
        workload["finals"]["isolated"].pop()
        for row in workload["finals"]["rounds"]:
            row.pop()
    path.write_bytes(lzma.compress(json.dumps(content).encode()))
    device, plan = RecordedDevice(path, "scale", {}), make_plan()
    for workload in plan.config.workloads:
        outcome = device.verify(peer_program("quick", plan.spec.reference, workload))
        assert outcome.status is Status.NOT_RECORDED
