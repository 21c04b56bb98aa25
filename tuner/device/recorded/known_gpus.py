"""NVIDIA's GPUs by the names of their drivers, with what their data sheets say."""

from __future__ import annotations

import csv
from pathlib import Path

from tuner.device.recorded.recording import RecordedDeviceInfo
from tuner.model.hardware import architecture_for


def _known_gpus() -> dict[str, RecordedDeviceInfo]:
    """Read gpus.csv, from the whitepapers of NVIDIA's architectures and the products' data sheets.

    They are Turing, GA100, GA102, Ada, GH100 and RTX Blackwell; the H200's L2 is what its driver
    says (kernels/sglang/recordings/h200). By the driver's name without "NVIDIA", "GeForce" and
    "Tesla", in lower case, blanks for hyphens. The streaming rate is the memory's peak, which no
    kernel reaches: a share of it says too little.
    """
    told = {"gpu_numbers": "from data sheets; the streaming rate is the memory's peak"}
    known = {}
    with Path(__file__).with_name("gpus.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            capability = int(row["major"]), int(row["minor"])
            known[row["name"]] = RecordedDeviceInfo(
                name=row["name"],
                architecture=architecture_for(capability),
                compute_capability=capability,
                multiprocessors=int(row["multiprocessors"]),
                l2_bytes=int(float(row["l2_mib"]) * (1 << 20)),
                streaming_gbps=float(row["memory_gbps"]),
                environment=told,
            )
    return known


GPUS = _known_gpus()


def known_gpu(name: str) -> RecordedDeviceInfo | None:
    """Look a GPU up by its driver's name for it."""
    words = name.lower().replace("-", " ").split()
    return GPUS.get(" ".join(word for word in words if word not in ("nvidia", "geforce", "tesla")))
