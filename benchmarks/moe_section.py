"""The page's part on the files of SGLang's fused MoE kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any

from environment import missed
from fused_moe import COLUMNS
from fused_moe_figures import QWEN3
from moe_modes import NO_FILE
from sglang_script import NUMBERS

from tuner.model.trial import RESOLUTION

Json = Mapping[str, Any]

# What is asked: of the trials of each number of tokens, and of a model's files in all.
TRIALS_MEDIAN, TRIALS_MOST, MINUTES = 60, 192, 15
OVER_GUESS, OVER_FILE = 1.25, 1.03
QWEN_HIDDEN = 2048
# Of the gain that the kernel's time implies, how much a step's gain may be.
LEAST, MOST = 0.8, 1.2
_SHORT = ("over the first", "over the guess")
OVER = {
    "over_engine": "what SGLang does by itself",
    "over_default": "the config that it guesses without a file",
}


def fused_moe(content: Json, gpu: str) -> Iterator[str]:
    """Tell what the files of a model are worth, and how many trials each row of them takes."""
    device = content["environment"]["device"]
    stale = "SGLang 0.5.17 has no file for it but one of Triton 3.2. " if "h100" in gpu else ""
    yield "## Files for SGLang's fused MoE kernel\n"
    yield (
        f"Qwen3-30B-A3B's experts (E 128, top 8, hidden 2048, bf16), and others where a table says "
        f"so, on an {device}, SGLang's own "
        "Triton kernel with Triton 3.6, with one config for both GEMMs or one for each. "
        "`benchmarks/fused_moe.py`, "
        f"`benchmarks/fused_moe_figures.py`, `benchmarks/results/{gpu}/fused_moe.json`. "
        f"{stale}Asked of an H200 are 1.25x over the guess, nowhere "
        "slower, and 1.03x over a file that fits, with a config for each GEMM.\n"
    )
    for one in content["fleets"]:
        yield from _fleet(one)
    yield from _seeds(content["fleets"])
    if content["searches"]:
        yield from _searches(content["searches"])


def _fleet(fleet: Json) -> Iterator[str]:
    rows, spent = fleet["rows"], fleet["seconds"]
    said = []
    for key, name in OVER.items():
        ratios = [row[key][0] for row in rows if key in row]
        if ratios:
            # What was asked over SGLang's file was asked of a config for each GEMM.
            least = OVER_GUESS if key == "over_default" else OVER_FILE if fleet.get("two") else 0.0
            short = missed(unless=geometric_mean(ratios) >= least)
            said.append(f"over {name} {_means(ratios)}{short}")
    parts, took = len({row.get("commit") for row in rows}), ""
    if spent is not None:
        took = f", made in {spent / 60:.1f} minutes (asked: {MINUTES})"
        took += missed(unless=spent <= 60 * MINUTES)
        if (runs := fleet.get("runs", 1)) > 1:
            took += f" by {runs} runs, each of which went on where the one before was stopped"
    elif parts > 1:
        took = f", made in {parts} parts"
        if stopped_s := fleet.get("stopped_s"):
            took += f", the last of which was stopped after {stopped_s / 60:.1f} minutes"
    asked = fleet["asked"]
    numbers = f"{len(rows)} numbers of tokens"
    if asked > len(rows):
        numbers = f"{len(rows)} of {asked} numbers of tokens: it ended before the others"
    configs = ", a config for each GEMM" if fleet.get("two") else ""
    yield (
        f"**{fleet['columns']} columns an expert**{_others(fleet)}{configs}, {numbers}{took}, seed "
        f"{fleet['seed']}: {'; '.join(said)}. A ratio of 1 without an interval is where the file "
        "has the engine's own config. Times are between the calls before and after for up to 64 "
        "tokens.\n"
    )
    head = ("tokens", "trials", "SGLang by itself, us", "guessed", "in the file", *_SHORT)
    yield f"| {' | '.join(head)} |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        default = f"{row['default_us']:.1f}" if "default_us" in row else "-"
        ratios = " | ".join(_ratio(row[key]) if key in row else "-" for key in OVER)
        yield (
            f"| {row['tokens']} | {row['trials']} | {row['engine_us']:.1f} | {default} "
            f"| {row['us']:.1f} | {ratios} |"
        )
    yield ""


def _others(fleet: Json) -> str:
    """Say of which experts, where they are not Qwen3's."""
    if fleet.get("hidden", QWEN_HIDDEN) == QWEN_HIDDEN:
        return ""
    elsewhere = f", a part of {fleet['experts'] * fleet['ep']}" if fleet["ep"] > 1 else ""
    weights = "fp8 in blocks" if fleet["weights"] == "fp8_block" else fleet["weights"]
    return f", {fleet['experts']} experts{elsewhere}, hidden {fleet['hidden']}, {weights}"


