"""The page's part on hardware that isn't NVIDIA's: OpenCL on a CPU, HIP without an AMD GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from environment import missed

Json = Mapping[str, Any]
# How many times as many configs a second as Kernel Tuner were asked of OpenCL.
OVER_KERNEL_TUNER = 3.0


def portable_kernels(content: Json) -> Iterator[str]:
    """Show the portable kernels in OpenCL beside their baselines."""
    kernels = content["kernels"]
    device = next(iter(kernels.values()))["device"]
    yield "## Portable kernels in OpenCL on a CPU\n"
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
    rates, runs, known = content["rates"], content["runs"], content["environment"]
    mine, theirs = runs["tune"], runs["kernel_tuner"]
    used = {name: median(row["cpu_seconds"] for row in rows) for name, rows in runs.items()}
    least = {name: min(row["seconds"] for row in rows) for name, rows in runs.items()}
    in_all = median(row["in_all"]["seconds"] for row in mine)
    yield "## OpenCL on a CPU\n"
    yield (
        f"A convolution of {mine[0]['configs']} configs, from cold caches, all verified: "
        f"{rates['tune']:.2f} a second here and {rates['kernel_tuner']:.2f} with Kernel Tuner "
        f"{known['kernel_tuner']}'s OpenCL backend, {content['ratio']:.1f}x (asked: 3x)"
        f"{missed(unless=content['ratio'] >= OVER_KERNEL_TUNER)}, by the "
        f"medians of {len(mine)} rounds in shuffled order on {known['cpus']} cores; single rounds "
        f"{min(content['ratios']):.1f}x to {max(content['ratios']):.1f}x. Other jobs took "
        f"{_span(row['cores_of_others'] for row in mine)} cores meanwhile here and "
        f"{_span(row['cores_of_others'] for row in theirs)} there, where one is all that is used. "
        f"The run of each that was disturbed least took {least['tune']:.1f} s and "
        f"{least['kernel_tuner']:.1f} s, {least['kernel_tuner'] / least['tune']:.1f}x. "
        f"CPU seconds: {used['tune']:.1f} here, {used['kernel_tuner']:.1f} there. "
        "`benchmarks/opencl_throughput.py`, `benchmarks/results/cpu/opencl_throughput.json`.\n"
    )
    yield (
        "Most of both is PoCL's compiler, which makes code for each size of a work-group; here it "
        "does so on all cores, there on one. That is also why 3x is out of reach of two cores: "
        f"{used['tune']:.1f} CPU seconds take {used['tune'] / 2:.1f} s on both, and Kernel "
        f"Tuner's {used['kernel_tuner']:.1f} on one are "
        f"{used['kernel_tuner'] / used['tune'] * 2:.1f} times that. "
        "Opening the device and the baseline, verified and timed, are not counted; "
        f"with them the median is {in_all:.1f} s here and "
        f"{median(row['seconds'] for row in theirs):.1f} s there. For each config: "
        f"{content['done_for_a_config']['tune']}. Kernel Tuner: "
        f"{content['done_for_a_config']['kernel_tuner']}.\n"
    )


def opencl_on_more_cores(content: Json) -> Iterator[str]:
    """Tell the same of a machine with more cores, in short."""
    rates, runs, known = content["rates"], content["runs"], content["environment"]
    in_all = median(row["in_all"]["seconds"] for row in runs["tune"])
    used = {name: median(row["cpu_seconds"] for row in rows) for name, rows in runs.items()}
    yield (
        f"With {known['cpus']} idle cores ({known['cpu']}, {_pocl(known['opencl'])}): "
        f"{rates['tune']:.2f} and {rates['kernel_tuner']:.2f} a second, {content['ratio']:.1f}x "
        f"(asked: 3x){missed(unless=content['ratio'] >= OVER_KERNEL_TUNER)}, by the "
        f"medians of {len(runs['tune'])} rounds; single rounds "
        f"{min(content['ratios']):.1f}x to {max(content['ratios']):.1f}x. CPU seconds: "
        f"{used['tune']:.1f} here, {used['kernel_tuner']:.1f} there: each compiling process links "
        "PoCL's library anew. With opening the device, which starts them all, and the baseline "
        f"it is {in_all:.1f} s here. `benchmarks/results/cpu/opencl_throughput_16_cores.json`.\n"
    )


def _pocl(version: str) -> str:
    """Name PoCL and its release out of what the platform says of itself."""
    words = version.split()
    return " ".join(words[words.index("PoCL") :][:2])


def _span(loads: Iterable[float]) -> str:
    low, *_, high = sorted(loads)
    return f"{low:.1f} to {high:.1f}"


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
