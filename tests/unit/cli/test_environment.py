"""What is said and kept of where times come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifests import manifest
from recordings import recording

from tuner.app import environment
from tuner.app.check import UnavailableDevice, target_info
from tuner.compiler.base import Compiler
from tuner.device.recorded.recording import RecordedDevice, save_recording
from tuner.model.errors import SessionError
from tuner.model.statistics import PROTOCOL
from tuner.session.session import Session

MANIFEST = manifest(device="recorded")


class NamedCompiler(Compiler):
    """Only a version: nothing here compiles."""

    version = "NVRTC 13.5"


def recorded(path: Path, *, created: str = "2026-11-20T12:00:00+00:00") -> RecordedDevice:
    save_recording(recording("scale", created=created), path)
    return RecordedDevice(path, "scale", {})


def test_a_recording_is_announced_as_one_with_gpu_date_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    device = recorded(tmp_path / "h200/scale.json.xz")
    assert environment.headline(device) == (
        "RECORDED: no GPU is used; answers come from measurements made on an NVIDIA H200 on "
        "2026-11-20 (h200/scale.json.xz)"
    )


def test_a_live_device_is_never_called_recorded() -> None:
    device = UnavailableDevice(target_info("sm_89"))
    assert environment.headline(device) == "sm_89 (sm_89): everything is measured here"


def test_a_session_keeps_what_reports_need(tmp_path: Path) -> None:
    device = recorded(tmp_path / "scale.json.xz")
    kept = environment.environment_of(device, NamedCompiler(), tmp_path)
    assert kept["device"] == "NVIDIA H200"
    assert kept["recorded"] == "true"
    assert kept["date"] == "2026-11-20"
    assert kept["streaming_gbps"] == "4370.0"
    assert kept["gpu_driver_version"] == "580.1"
    assert kept["compiler"] == "NVRTC 13.5"
    assert "commit" not in kept  # the folder is no checkout


def test_another_recording_or_gpu_is_not_the_same_device(tmp_path: Path) -> None:
    device = recorded(tmp_path / "scale.json.xz")
    kept = environment.environment_of(device, NamedCompiler(), tmp_path)
    with Session.create(tmp_path / "session", MANIFEST, kept) as session:
        environment.require_same_device(session, device)
        other = recorded(tmp_path / "scale.json.xz", created="2026-11-21T12:00:00+00:00")
        with pytest.raises(SessionError, match=r"the recording was .* and is now"):
            environment.require_same_device(session, other)
        gpu = UnavailableDevice(target_info("sm_89"))
        with pytest.raises(SessionError, match="the device was NVIDIA H200 and is now sm_89"):
            environment.require_same_device(session, gpu)


def test_numbers_of_two_protocols_never_stand_in_one_session(tmp_path: Path) -> None:
    gpu = UnavailableDevice(target_info("sm_89"))
    kept = dict(environment.environment_of(gpu, NamedCompiler(), tmp_path))
    assert kept.pop("protocol") == str(PROTOCOL)
    different = pytest.raises(SessionError, match=f"the protocol was 1 and is now {PROTOCOL}")
    with Session.create(tmp_path / "old", MANIFEST, kept) as session, different:
        environment.require_same_device(session, gpu)
    with Session.create(tmp_path / "new", MANIFEST, {**kept, "protocol": str(PROTOCOL)}) as session:
        environment.require_same_device(session, gpu)


def test_a_recording_that_names_no_protocol_is_of_the_first(tmp_path: Path) -> None:
    device = recorded(tmp_path / "scale.json.xz")
    kept = environment.environment_of(device, NamedCompiler(), tmp_path)
    assert kept["protocol"] == "1"
    with Session.create(tmp_path / "session", MANIFEST, kept) as session:
        environment.require_same_device(session, device)


@pytest.mark.parametrize(
    ("noun", "article"),
    [("NVIDIA H200", "an"), ("GeForce RTX 4090", "a"), ("A100", "an"), ("Tesla T4", "a")],
)
def test_articles_follow_the_sound(noun: str, article: str) -> None:
    assert environment.article(noun) == article
