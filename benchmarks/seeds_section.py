"""What docs/results.md says of searches with other seeds: measured on a GPU, and simulated."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

Json = dict[str, Any]


def two_seeds(content: Json) -> Iterator[str]:
    """Say how far apart two seeds' winners are on a GPU."""
    yield "## Two seeds\n"
    yield (
        "Each operator searched twice, with seeds 0 and 1, and the two winners compared in the "
        "same rounds: how much slower the slower one is. *Proved* is the worst of what the 95 % "
        "intervals begin at: a cost of a microsecond is the difference of chains that vary by as "
        "much as many a regret.\n"
    )
    yield "| operator | workloads | same winner | median | worst | proved | seconds |"
    yield "|---|---|---|---|---|---|---|"
    for one in content["operators"]:
        rows = one["workloads"]
        regrets = [row["regret"] for row in rows]
        proved = max(max(row.get("interval", (0.0,))[0], 0.0) for row in rows)
        yield (
            f"| {one['kernel']} | {len(rows)} | {sum(row['same'] for row in rows)} "
            f"| {median(regrets):.2%} | {max(regrets):.2%} | {proved:.2%} "
            f"| {', '.join(f'{s:.0f}' for s in one['seconds'])} |"
        )
    yield "\n`benchmarks/two_seeds.py`, `benchmarks/results/h200/two_seeds.json`.\n"


def simulated(content: Json) -> Iterator[str]:
    """Say what two seeds' winners differ by on a simulated GPU, and at which step."""
    yield "## Two seeds, simulated\n"
    yield (
        f"{content['seeds']} searches of each operator and {content['finals']} finals of each "
        "search, on costs and noise from the recordings, where what is best is known. *Before* is "
        "what `tune` did until then: 10 rounds chose among five finalists; a *longer race* tells "
        "costs apart that differ by 0.3 %, not 1 %. *Regret* is how much "
        "slower the slower of two seeds' winners is, the median and the worst of all workloads, "
        "the mean over pairs of runs. What a winner loses to the best config of all is put down to "
        "the step that lost it: the best one tried in full, the best in the finals, the winner.\n"
    )
    yield (
        "| operator | | trials | finals | median regret | worst | never tried | not in the finals "
        "| chosen wrongly |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for one in content["operators"]:
        for way, found in one["ways"].items():
            lost = ("never_tried", "not_in_the_finals", "chosen_wrongly")
            yield (
                f"| {one['kernel']} | {way} | {found['trials']:.0f} | {found['finals_s']:.0f} s "
                f"| {found['median_regret']:.2%} | {found['worst_regret']:.1%} | "
                + " | ".join(f"{found[name]:.2%}" for name in lost)
                + " |"
            )
    yield (
        "\nTrials and seconds are those of all workloads; a replay is taken to last 2 ms. "
        "`benchmarks/simulated_seeds.py`, `benchmarks/results/cpu/simulated_seeds.json`.\n"
    )


def fleet(content: Json) -> Iterator[str]:
    """Say what a fleet's files lose, and two of them differ by, where searches go further."""
    yield "## How far a fleet should search\n"
    yield (
        f"`tune fleet` on a simulated GPU: {content['tokens']} numbers of tokens of "
        f"Qwen3-30B-A3B's experts, {content['seeds']} seeds. What configs cost is from two "
        "fleets on an H200, and so is what times scatter by, from round to round and from draw to "
        "draw of the inputs; a forest fitted to them says what "
        "other configs cost, so that the best is known. *Enough* is the expected gain below which "
        "a search ends (`--enough`). *Not tried* is how much slower than the best the best config "
        "is that was tried, *lost* what the file's config is: means, and the worst. *Differ* "
        "counts the numbers of tokens at which two seeds' files have configs of another cost, "
        "*apart* those where it is by more than "
        f"{content['apart_by']:.1%}: means over pairs of seeds.\n"
    )
    yield (
        "| enough | trials | not tried | lost | lost at most | differ | apart | farthest apart |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for one in content["ways"]:
        few = ", few draws" if one["inputs"] == "few" else ""
        yield (
            f"| {one['enough']:.1%}{few} | {one['trials']:.0f} | {one['never_tried']:.2%} "
            f"| {one['loss']:.2%} | {one['worst_loss']:.2%} | {one['differ']:.1f} "
            f"| {one['apart']:.1f} | {one['worst_apart']:.2%} |"
        )
    yield (
        "\n0.5 % is what `tune` has by default; each number of tokens after the first then adds 30 "
        "trials at most, which ended most of these searches. With less each may take 100, and then "
        "all that differs from one of its three fastest in one parameter, and what is then best "
        "for others, and the finals take 96 rounds in place of 40. 0.1 % is what `tune fleet` "
        "has. 17 numbers of tokens had 79 to 250 configs measured, 256 had 716, most of them from "
        "a recording: the rest is the forest's, "
        "in which no config is good alone. Each row of a race and of the finals has inputs of its "
        "own; with *few draws* all rows of a call of a race have the same, and those of the finals "
        "eight draws, as until commit b2040d92. "
        "[On an H200](#two-seeds-files-for-sglangs-fused-moe-kernel) two seeds' files differ at a "
        "few, too. "
        "`benchmarks/simulated_fleet.py`, `benchmarks/results/cpu/simulated_fleet.json`.\n"
    )
