"""The section of docs/results.md about products whose rows do not depend on the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import geometric_mean

from operators_section import Cell, Figure, Json, cells, cost_us, measured_at

OPERATORS = ("gemm_invariant", "gemm_invariant_fp8")
# What has the best product for each size, whose bits differ from size to size.
FREE = ("cublaslt", "pytorch")
# What engines' deterministic modes call, in bf16 and in fp8: SGLang's where DeepGEMM is installed,
# else with Triton.
ENGINES = {
    "SGLang, DeepGEMM": ("sgl-invariant", "deep-gemm"),
    "SGLang, Triton": ("sgl-triton", "triton"),
    "vLLM, Triton": ("vllm-invariant",),
}
# Tokens, and what is asked over free products: the mean and the worst; and over engines' own.
SIZES = {"1 to 64": (1, 64, 0.92, 0.80, 2.0), "128 to 2,048": (128, 2048, 0.88, 0.75, 1.3)}


def section(results: list[Json], gpu: str) -> Iterator[str]:
    """Write what rows of the same bits at every size cost, beside who is free and who is not."""
    found = [cell for cell in cells(results) if best_us(cell, FREE)]
    layers = sorted({(cell.content["axes"]["N"], cell.content["axes"]["K"]) for cell in found})
    yield "## Products whose rows do not depend on the batch\n"
    yield "| figure | asked | measured |\n|---|---|---|"
    for name, (least, most, mean, worst, engines) in SIZES.items():
        some = [cell for cell in found if least <= cell.content["axes"]["T"] <= most]
        yield from map(str, figures(name, some, mean, worst, engines))
    yield (
        f"\n{rows_proved(results)}Measured of {len(layers)} layer{'s' if len(layers) > 1 else ''}: "
        "N and K of "
        f"{'; '.join(f'{n:,} and {k:,}' for n, k in layers)}. *Free* is the faster one of "
        f"{' and '.join(FREE)}, which may choose other sums for each size; *alone* it stands "
        "beside ours without the calls before and after, which ours overlaps.\n"
    )
    if not any(cell.operator == OPERATORS[1] for cell in found):
        yield f"`{OPERATORS[1]}` is verified on the CPU alone.\n"
    yield "| workload | ours | free | alone | " + " | ".join(ENGINES) + " |"
    yield "|---|---|---|---|" + "---|" * len(ENGINES)
    for cell in found:
        ours = cost_us(cell.ours)
        others = (best_us(cell, names) for names in (FREE, *ENGINES.values()))
        over = [f"{us:.1f} {us / ours:.2f}x" if us else "-" for us in others]
        over.insert(1, alone(cell))
        yield f"| {cell.content['workload']} | {ours:.1f} | {' | '.join(over)} |"
    yield f"\n{measured_at(results, gpu)}"


def rows_proved(results: list[Json]) -> str:
    """Say in how many checks of the winners rows had the bits that they have in another batch."""
    checks = [one["checks"]["kinds"].get("bits", {}) for one in results]
    passed, failed = (sum(one.get(name, 0) for one in checks) for name in ("passed", "failed"))
    if not passed + failed:
        return ""
    return f"Rows had the same bits whatever the batch in {passed} of {passed + failed} checks. "


def figures(
    name: str, found: list[Cell], mean: float, worst: float, engines: float
) -> Iterator[Figure]:
    """Tell what is asked of some sizes, and what was measured."""
    title = f"over the free product, {name} tokens: geometric mean; worst"
    asked = f"{mean:.2f}x; {worst:.2f}x"
    over = ratios(found, FREE)
    if not over:
        yield Figure(title, asked)
        return
    got = geometric_mean(over), min(over)
    yield Figure(title, asked, f"{got[0]:.2f}x; {got[1]:.2f}x", got[0] >= mean and got[1] >= worst)
    for title, peers in ENGINES.items():
        if over := ratios(found, peers):
            got_mean = geometric_mean(over)
            said = f"over {title}, {name} tokens"
            yield Figure(said, f"{engines:g}x", f"{got_mean:.2f}x", got_mean >= engines)


def ratios(found: list[Cell], peers: tuple[str, ...]) -> list[float]:
    """Give how many times ours the best of some peers takes, where one took part."""
    costs = ((best_us(cell, peers), cost_us(cell.ours)) for cell in found)
    return [us / ours for us, ours in costs if us]


def alone(cell: Cell) -> str:
    """Say how many times ours the faster free product takes back to back."""
    times = [one["alone_us"] for one in cell.peers if one["name"] in FREE and one["alone_us"]]
    ours = cell.ours["alone_us"]
    return f"{min(times) / ours:.2f}x" if times and ours else "-"


def best_us(cell: Cell, names: tuple[str, ...]) -> float:
    """Return the least cost of the peers of these names; 0 where none took part."""
    costs: Mapping[str, float] = {one["name"]: cost_us(one) for one in cell.peers}
    return min((costs[name] for name in names if name in costs), default=0.0)
