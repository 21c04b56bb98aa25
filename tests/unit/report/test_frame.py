"""Every trial as a row."""

from __future__ import annotations

from tuner.model.trial import Status
from tuner.report.terminal import trials_frame


def test_every_trial_is_a_row_with_its_axes_and_parameters(data):
    frame = trials_frame(data)
    assert len(frame) == len(data.records)
    trial = data.records[0][0]
    first = frame.iloc[0]
    assert {name: first[name] for name in trial.workload.values} == trial.workload.values
    assert first["config.block_size"] == trial.config["block_size"]


def test_a_trial_without_a_time_has_an_empty_one_and_its_reason(data):
    frame = trials_frame(data)
    failed = frame[frame["status"] != Status.CORRECT.value]
    assert len(failed) > 0
    assert failed["time_us"].isna().all()
    assert (failed["reason"] != "").all()


def test_times_are_those_of_the_trials(data):
    frame = trials_frame(data)
    expected = [trial.time_us for trial, _ in data.records if trial.time_us is not None]
    assert frame["time_us"].dropna().tolist() == expected


def test_every_row_says_whose_config_it_is(with_rounds):
    frame = trials_frame(with_rounds)
    assert frame.groupby("candidate").size().to_dict() == {
        "initial": 32,
        "r1": 32,
        "r3": 64,
        "r5": 64,
    }
