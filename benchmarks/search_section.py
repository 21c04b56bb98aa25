"""The page's part on searching: how good it is, what it costs and what it is worth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import geometric_mean, median
from typing import Any

Json = Mapping[str, Any]

_GROUPS = {
    "chosen_on": "On spaces that the constants of `auto` were chosen on",
    "unseen": "On spaces that were kept out of every choice",
}
_WAYS = {
    "with_features": "with what the compiler says, to its own end",
    "without_features": "without it, to its own end",
    "with_features_to_the_end": "with it, never giving up",
    "without_features_to_the_end": "without it, never giving up",
}


def recorded(content: Json) -> Iterator[str]:
    """Say what a search of a recorded space finds, and in how many trials."""
    target = f"{content['target']:.0%}"
    yield "## The search on the recording\n"
    yield (
        f"`{content['searcher']}` on the recorded H200, {content['seeds']} seeds a workload, at "
        f"most {content['trials']} trials; a run is over when it has found {target} of the best "
        "config of the whole space. A trial is a config that the device was asked for.\n"
    )
    yield f"| each workload by itself | {target} within 40 trials | {target} at all | mean trials |"
    yield "|---|---|---|---|"
    for name, found in content["alone"].items():
        yield (
            f"| {_WAYS[name]} | {found['share_of_runs_within_40_trials']:.1%} of {found['runs']} "
            f"| {found['share_of_runs_that_reach_it']:.1%} | {found['mean_trials']:.1f} |"
        )
    for kernel, found in content["together"].items():
        shares = [share for run in found["runs"] for share in run["shares"].values()]
        reached = sum(share >= content["target"] for share in shares) / len(shares)
        yield (
            f"\nThe {len(found['runs'][0]['shares'])} workloads of {kernel} in one search: "
            f"{found['mean_trials_until_its_end']:.0f} trials in all, {reached:.1%} of the "
            f"workloads at {target} or better, the worst at {min(shares):.1%}."
        )
    yield ("\n`benchmarks/recorded_search.py`, `benchmarks/results/cpu/recorded_search.json`.\n")


def features(content: Json) -> Iterator[str]:
    """Say what the compiler's word tells of configs that were not timed."""
    decoding = content["decoding"]
    yield "## What the compiler says before a config is timed\n"
    yield (
        "A forest learns from configs drawn at random and ranks the others: the rank correlation "
        "with their recorded times, and the share of the best 1 % that is among the first 5 %. "
        f"Means over ten workloads a kernel and {content['seeds']} seeds.\n"
    )
    yield "| kernel | learned from | parameters | and the launch | and the compiler's word |"
    yield "|---|---|---|---|---|"
    for kernel, found in content["kernels"].items():
        for count, ways in found["ranking_from"].items():
            cells = " | ".join(
                f"{way['spearman']:.2f}, {way['best_1_percent_in_first_5_percent']:.0%}"
                for way in ways.values()
            )
            yield f"| {kernel} | {count} configs | {cells} |"
    taken = " and ".join(
        f"{found['per_config']['median_ms']:.2f} ms" for found in content["kernels"].values()
    )
    yield (
        f"\nAll of it takes {taken} a config (medians). Counting {decoding['instructions']:,} "
        f"instructions from their bits takes {decoding['bits_ms']:.2f} ms, through a disassembler "
        f"{decoding['text_ms']:.0f} ms. "
        "`benchmarks/code_features.py`, `benchmarks/results/cpu/code_features.json`.\n"
    )


def methods(content: Json) -> Iterator[str]:
    """Compare the searchers on recorded spaces."""
    yield "## Search methods on recorded spaces\n"
    yield (
        f"{content['seeds']} seeds, {content['trials']} trials, one space after the other. "
        "0 is random search, 1 the optimum from the first trial; see "
        "[comparing.md](comparing.md). Rows of other packages' methods are kept while their "
        "versions stand; each row of the file names its commit.\n"
    )
    for group, summary in content["summary"].items():
        yield f"{_GROUPS[group]}:\n"
        yield (
            "| searcher | spaces | score | share at half | share at the end | worst space "
            "| within 95 % |"
        )
        yield "|---|---|---|---|---|---|---|"
        for name, row in summary.items():
            yield (
                f"| {name} | {row['recordings']} | {row['score']:.3f} | {row['share_50']:.3f} "
                f"| {row['share_100']:.3f} | {row['worst_share_100']:.3f} "
                f"| {row['within_95']:.0%} |"
            )
        yield ""
        rows = [row for row in content["rows"] if row["group"] == group]
        of_auto = {row["recording"] for row in rows if row["searcher"] == "auto"}
        if left_out := sorted({row["recording"] for row in rows} - of_auto):
            yield f"Left out, for `auto` was not replayed there: {', '.join(left_out)}.\n"
        if group == "unseen":
            yield from _by_space(content["rows"], group, summary)
    yield "`benchmarks/search.py`, `benchmarks/results/cpu/search.json`.\n"


