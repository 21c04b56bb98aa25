"""Recordings of an H200, but for what a test says of them."""

from __future__ import annotations

from typing import Any

from tuner.device.recorded.recording import RecordedDeviceInfo, Recording


def recording(kernel: str = "example", **changes: Any) -> Recording:
    """Make a recording of no workload; keyword arguments replace its fields."""
    device = RecordedDeviceInfo(
        name="NVIDIA H200",
        architecture="sm_90a",
        compute_capability=(9, 0),
        multiprocessors=132,
        l2_bytes=60 << 20,
        streaming_gbps=4370.0,
        environment={"gpu_driver_version": "580.1"},
    )
    created = "2026-11-20T12:00:00+00:00"
    plain = {"kernel": kernel, "created": created, "device": device, "workloads": {}}
    return Recording.model_validate({**plain, **changes})
