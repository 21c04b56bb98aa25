"""What docs/results.md says of kernels that nobody prepared: what of them is verified, and how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from environment import missed

Json = dict[str, Any]


def drafted(content: Json) -> Iterator[str]:
    """Say what drafts of strangers' sources are worth, on the CPU."""
    yield "## Drafts of strangers' kernels\n"
    yield _drafted(content, "written as ten public projects write theirs")
    yield "\n`benchmarks/strangers.py`, `benchmarks/results/cpu/strangers.json`.\n"


def small(content: Json) -> Iterator[str]:
    """Say the same of small sources and of those that the search has never seen."""
    yield _drafted(content, "small ones of what went wrong in production, and `benchmarks/unseen`")
    yield (
        "\n`benchmarks/strangers.py --small`, `benchmarks/results/cpu/strangers_small.json`. What "
        "an expert would name is our own reading (`benchmarks/strangers/README.md`).\n"
    )


def _drafted(content: Json, what: str) -> str:
    named = content["experts"]
    slowest = max(row.get("init_s", 0) for row in content["rows"])
    refused = [row for row in content["rows"] if not row["verified"]]
    text = (
        f"{content['sources']} sources, {what}: {content['drafted']} drafted, "
        f"{content['verified']} verified, {content['verified_after_ten_lines']} of them after at "
        f"most 10 lines by hand; {content['drafts_with_something_silently_wrong']} with something "
        f"silently wrong. Of {named['named']} parameters that an expert would name "
        f"{named['offered']} are offered and {named['effective']} of these change launch or code. "
        f"`tune init` took at most {slowest:.0f} s at a load of "
        f"{content['environment']['load_average']:.0f} at the end of the run.\n"
    )
    return text + "".join(
        f"\n- {row['name']}: {row.get('why_not', 'none right')}" for row in refused
    )


def large_sizes(content: Json, gpu: str) -> Iterator[str]:
    """Say which strangers' kernels are verified at the sizes of production."""
    rows = content["rows"]
    refused = [row for row in rows if not row["verified"]]
    yield f"## Strangers' kernels at large sizes, {gpu.upper()}\n"
    yield (
        f"{len(rows)} sources written as ten public projects write theirs, drafted with `tune "
        "init`, mended by hand (the lines are counted, the reference's body is not) and tuned for "
        f"three trials at sizes of production: {len(rows) - len(refused)} with a right config, "
        f"{content['verified_after_few_lines']} of them after {content['most_lines']} lines or "
        f"fewer{missed(unless=not refused)}.\n"
    )
    for row in refused:
        why = row.get("why_not") or ", ".join(
            f"{n} {what}" for what, n in row["trials"].items() if n
        )
        yield f"- {row['name']}: {why}"
    yield f"\n`benchmarks/strangers.py --large`, `benchmarks/results/{gpu}/strangers_large.json`.\n"


def mended(content: Json, gpu: str) -> Iterator[str]:
    """Say which of them were drafted and tuned again later."""
    rows = content["rows"]
    yield (
        f"Drafted and tuned again at {content['environment']['commit'][:8]}: "
        + ", ".join(row["name"] for row in rows)
        + f"; {content['verified']} of {len(rows)} with a right config "
        f"(`benchmarks/results/{gpu}/strangers_large_again.json`).\n"
    )


def large_inputs(content: Json, gpu: str) -> Iterator[str]:
    """Say how long runs on large inputs take, and what of that is verification."""
    asked = content["asked"]
    yield f"## Large inputs, {content['environment']['device']}\n"
    yield (
        f"Runs of at most {content['trials']} trials on 268 MB (LayerNorm, GELU) and on 16 M keys, "
        "caches empty, broken versions included. Asked are "
        f"{asked['seconds']:.0f} s and a share of {asked['share']:.0%} for verification.\n"
    )
    yield "| kernel | seconds | verification | trials | broken versions caught |"
    yield "|---|---|---|---|---|"
    for name, run in content["runs"].items():
        mutants = run["mutants"]
        yield (
            f"| {name} | {run['wall_s']:.1f}{missed(unless=run['met'])} "
            f"| {run['verifier_share']:.0%} | {sum(run['trials'].values())} "
            f"| {mutants['caught']} of {mutants['broken']} |"
        )
    yield f"\n`benchmarks/large_inputs.py`, `benchmarks/results/{gpu}/large_inputs.json`.\n"


def strength(content: Json) -> Iterator[str]:
    """Say how many broken versions of kernels verification catches."""
    survivors = [(row["name"], line) for row in content["rows"] for line in row["survivors"]]
    yield "## Broken versions of strangers' kernels\n"
    yield (
        f"Verification on the CPU catches {content['caught']} of {content['differ']} broken "
        f"versions of {content['kernels']} kernels ({content['share']:.1%}; asked are "
        f"{content['asked']:.0%}){missed(unless=content['met'])}. Left out are those whose results "
        "nothing can tell from the kernel's own; `*.mutants.yaml` beside each source says why.\n"
    )
    yield from (f"- {name}: `{line}`" for name, line in survivors)
    yield "\n`benchmarks/strength.py`, `benchmarks/results/cpu/strength.json`.\n"