def _seeds(fleets: Sequence[Json]) -> Iterator[str]:
    """Count where the files of two seeds of one commit differ."""
    alike: dict[tuple[int, bool, str], list[dict[int, Json]]] = {}
    for one in fleets:
        rows = {row["tokens"]: row for row in one["rows"]}
        made = one["columns"], one.get("two", False), one.get("commit", "")
        alike.setdefault(made, []).append(rows)
    for (columns, _, _), found in alike.items():
        if len(found) < 2:
            continue
        pairs = [(found[0][key], found[1][key]) for key in found[0] if key in found[1]]
        others = [pair for pair in pairs if pair[0]["config"] != pair[1]["config"]]
        yield (
            f"Two seeds, {columns} columns: {len(pairs)} numbers of tokens have a config by both, "
            f"of {len(others)} they differ.\n"
        )


def seeds(content: Json) -> Iterator[str]:
    """Say what two seeds' configs took, timed in the same rounds."""
    rows = content["rows"]
    proved = _apart(rows, 0.0)
    draws = len(rows[0]["draws"]) if rows else 0
    yield "## Two seeds' files for SGLang's fused MoE kernel\n"
    yield (
        f"The files of seeds 0 and 1, {content['columns']} columns, each made on a GPU of its own "
        f"of one host at commit {content['environment']['commit']}: {content['shared']} numbers of "
        f"tokens have a config by both, of {len(rows)} they differ. Those were timed in the same "
        f"rounds, in {draws} draws of inputs and routes; the interval is that of the draws. "
        f"{proved} differ by more than it, {_apart(rows, RESOLUTION)} of them by more than the "
        f"{RESOLUTION:.1%} within which `tune` claims no difference (asked: 0)"
        f"{missed(unless=_apart(rows, RESOLUTION) == 0)}.\n"
    )
    yield "| tokens | seed 0 takes of seed 1's time | interval |"
    yield "|---|---|---|"
    for row in rows:
        low, high = row["interval"]
        yield f"| {row['tokens']} | {row['ratio']:.3f} | {low:.3f} to {high:.3f} |"
    yield ("\n`benchmarks/fused_moe_seeds.py`, `benchmarks/results/h200/fused_moe_seeds.json`.\n")


def again(content: Json) -> Iterator[str]:
    """Say whether it is the inputs, the process or the GPU that changes what a config takes."""
    rows, of = content["rows"], content["deviations"]
    gpus, turns = (len({row[name] for row in rows}) for name in ("gpu", "turn"))
    yield "## The same configs, measured again\n"
    yield (
        f"Finalists of {len({row['workload'] for row in rows})} numbers of tokens beside SGLang's "
        f"own config, in {turns} processes on each of {gpus} GPUs of a host, in "
        f"{len(rows[0]['draws'])} draws of the inputs each. What a config takes of the other's "
        f"time varies by {of['draw']:.2%} from draw to draw, by {of['process']:.2%} more from "
        f"process to process and by {of['gpu']:.2%} from GPU to GPU (standard deviations), where "
        f"a process's mean is known to {of['error_of_a_process']:.2%}: it is the inputs. "
        "`benchmarks/measured_again.py`, `benchmarks/results/h200/fused_moe_again.json`.\n"
    )


def sessions(content: Json) -> Iterator[str]:
    """Say how far apart two sessions measured the same configs, and what their files' ones gain."""
    yield (
        f"The final rounds of these two have {content['configs']} configs in common; of "
        f"{content['quiet']} a round scatters by less than 2 %. What a config takes of the time of "
        f"SGLang's own is {content['apart']:.2%} apart in the two (root mean square), where the "
        f"scatter within each lets expect {content['expected']:.2%}. By how much each one's "
        "choice is faster than SGLang's own, in its own final rounds:\n"
    )
    yield "| tokens | seed 0 | seed 1 | seed 1 over seed 0 |"
    yield "|---|---|---|---|"
    for row in content["choices"]:
        first, second = row["chosen"]
        gap = second["gain"] - first["gain"]
        error = math.hypot(first["error"], second["error"])
        sides = " | ".join(map(_gained, (first, second)))
        yield f"| {row['tokens']} | {sides} | {gap:+.2%} ± {2.0 * error:.2%} |"
    yield ("\n`benchmarks/measured_again.py`, `benchmarks/results/h200/fused_moe_sessions.json`.\n")


