"""The numbers of GPUs that a foreign file only names."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.device.recording import RecordedDeviceInfo
from tuner.errors import DeviceError
from tuner.hardware import architecture_for

MIB = 1 << 20
_AMD = ("amd", "radeon", "instinct", "gfx")


@dataclass(frozen=True, slots=True)
class Gpu:
    """Compute capability, multiprocessors, L2 cache and the peak rate of the memory."""

    compute_capability: tuple[int, int]
    multiprocessors: int
    l2_mib: float
    memory_gbps: float


# NVIDIA's architecture whitepapers (Turing, GA100, GA102, Ada, GH100, RTX Blackwell) and the
# products' data sheets; the H200's L2 is what its driver says (kernels/sglang/recordings/h200).
# By the driver's name without "NVIDIA", "GeForce" and "Tesla", in lower case, blanks for hyphens.
GPUS = {
    "t4": Gpu((7, 5), 40, 4, 320.0),
    "rtx 2080 ti": Gpu((7, 5), 68, 5.5, 616.0),
    "titan rtx": Gpu((7, 5), 72, 6, 672.0),
    "a100 pcie 40gb": Gpu((8, 0), 108, 40, 1555.0),
    "a100 sxm4 40gb": Gpu((8, 0), 108, 40, 1555.0),
    "a100 80gb pcie": Gpu((8, 0), 108, 40, 1935.0),
    "a100 sxm4 80gb": Gpu((8, 0), 108, 40, 2039.0),
    "a30": Gpu((8, 0), 56, 24, 933.0),
    "a10": Gpu((8, 6), 72, 6, 600.0),
    "a40": Gpu((8, 6), 84, 6, 696.0),
    "rtx a4000": Gpu((8, 6), 48, 4, 448.0),
    "rtx a5000": Gpu((8, 6), 64, 6, 768.0),
    "rtx a6000": Gpu((8, 6), 84, 6, 768.0),
    "rtx 3060": Gpu((8, 6), 28, 3, 360.0),
    "rtx 3070": Gpu((8, 6), 46, 4, 448.0),
    "rtx 3080": Gpu((8, 6), 68, 5, 760.0),
    "rtx 3090": Gpu((8, 6), 82, 6, 936.0),
    "rtx 3090 ti": Gpu((8, 6), 84, 6, 1008.0),
    "l4": Gpu((8, 9), 58, 48, 300.0),
    "l40": Gpu((8, 9), 142, 96, 864.0),
    "l40s": Gpu((8, 9), 142, 96, 864.0),
    "rtx 4090": Gpu((8, 9), 128, 72, 1008.0),
    "h100 pcie": Gpu((9, 0), 114, 50, 2039.0),
    "h100 80gb hbm3": Gpu((9, 0), 132, 50, 3352.0),
    "h200": Gpu((9, 0), 132, 60, 4800.0),
    "rtx 5090": Gpu((12, 0), 170, 96, 1792.0),
}


def device_info(name: str) -> RecordedDeviceInfo:
    """Look a GPU up by the name that its driver gives it; raise `DeviceError` for an unknown one.

    The streaming rate is the memory's peak, which no kernel reaches: a share of it says too little.
    """
    gpu = GPUS.get(_short(name))
    if gpu is None:
        remedy = f"known are {', '.join(GPUS)}; `tune compare` replays a file of any GPU"
        if not name:
            raise DeviceError(
                "does not say on which GPU it was made",
                remedy='add `"device_name": "..."` as the GPU\'s driver calls it (at the top of a '
                f"cache, in the `metadata` of T4 results); {remedy}",
            )
        if any(word in name.lower() for word in _AMD):
            raise DeviceError(
                f"was made on {name}, which runs no CUDA kernel",
                remedy="`tune compare` replays it all the same",
            )
        raise DeviceError(f"was made on {name}, whose numbers are not known", remedy=remedy)
    return RecordedDeviceInfo(
        name=name,
        architecture=architecture_for(gpu.compute_capability),
        compute_capability=gpu.compute_capability,
        multiprocessors=gpu.multiprocessors,
        l2_bytes=int(gpu.l2_mib * MIB),
        streaming_gbps=gpu.memory_gbps,
        environment={"gpu_numbers": "from data sheets; the streaming rate is the memory's peak"},
    )


def l2_bytes_of(name: str) -> int:
    """Look up the size of a GPU's L2 cache; 0 where the GPU is not known."""
    gpu = GPUS.get(_short(name))
    return 0 if gpu is None else int(gpu.l2_mib * MIB)


def _short(name: str) -> str:
    words = name.lower().replace("-", " ").split()
    return " ".join(word for word in words if word not in ("nvidia", "geforce", "tesla"))
