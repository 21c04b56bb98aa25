"""The page's part on hardware that isn't NVIDIA's: OpenCL on a CPU, HIP without an AMD GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]


def portable_kernels(content: Json) -> Iterator[str]:
    """Show the portable kernels in OpenCL beside their baselines."""
    kernels = content["kernels"]
    device = next(iter(kernels.values()))["device"]
    yield "## OpenCL on a CPU\n"
    yield (
        f"The kernels of `kernels/portable` on {device}: {content['geometric_mean']:.2f}x over "
        f"their baselines (geometric mean), {content['slower']} slower. The baselines are what one "
        "writes first for a GPU, which suits a CPU badly. "
        "`benchmarks/portable_kernels.py`, `benchmarks/results/cpu/portable_kernels.json`.\n"
    )
    yield "| kernel | workload | baseline us | over the baseline | 95 % interval |"
    yield "|---|---|---|---|---|"
    for name, found in kernels.items():
        for row in found["workloads"]:
            sizes = " ".join(f"{axis}={size}" for axis, size in row["workload"].items())
            low, high = row["interval"]
            held_out = ", held out" if row["held_out"] else ""
            yield (
                f"| {name} | {sizes}{held_out} | {row['baseline_us']:,.0f} | "
                f"{row['speedup']:.2f}x | {low:.2f} to {high:.2f} |"
            )
    yield ""


def opencl_throughput(content: Json) -> Iterator[str]:
    """Tell how many configs a second are tried beside Kernel Tuner's OpenCL backend."""
    rates, runs, known = content["rates"], content["runs"]["tune"], content["environment"]
    yield (
        f"A convolution of {runs[0]['configs']} configs, from cold caches, all verified: "
        f"{rates['tune']:.2f} a second here and {rates['kernel_tuner']:.2f} with Kernel Tuner "
        f"{known['kernel_tuner']}'s OpenCL backend, {content['ratio']:.1f}x (asked: 3x), by the "
        f"median of {len(runs)} rounds in turns on {known['cpus']} cores. "
        "`benchmarks/opencl_throughput.py`, `benchmarks/results/cpu/opencl_throughput.json`.\n"
    )


def hip_configs(content: Json) -> Iterator[str]:
    """Show how many random configs of each kernel in HIP pass every stage that needs no GPU."""
    targets = content["targets"]
    yield "## HIP without an AMD GPU\n"
    yield (
        "Random configs of the same kernels. "
        "Occupancy is compared with clang's own remark. Nothing was run on AMD hardware. "
        "`benchmarks/hip_configs.py`, `benchmarks/results/cpu/hip_configs.json`.\n"
    )
    columns = ("target", "kernel", "configs", "compiled", "limits read", "occupancy as clang's")
    yield "| " + " | ".join((*columns, "right on the CPU")) + " |"
    yield "|---|---|---|---|---|---|---|"
    counts = ("of", "compiled", "limits_read", "occupancy_as_clang", "verified_on_cpu")
    for target, found in targets.items():
        for name, one in found["kernels"].items():
            numbers = (str(one.get(key, "not tried")) for key in counts)
            yield f"| {target}, {found['clang']} | {name} | " + " | ".join(numbers) + " |"
    yield ""