def compiling(content: Json) -> Iterator[str]:
    """Say what compiling a config takes."""
    yield "## Compiling configs of SGLang's fused MoE kernel ahead\n"
    yield (
        f"{content['rows'][0]['configs']} configs for each process, {content['columns']} columns, "
        "Triton's cache empty. *The rest* is what a config takes once all is compiled.\n"
    )
    yield "| processes | a config, s | of a core, s | of it assembling, s | the rest, s |"
    yield "|---|---|---|---|---|"
    for row in content["rows"]:
        first = row["first_s"]
        yield (
            f"| {row['processes']} | {first['clock']:.2f} | {first['core']:.2f} "
            f"| {first['cubin']:.2f} | {row['again_s']['clock']:.2f} |"
        )
    yield "\n`benchmarks/compile_ahead.py`, `benchmarks/results/h200/compile_ahead.json`.\n"


def script(content: Json) -> Iterator[str]:
    """Say what SGLang's own script takes for what a fleet does."""
    count, every = content["configs"], content["of"]
    yield "## SGLang's own script for its fused MoE kernel\n"
    yield (
        f"SGLang's `tuning_fused_moe_triton.py` tries all of {every:,} configs for each number of "
        f"tokens, one after the other. Of these {count} at random, for Qwen3-30B-A3B on one GPU, "
        "in seconds, first with an empty cache of Triton's and then with a full one:\n"
    )
    yield "| tokens | first | again |"
    yield "|---|---|---|"
    for row in content["rows"]:
        yield f"| {row['tokens']} | {row['first_s']:.1f} | {row['again_s']:.1f} |"
    yield (
        "\nAll for 18 numbers of tokens, compiled once, come to "
        f"{content['estimated_s'] / 3600:.1f} hours. "
        "`benchmarks/sglang_script.py`, `benchmarks/results/h200/sglang_script.json`.\n"
    )


def in_short(fleets: Json, scripts: Json | None) -> str:
    """Say in a paragraph what a fleet of a model takes and is worth over its seeds, if any is."""
    whole = [one for one in fleets["fleets"] if _is_whole(one)]
    if not whole:
        return ""
    rows = [row for one in whole for row in one["rows"]]
    minutes = " and ".join(f"{s / 60:.1f}" for s in sorted(one["seconds"] for one in whole))
    guess, own = ([row[key][0] for row in rows] for key in ("over_default", "over_engine"))
    script = ""
    if scripts:
        hours = scripts["estimated_s"] / 3600
        script = f", where SGLang's own script would take at least {hours:.1f} hours"
    return (
        "`tune fleet` writes the configs of SGLang's fused MoE kernel, in Triton, for "
        f"Qwen3-30B-A3B on one GPU in {minutes} minutes by seed{script}. With them the kernel is "
        f"{geometric_mean(guess):.2f}x as fast as with what SGLang guesses without a file "
        f"({min(guess):.2f}x at the least) and {geometric_mean(own):.2f}x as with its own file "
        f"({min(own):.2f}x at the least), geometric means over {NUMBERS} numbers of tokens."
    )


def _is_whole(fleet: Json) -> bool:
    one_config = fleet["columns"] == COLUMNS and not fleet.get("two")
    return one_config and fleet["seconds"] is not None and len(fleet["rows"]) == NUMBERS


def _gained(chosen: Json) -> str:
    if chosen["config"] is None:
        return "SGLang's own"
    return f"{chosen['gain']:.2%} ± {2.0 * chosen['error']:.2%}"


def _apart(rows: Sequence[Json], least: float) -> int:
    """Count the intervals that lie beyond so much on either side of 1."""
    bounds = (row["interval"] for row in rows)
    return sum(low > 1.0 + least or high < 1.0 - least for low, high in bounds)