def _by_space(rows: Iterable[Json], group: str, searchers: Iterable[str]) -> Iterator[str]:
    rows = [row for row in rows if row["group"] == group]
    scores = {(row["searcher"], row["recording"]): row["score"] for row in rows}
    spaces = dict.fromkeys(row["recording"] for row in rows)
    yield "The score on each of them:\n"
    yield f"| searcher | {' | '.join(name.partition('.')[0] for name in spaces)} |"
    yield "|---|" + "---|" * len(spaces)
    for name in searchers:
        known = (scores.get((name, space)) for space in spaces)
        cells = " | ".join("-" if score is None else f"{score:.3f}" for score in known)
        yield f"| {name} | {cells} |"
    yield ""


def cost(content: Json) -> Iterator[str]:
    """Say what proposing a config takes."""
    yield "## What a searcher costs\n"
    yield (
        "Milliseconds per proposed config, asked for and told, over 100 trials on synthetic spaces "
        f"of so many valid configs, one thread, {content['environment']['cpu']}; the slowest turn, "
        "in which libraries are loaded, left out.\n"
    )
    sizes = {row["space"]: row["configs"] for row in content["searches"] if "configs" in row}
    yield "| searcher | " + " | ".join(f"{count:,}" for count in sizes.values()) + " |"
    yield "|---|" + "---|" * len(sizes)
    for name in dict.fromkeys(row["searcher"] for row in content["searches"]):
        cells = []
        for size in sizes:
            found = [
                row.get("ms_per_config_but_slowest")
                for row in content["searches"]
                if (row["searcher"], row["space"]) == (name, size)
            ]
            known = [ms for ms in found if ms is not None]
            cells.append(f"{max(known):.1f}" if known else "-")
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield (
        "\nOf one config under way and eight, the dearer. `benchmarks/searcher_cost.py`, "
        "`benchmarks/results/cpu/searcher_cost.json`.\n"
    )


def many(content: Json) -> Iterator[str]:
    """Say what a search of many workloads takes of the processor."""
    costs = ", ".join(f"{r['ms_per_trial']:.0f} ms with {r['workloads']}" for r in content["rows"])
    yield "## What many workloads cost the process that searches them\n"
    yield (
        "Milliseconds of the processor for each trial of `gemm_small_m`'s space, "
        f"{content['trials']} trials of each workload at most, rendering, models and session "
        f"together: {costs} workloads ({content['environment']['cpu']}). "
        "`benchmarks/many_workloads.py`, "
        "`benchmarks/results/cpu/many_workloads.json`.\n"
    )


def replay_length(content: Json) -> Iterator[str]:
    """Say how much times scatter by how long a replay is."""
    device = content["environment"]["device"]
    yield f"## How long a replay is, {device}\n"
    yield (
        "The 96 configs of the table of configs a second, searched with replays of several "
        f"lengths in turn, {len(content['alone'][0]['seconds'])} times with each. Times of one "
        "config scatter by the root of their mean square about their median.\n"
    )
    yield "| a replay takes at least | seconds, median | times scatter by |"
    yield "|---|---|---|"
    for row in content["alone"]:
        yield (
            f"| {row['replay_us']:.0f} us | {median(row['seconds']):.2f} | {row['scatter']:.2%} |"
        )
    rows = {(row["workload"], row["calls"]): row for row in content["chains"]}
    workloads, lengths = (list(dict.fromkeys(key)) for key in zip(*rows, strict=True))
    yield (
        "\nfused_add_rmsnorm in chains of several lengths: what two configs take longer than the "
        "baseline in a round scatters by so much, and by so many times as much as in chains of "
        f"{lengths[0]} that take as long in all. Geometric means over {len(workloads)} workloads."
    )
    yield "\n| calls in a chain | ms a round | scatter, us | in the same time |"
    yield "|---|---|---|---|"
    for calls in lengths:
        of = [rows[workload, calls] for workload in workloads]
        first = [rows[workload, lengths[0]] for workload in workloads]
        ratios = [_in_a_ms(a) / _in_a_ms(b) for a, b in zip(of, first, strict=True)]
        means = (geometric_mean(row[name] for row in of) for name in ("round_ms", "scatter_us"))
        yield "| {} | {:.1f} | {:.3f} | {:.2f}x |".format(calls, *means, geometric_mean(ratios))
    yield (
        "\nA search takes the second length of each. `benchmarks/replay_length.py`, "
        "`benchmarks/results/h200/replay_length.json`.\n"
    )


def _in_a_ms(row: Json) -> float:
    """Scatter of the mean of as many rounds as fit into a millisecond."""
    return float(row["scatter_us"]) * float(row["round_ms"]) ** 0.5
