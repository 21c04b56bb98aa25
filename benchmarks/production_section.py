"""The sections of docs/results.md about SGLang's operators, against production and its peers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from against_production import (
    all_cells,
    figures,
    geometric_mean,
    misses,
    result_of,
    table,
    targets,
)

RESULTS = Path(__file__).resolve().parent / "results/h200"
RECORDED = RESULTS.parent / "cpu/recorded_operators.json"


def production() -> Iterator[str]:
    """Write tuned kernels against what production runs, with the figures that are asked."""
    found, known = all_cells(), targets()
    operators = list(dict.fromkeys(cell.operator for cell in found))
    yield f"## SGLang's operators on an {known['gpu']}\n"
    yield "| figure | asked | measured |\n|---|---|---|"
    yield from (f"| {name} | {asked} | {got} |" for name, asked, got in figures(found))
    yield ""
    missed = list(misses(found))
    if missed:
        yield "Missed:\n"
        yield from (f"- {line}" for line in missed)
        yield ""
    yield (
        "Microseconds per call, bf16. The baselines are our own kernels (kernels/sglang at the "
        "commit of each result). *Best peer* is the fastest of what production can call: "
        "`sgl-aot` (SGLang's prebuilt operators), `sgl-jit` (its JIT kernels) and `flashinfer`, "
        f"measured on {known['measured']} on the same kind of GPU by the same protocol, but not "
        "in the same run. The 95 % interval is that of the tuned median. GB/s count the fewest "
        "bytes that the operator must move; about "
        f"{known['streaming_gbps']:,} was the most seen of silu_and_mul, which reads two for each "
        "that it writes. With more reads to a write it is a little more, with one about 4,150.\n"
    )
    yield (
        "Winners use programmatic dependent launch, as `sgl-jit` does: calls overlap their "
        "neighbours. *Isolated* is the same config without it. At few tokens the winners fetch "
        "their input into the L2 while the call before them ends; in a model that input was just "
        "written and is there already, so the isolated times are the ones to expect there. "
        f"{_floor()}\n"
    )
    yield from table(found)
    overall = geometric_mean([cell.ratio for cell in found])
    apart = [cell for cell in found if cell.isolated_us]
    isolated = geometric_mean([c.ratio * c.tuned_us / (c.isolated_us or 0.0) for c in apart])
    yield (
        f"\nGeometric mean over {len(found)} cells of {len(operators)} operators: "
        f"{overall:.2f}x the best peer of each; {isolated:.2f}x with isolated times (of "
        f"{len(apart)} cells).\n"
    )
    yield _without_a_gpu(json.loads(RECORDED.read_text(encoding="utf-8")))
    compilers = {(result_of(name) or {})["environment"]["compiler"] for name in operators}
    yield (
        f"{', '.join(sorted(compilers))}. `benchmarks/record_all.py`, "
        "`benchmarks/results/h200/<operator>.json`, `benchmarks/targets/sglang_h200.json`; "
        "compare with `python benchmarks/against_production.py`.\n"
    )


def _without_a_gpu(recorded: Mapping[str, Any]) -> str:
    operators = recorded["operators"].values()
    least = min(min(one["shares"].values()) for one in operators)
    halved = [x for one in operators for x in one["shares_with_half_the_trials"].values()]
    configs = sorted(one["configs"] for one in operators)
    return (
        f"Without a GPU, `tune` on the {len(operators)} recordings takes "
        f"{recorded['seconds']:.0f} s in all on {recorded['environment']['cores']} cores, and "
        f"finds at least {least:.1%} of the best recorded on each workload. They hold "
        f"{configs[0]} to {configs[-1]} configs of each, so that says little of the search. With "
        f"trials for half of them it reaches {geometric_mean(halved):.1%} (geometric mean over "
        f"{len(halved)} workloads; at least {min(halved):.1%}). How it does in whole spaces is "
        "said below. (`benchmarks/recorded_operators.py`, "
        "`benchmarks/results/cpu/recorded_operators.json`.)\n"
    )


def _floor() -> str:
    (one,) = json.loads((RESULTS / "launch_floor.json").read_text(encoding="utf-8"))["workloads"]
    return (
        f"By this protocol a kernel that writes one number takes {one['baseline_us']:.2f} us a "
        f"call, {one['tuned_us']:.2f} us with programmatic launch: nothing is faster "
        "(`benchmarks/results/h200/launch_floor.json`)."
    )


def campaign(content: Mapping[str, Any]) -> Iterator[str]:
    """Write how long it takes to renew all recordings and results."""
    seconds, gpus = content["seconds"], content["gpus"]
    runs = "one go" if content["runs"] == 1 else f"{content['runs']} runs that resume one another"
    longest = sorted(seconds, key=seconds.get, reverse=True)[:3]
    yield "## Renewing all of it\n"
    yield (
        f"`scripts/record`, {len(seconds)} recordings and benchmarks: "
        f"{content['wall_s'] / 60:.1f} min on {gpus} GPUs with {content['cores']} cores, in "
        f"{runs}. "
        f"One after the other the jobs are {sum(seconds.values()) / 60:.0f} min; the longest are "
        + ", ".join(f"{name} ({seconds[name] / 60:.1f} min)" for name in longest)
        + ". `benchmarks/record_all.py`, `benchmarks/results/h200/record_all.json`.\n"
    )


def peers_in_the_same_run(content: Mapping[str, Any]) -> Iterator[str]:
    """Write tuned kernels against what was installed, timed in the same rounds."""
    environment = content["environment"]
    versions = ", ".join(f"{name} {known}" for name, known in environment["packages"].items())
    yield "## Peers in the same run\n"
    yield (
        f"`tune … --peers` on an {environment['device']} with {versions}: each operator's "
        "smallest and largest workload, ours after as many trials as in its recording. Under "
        "each peer its microseconds, and how many times faster "
        "the tuned kernel is; the 95 % intervals are narrower than the last digit but for where "
        "they are given.\n"
    )
    names = list(dict.fromkeys(n for _, one in _rows(content) for n in one["peers"]))
    yield f"| operator | workload | tuned | {' | '.join(names)} |"
    yield "|---|---|---|" + "---|" * len(names)
    for kernel, one in _rows(content):
        key = ",".join(f"{name}={size}" for name, size in one["workload"].items())
        cells = " | ".join(_peer(one["peers"].get(name)) for name in names)
        yield f"| {kernel} | {key} | {one['tuned_us']:.2f} | {cells} |"
    ahead = [
        f"- {name} on {kernel}: {1 / peer['tuned_speedup'] - 1:.1%}"
        for kernel, one in _rows(content)
        for name, peer in one["peers"].items()
        if peer["interval"] and peer["interval"][1] < 1.0
    ]
    if ahead:
        yield "\nAhead of ours:\n"
        yield from ahead
    reasons = [
        f"- {name} on {kernel}: {peer['status']}, {peer['reason']}"
        for kernel, name, peer in _failed(content)
    ]
    if reasons:
        yield "\nVerified like every kernel, these failed:\n"
        yield from reasons
    yield "\n`benchmarks/peers.py`, `benchmarks/results/h200/peers.json`.\n"


def _rows(content: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for run in content["runs"]:
        yield from ((run["kernel"], one) for one in run["workloads"])


def _peer(peer: Mapping[str, Any] | None) -> str:
    if peer is None or peer["us"] is None:
        return "-" if peer is None or peer["status"] == "not_recorded" else peer["status"]
    low, high = peer["interval"]
    text = f"{peer['us']:.2f}, {peer['tuned_speedup']:.2f}x"
    return text if f"{low:.2f}" == f"{high:.2f}" else f"{text} ({low:.2f} to {high:.2f})"


def _failed(content: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    told = set()
    for kernel, one in _rows(content):
        for name, peer in one["peers"].items():
            bad = peer["status"] not in ("correct", "not_recorded", "constraint")
            if bad and (kernel, name) not in told:
                told.add((kernel, name))
                yield kernel, name, peer
