"""The page's tables on whole steps of SGLang, and on what a call of an exported operator costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]
# How many times faster a decode step was to become, by result file and batch size.
ASKED: Mapping[str, Mapping[int, float]] = {
    "llama-3-8b": {1: 1.02, 16: 1.02, 64: 1.01, 128: 1.01},
    "qwen3-30b-a3b": {1: 1.05, 64: 1.02},
}
# Where the lower end of the interval is above it, a step is no slower.
NO_SLOWER = 0.998
# A call's own part of the host's time, beside the bare launch.
CALL_US = 4.0
TUNED = "tuned"
# benchmarks/sglang_step.py puts the plugin in and out within one process.
CAVEAT = (
    "Each figure is of one process that ran both in turn; from one process to another SGLang's own "
    "step differs by up to 4 %, so that these are to be measured again over several."
)


def steps(content: Json) -> Iterator[str]:
    """Tell what the plugin does to a model's steps."""
    name, asked = content["model"], content["asked"]
    packages = content["environment"]["packages"]
    layers = f", {asked['layers']} of its layers" if asked.get("layers") else ""
    yield f"## Steps of SGLang with the exported plugin: {name}\n"
    yield (
        f"SGLang {packages['sglang']} with random weights{layers}: decode with "
        f"{asked['context']:,} tokens before, replays of the engine's CUDA graphs, with and "
        "without the plugin in turn; *over SGLang* is the median ratio with a 95 % interval. The "
        "plugin is that of the recorded winners; *served* counts the calls that tuned kernels "
        "took.\n"
    )
    yield f"{CAVEAT}\n"
    yield "| step | SGLang | with the plugin | over SGLang | asked | served | logits apart |"
    yield "|---|---|---|---|---|---|---|"
    for batch, case in content["decode"].items():
        wanted = ASKED.get(name, {}).get(int(batch))
        yield _row(f"decode, batch {batch}", case, f"{wanted}x" if wanted else "", wanted)
    for tokens, case in (content["prefill"] or {}).items():
        low = case["speedup"][TUNED]["interval"][0]
        missed = " **missed**" if low <= NO_SLOWER else ""
        yield _row(f"prefill, {int(tokens):,} tokens", case, f"no slower{missed}")
    yield from _kernels(content)
    yield f"\n`benchmarks/sglang_step.py`, `benchmarks/results/h200/sglang_step/{name}.json`.\n"


def _kernels(content: Json) -> Iterator[str]:
    """Tell what each operator's kernels take inside a step, SGLang's own and the tuned ones."""
    rows = {batch: _times(case["kernels"]) for batch, case in content["decode"].items()}
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    if not names:
        return
    yield (
        "\nInside a decode step, how many times faster the tuned kernels of an operator are than "
        "SGLang's, by the profiler's sums over the step:\n"
    )
    yield f"| batch | {' | '.join(names)} |\n|---|{'---|' * len(names)}"
    for batch, row in rows.items():
        found = (f"{row[name][0] / row[name][1]:.2f}x" if name in row else "" for name in names)
        yield f"| {batch} | {' | '.join(found)} |"


def _times(kernels: Json) -> dict[str, tuple[float, float]]:
    own, tuned = (kernels[mode]["kinds"] for mode in ("sglang", TUNED))
    return {
        name: (own[name]["us"], tuned[f"tuned {name}"]["us"])
        for name in own
        # What SGLang's profile calls otherwise, or serves partly, is not compared.
        if f"tuned {name}" in tuned and name not in tuned
    }


def _row(step: str, case: Json, asked: str, least: float = 0.0) -> str:
    found = case["speedup"][TUNED]
    low, high = found["interval"]
    missed = " **missed**" if least and found["median"] < least else ""
    plain, tuned = (case["us"][mode] for mode in (found["against"], TUNED))
    counts = case["calls"][TUNED].values()
    ours = sum(one["tuned"] for one in counts)
    calls = ours + sum(one["original"] for one in counts)
    apart = case["logits"][TUNED]
    return (
        f"| {step} | {plain:,.0f} us | {tuned:,.0f} us "
        f"| {found['median']:.4f}x ({low:.4f} to {high:.4f}) | {asked}{missed} | {ours} of {calls} "
        f"| {apart['relative_error']:.1%}, {apart['same_argmax']:.0%} the same token |"
    )


def call_cost(content: Json) -> Iterator[str]:
    """Tell what calling an operator of an exported package costs the host."""
    yield "## A call of an exported operator\n"
    yield (
        "Microseconds of the host for one call while the GPU has nothing else to do: the least of "
        f"several runs of {content['calls']} calls. Asked: at most {CALL_US:.0f} over the bare "
        "launch.\n"
    )
    yield "| operator | the function | through `torch.ops` | the driver's launch alone | over it |"
    yield "|---|---|---|---|---|"
    for name, us in content["us"].items():
        bare = us.get("bare launch")
        over = f"{us['function'] - bare:.1f}" if bare else ""
        missed = " **missed**" if bare and us["function"] - bare > CALL_US else ""
        others = " | ".join(f"{one:.1f}" if one else "" for one in (us.get("torch.ops"), bare))
        yield f"| {name} | {us['function']:.1f} | {others} | {over}{missed} |"
    yield "\n`benchmarks/call_cost.py`, `benchmarks/results/h200/call_cost.json`.\n"
