"""The page's part on decode steps through `sgl.Engine`, beside what costs predict of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from environment import missed

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/h200"
Json = Mapping[str, Any]
# How many times faster a decode step was to become, by mode and batch size.
ASKED: Mapping[str, Mapping[str, float]] = {
    "operators": {"1": 1.02, "16": 1.02, "64": 1.01, "128": 1.01},
    "all": {"1": 1.08, "16": 1.06, "64": 1.01, "128": 1.01},
}
OWN, OPERATORS, ALL = "own", "operators", "all"
OWN_RUNNER = "sglang"  # as sglang_step.py calls it
CONTENTS = {
    OPERATORS: "`rmsnorm`, `fused_add_rmsnorm`, `silu_and_mul`",
    ALL: "these and `gemm_small_m`",
}
PRODUCTS = "gemm_small_m"
# Whose layers gemm_surroundings.py has, and the widest product of one.
MODEL, WIDE = "llama-3-8b", "M=16,N=28672,K=4096"
# Of the runs of a process, the longest over the shortest: beyond it a step is not known.
SCATTER = 1.2


def section(content: Json) -> Iterator[str]:
    """Tell what a plugin does to steps of the engine as users start it, and what was predicted."""
    packages, context = content["environment"]["packages"], content["context"]
    yield f"## Steps of SGLang as users start it: {content['model']}\n"
    yield (
        f"SGLang {packages['sglang']} through `sgl.Engine`, random weights, {context:,} tokens "
        "before a step on average, the plugin of the recorded winners: a process for each mode in "
        "turn, each process three runs. A step is the median over processes; in parentheses the "
        "least and the greatest ratio of any two processes.\n"
    )
    yield "| batch | SGLang | with | step | over SGLang | asked | processes |"
    yield "|---|---|---|---|---|---|---|"
    steady = steady_steps(content)
    for batch, modes in content["steps"].items():
        yield from _rows(batch, modes)
    for batch in content["steps"].keys() - steady.keys():
        every = [us for runs in _runs_us(content, batch) for us in runs]
        yield (
            f"\nAt {batch} single runs of a process are {min(every):,.0f} to {max(every):,.0f} us; "
            "its median is what is compared."
        )
    yield from predictions(content["model"], steady)
    yield "\n`benchmarks/sglang_processes.py`, `benchmarks/results/h200/sglang_processes.json`.\n"


def steady_steps(content: Json) -> dict[str, Json]:
    """Keep the batch sizes at which the runs of every process agree."""
    return {
        batch: modes
        for batch, modes in content["steps"].items()
        if all(max(us) <= SCATTER * min(us) for us in _runs_us(content, batch))
    }


def _runs_us(content: Json, batch: str) -> list[list[float]]:
    return [one["step_us"][batch] for one in content["processes"] if batch in one["step_us"]]


def _rows(batch: str, modes: Json) -> Iterator[str]:
    own = modes[OWN]
    for mode, what in CONTENTS.items():
        one, asked = modes[mode], ASKED[mode][batch]
        (low, high), count = one["spread"], len(one["processes_us"])
        yield (
            f"| {batch} | {own['us']:,.0f} us | {what} | {one['us']:,.0f} us "
            f"| {one['speedup']:.3f}x ({low:.3f} to {high:.3f}) "
            f"| {asked}x{missed(unless=one['speedup'] >= asked)} "
            f"| {len(own['processes_us'])} and {count} |"
        )


def predictions(model: str, steps: Json) -> Iterator[str]:
    """Set what the operators' costs predict beside what the step gained."""
    yield (
        "\nWhat the operators' costs predict, the saving of a call times its calls, beside what "
        "the step saved; of the products what it saved more with than without them:\n"
    )
    yield "| batch | operators: predicted | saved | products: predicted | saved | of it |"
    yield "|---|---|---|---|---|---|"
    for batch, modes in steps.items():
        predicted = predicted_us(model, int(batch))
        small = sum(us for name, us in predicted.items() if name != PRODUCTS)
        saved = modes[OWN]["us"] - modes[OPERATORS]["us"]
        more = modes[OPERATORS]["us"] - modes[ALL]["us"]
        yield (
            f"| {batch} | {small:.0f} us | {saved:.0f} us | {predicted[PRODUCTS]:.0f} us "
            f"| {more:.0f} us | {more / predicted[PRODUCTS]:.0%} |"
        )