def _means(ratios: Sequence[float]) -> str:
    return f"{geometric_mean(ratios):.3f}x (geometric mean), {min(ratios):.3f}x at the least"


def _or_more(trials: float) -> str:
    return f"over {TRIALS_MOST}" if trials > TRIALS_MOST else f"{trials:.0f}"


def _ratio(found: Sequence[float]) -> str:
    ratio, low, high = found
    return f"{ratio:.2f}x" if low == high else f"{ratio:.2f}x [{low:.2f}, {high:.2f}]"


def _searches(searches: Sequence[Json]) -> Iterator[str]:
    counts = [count for one in searches for count in one["trials"]]
    known = [TRIALS_MOST + 1 if count is None else count for count in counts]
    yield (
        "**Trials to within 1 % of the best** of the configs that were measured; of SGLang's "
        "1,920 the GPU can run 1,304 in bf16 and 1,248 in fp8. Searches replayed with "
        f"{len(searches[0]['trials'])} seeds, each number of tokens by itself: median "
        f"{_or_more(median(known))} (asked: {TRIALS_MEDIAN}), at most {_or_more(max(known))} "
        f"(asked: {TRIALS_MOST}).\n"
    )
    columns = "experts | columns | weights | tokens | configs | best, us | median trials | most"
    yield f"| {columns} | worst after {TRIALS_MOST} |"
    yield f"|{'---|' * 9}"
    for one in ({**QWEN3, **search} for search in searches):
        own = [TRIALS_MOST + 1 if count is None else count for count in one["trials"]]
        median_of, most = (_or_more(count) for count in (median(own), max(own)))
        worst = max(one["end_us"]) / one["best_us"]
        yield (
            f"| {one['experts']} | {one['columns']} | {one['weights']} "
            f"| {one['tokens']} | {one['configs']} | {one['best_us']:.1f} | {median_of} | {most} "
            f"| {worst:.3f}x the best |"
        )
    yield ""


def step(content: Json) -> Iterator[str]:
    """Tell what the files do to a decode step, beside what the kernel's time in it implies."""
    asked, packages = content["asked"], content["environment"]["packages"]
    layers = f", {asked['layers']} of its layers" if asked.get("layers") else ""
    yield f"## A decode step of SGLang with files for its fused MoE kernel: {content['model']}\n"
    yield (
        f"SGLang {packages['sglang']} with random weights{layers}: decode with "
        f"{asked['context']:,} tokens before, replays of the engine's CUDA graphs, each captured "
        f"{asked['captures']} times, with the kernel's configs from SGLang's own file, from none "
        f"(*{NO_FILE}*: its guess) and from a fleet's, in turn. *Implied* is the gain of a step in "
        "which nothing but the kernel changes, from its time in the one profile to that in the "
        "other, or by what the fleet recorded of the kernel alone. Asked is a measured gain of "
        f"{LEAST} to {MOST} times what the profiles imply.\n"
    )
    yield (
        "| batch | configs | over | the kernel's share | measured | implied | measured of it "
        "| by the record | logits apart |"
    )
    yield f"|{'---|' * 9}"
    for batch, case in content["decode"].items():
        for one in case["gains"]:
            yield _gain(batch, one, case["logits"][one["mode"]])
    yield (
        "\n`benchmarks/sglang_step.py --moe-configs`, `benchmarks/fused_moe_file.py`, "
        f"`benchmarks/results/h200/sglang_step/{content['model']}-moe-configs.json`.\n"
    )


def _gain(batch: str, gain: Json, logits: Json) -> str:
    low, high = gain["measured"]["interval"]
    found, wanted = gain["measured"]["median"] - 1, gain["implied"] - 1
    of_it = f"{found / wanted:.2f}" if wanted else "-"
    is_met = wanted != 0 and LEAST <= found / wanted <= MOST
    record = f"{gain['implied_by_record']:.4f}x" if "recorded" in gain else "-"
    return (
        f"| {batch} | {gain['mode']} | {gain['against']} | {gain['share']:.0%} "
        f"| {gain['measured']['median']:.4f}x ({low:.4f} to {high:.4f}) | {gain['implied']:.4f}x "
        f"| {of_it}{missed(unless=is_met)} | {record} "
        f"| {logits['relative_error']:.1%}, {logits['same_argmax']:.0%} the same token |"
    )