def calls_of(model: str, batch: int) -> Iterator[tuple[str, dict[str, int], int]]:
    """List the calls of a Llama's decode step that the plugin serves: operator, axes, count."""
    config = json.loads((ROOT / f"benchmarks/models/{model}.json").read_text(encoding="utf-8"))
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    inner, heads = config["intermediate_size"], config["num_attention_heads"]
    projected = (heads + 2 * config["num_key_value_heads"]) * (hidden // heads)
    yield "rmsnorm", {"T": batch, "H": hidden}, 1
    yield "fused_add_rmsnorm", {"T": batch, "H": hidden}, 2 * layers
    yield "silu_and_mul", {"T": batch, "D": inner}, layers
    shapes = ((projected, hidden), (hidden, hidden), (2 * inner, hidden), (hidden, inner))
    for columns, depth in shapes:
        yield PRODUCTS, {"M": batch, "N": columns, "K": depth}, layers


@cache
def read_operator(name: str) -> Json:
    """Read an operator's result; it is asked for each of its shapes."""
    content: Json = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def predicted_us(model: str, batch: int) -> dict[str, float]:
    """Sum up what the costs in the chains say that each operator saves in a step.

    A shape that was not measured, and one that production's own serves, saves nothing.
    """
    found: dict[str, float] = {}
    for name, axes, count in calls_of(model, batch):
        for row in read_operator(name)["workloads"]:
            if row["axes"] == axes:
                costs = {one["name"]: one["us"] for one in row["programs"]}
                own = costs[row["production"]]
                saved = own - costs.get(row["dispatch"], own)
                found[name] = found.get(name, 0.0) + count * saved
    return found


def each(content: Json) -> Iterator[str]:
    """Tell what each operator saves by itself, in one process of SGLang's model runner."""
    yield "### Each operator by itself\n"
    yield (
        "In one process of SGLang's model runner, with CUDA graphs that alternate: what a step "
        "saves with one operator, and what its costs predict.\n"
    )
    yield "| batch | operator | predicted | saved | over SGLang | served | logits apart |"
    yield "|---|---|---|---|---|---|---|"
    for batch, case in content["decode"].items():
        predicted = predicted_us(content["model"], int(batch))
        for mode, found in case["speedup"].items():
            name = mode.removeprefix("only ")
            served = case["calls"][mode].get(name)
            if served is None:
                continue
            saved = case["us"][OWN_RUNNER] - case["us"][mode]
            (low, high), tuned = found["interval"], served["tuned"]
            apart = case["logits"][mode]
            expected = f"{predicted[name]:.0f} us" if tuned and name in predicted else "0"
            yield (
                f"| {batch} | `{name}` | {expected} | {saved:.0f} us "
                f"| {found['median']:.4f}x ({low:.4f} to {high:.4f}) "
                f"| {tuned} of {tuned + served['original']} "
                f"| {apart['relative_error']:.1%}, {apart['same_argmax']:.0%} the same token |"
            )
    name = "sglang_step/llama-3-8b-each.json"
    yield f"\n`benchmarks/sglang_step.py --each`, `benchmarks/results/h200/{name}`.\n"


def neighbours(content: Json) -> Iterator[str]:
    """Tell how a product's cost depends on what runs before it."""
    yield "### What runs before a product\n"
    yield (
        "The same programs between other neighbours, us: after a stand-in that lets the product "
        "begin early, as SGLang's activation does; after one that does not; and after "
        "another product and then such a stand-in.\n"
    )
    names = ("early", "waiting", "product")
    yield f"| workload | {' | '.join(f'{one}: tuned, cuBLAS' for one in names)} |"
    yield "|---|---|---|---|"
    by_workload: dict[str, dict[str, Json]] = {}
    for row in content["rows"]:
        by_workload.setdefault(row["workload"], {})[row["neighbours"]] = row["us"]
    for workload, costs in by_workload.items():
        cells = (
            f"{costs[name]['tuned']:.1f}, {costs[name]['pytorch']:.1f}" if name in costs else ""
            for name in names
        )
        yield f"| {workload} | {' | '.join(cells)} |"
    yield _why_predictions_miss(by_workload)
    yield "`benchmarks/gemm_surroundings.py`, `benchmarks/results/h200/gemm_surroundings.json`.\n"


def _why_predictions_miss(costs: Mapping[str, Mapping[str, Json]]) -> str:
    """Say what an early start is worth, and how far cuBLAS is from itself in another session."""
    worth = [
        one["waiting"]["tuned"] - one["early"]["tuned"]
        for one in costs.values()
        if "waiting" in one
    ]
    here = costs[WIDE]["early"]["pytorch"]
    content = read_operator(PRODUCTS)
    (row,) = (one for one in content["workloads"] if one["workload"] == WIDE)
    (there,) = (one["us"] for one in row["programs"] if one["name"] == "pytorch")
    tokens = row["axes"]["M"]
    (layers,) = (n for _, axes, n in calls_of(MODEL, tokens) if axes == row["axes"])
    of_it, predicted = layers * (there - here), predicted_us(MODEL, tokens)[PRODUCTS]
    return (
        f"\nAn early start is worth {min(worth):.1f} to {max(worth):.1f} us of a tuned product, "
        "and nothing of cuBLAS's. What the predictions miss by is more: cuBLAS's widest product "
        f"of a layer, `{WIDE}`, took {there:.1f} us in the operators' session of "
        f"{content['created'][:10]} and {here:.1f} us here. Of the {predicted:.0f} us predicted at "
        f"this size {of_it:.0f} are of that.\n"
    )


def in_short(content: Json) -> str:
    """Tell the steps' speedups in a sentence for each plugin, and where it loses."""
    said, lost = [], []
    for mode, what in CONTENTS.items():
        found = {batch: modes[mode]["speedup"] for batch, modes in content["steps"].items()}
        won = ", ".join(f"{one:.3f}x at {batch}" for batch, one in found.items() if one >= 1)
        said.append(f"{won} with {what}")
        lost += [f"{one:.3f}x at {batch} with {what}" for batch, one in found.items() if one < 1]
    counts = {
        len(one["processes_us"]) for modes in content["steps"].values() for one in modes.values()
    }
    return (
        f"In SGLang, through `sgl.Engine` with a plugin: a decode step of {content['model']} with "
        f"{content['context']:,} tokens before gets faster by {'; by '.join(said)} (batch size; "
        f"medians over {' or '.join(map(str, sorted(counts)))} processes of each)."
        + (f" It loses elsewhere: {'; '.join(lost)}." if lost else "")
    )
