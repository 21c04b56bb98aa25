"""The sections of docs/results.md about SGLang's operators in their surroundings, beside peers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from tuner.model.statistics import PROTOCOL

ROOT = Path(__file__).resolve().parents[1]
# As fast as the best peer: within what an interval and another day's clocks make.
WITHIN = 1.02
ROUTING = frozenset({"topk_softmax", "moe_align_block_size"})
ALL, REST = 1.35, 1.15
REGRET, WORST_REGRET = 0.003, 0.02
# Of what an operator took before anything was measured in its surroundings, the least of several.
SLOWDOWN, ALONE_S = 1.5, 92.0
CORRELATION = 0.9
# What differs from workload to workload in what is said of a peer.
_SEEN_ONCE = re.compile(r": with inputs .*")
_ONE_ELEMENT = re.compile(r"^(with inputs '[^']*') \(seed .*\) *$")
_HOW_FAR = re.compile(r"by up to [\d.]+ times the tolerance")
LONGEST_REASON = 160

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AgainstPeer:
    """What is asked of some cells of an operator against one peer."""

    operator: str
    axes: Mapping[str, tuple[int, ...]]
    peer: str
    ratio: float


ASKED = (
    AgainstPeer("fused_add_rmsnorm", {"T": (64, 128, 256, 1024), "H": (4096,)}, "sgl-aot", 1.12),
    AgainstPeer("silu_and_mul", {"T": (64, 128), "D": (14336,)}, "sgl-jit", 1.0),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload of an operator, as its result file holds it; `choice` is "" for its first."""

    operator: str
    content: Json
    choice: str = ""

    @property
    def name(self) -> str:
        """The operator and the workload."""
        return " ".join(filter(None, (self.operator, self.choice, self.content["workload"])))

    @property
    def ours(self) -> Json:
        """The winner of the search."""
        winner: Json = self.content["programs"][self.content["winner"]]
        return winner

    @property
    def peers(self) -> list[Json]:
        """The peers that took part."""
        return [one for one in self.content["programs"] if one["kind"] == "peer"]

    @property
    def best(self) -> Json:
        """The fastest peer; only of a cell that has one."""
        return min(self.peers, key=cost_us)

    @property
    def production(self) -> str:
        """What production calls, with its cost."""
        name = self.content["production"]
        known = [one["us"] for one in self.content["programs"] if one["name"] == name]
        return f"{name} {known[0]:.2f}" if known else f"{name}, not compared"

    @property
    def ratio(self) -> float:
        """How many times the winner's cost the best peer's is."""
        return float(self.best["over_winner"])

    @property
    def behind(self) -> bool:
        """Whether the best peer is ahead by more than is allowed."""
        return self.ratio * WITHIN < 1.0

    @property
    def alone(self) -> float | None:
        """The same without neighbours, each call overlapping the next; None where none has been."""
        if not self.content["surroundings"]:
            return self.ratio
        known = [one["alone_us"] for one in self.peers if one["alone_us"]]
        return min(known) / self.ours["alone_us"] if known and self.ours["alone_us"] else None

    @property
    def misled_by(self) -> float:
        """How much slower the config is here that is the fastest alone; 0 if it is the winner."""
        configs = [one for one in self.content["programs"] if one["kind"] == "config"]
        if any(one["alone_us"] is None for one in configs):
            return 0.0
        fastest = min(configs, key=lambda one: one["alone_us"])
        return 0.0 if fastest is self.ours else fastest["over_winner"] - 1.0


def cost_us(program: Json) -> float:
    """Return the median cost."""
    return float(program["us"])


def cells(results: Iterable[Json]) -> list[Cell]:
    """List the workloads of all operators."""
    return [
        Cell(one["kernel"], content, choice_of(one))
        for one in results
        for content in one["workloads"]
    ]


def choice_of(result: Json) -> str:
    """Say which choice of its operator was measured; "" for the first."""
    return ", ".join(f"{name}={value}" for name, value in result.get("operators", {}).items())


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that is asked, and what was measured of it; `met` is None where nothing was."""

    name: str
    asked: str
    got: str = "not measured"
    met: bool | None = None

    def __str__(self) -> str:
        missed = " **missed**" if self.met is False else ""
        return f"| {self.name} | {self.asked} | {self.got}{missed} |"


def figures(found: list[Cell], seeds: Json | None, runs: Json | None, rank: Json | None) -> Any:
    """Tell each figure that is asked, how much, and what was measured."""
    measured = [cell for cell in found if cell.peers]
    behind = sum(cell.behind for cell in measured)
    name = "cells behind the best peer by more than 2 %"
    if measured:
        yield Figure(name, "0", f"{behind} of {len(measured)}", behind == 0)
    else:
        yield Figure(name, "0")
    rest = [cell for cell in measured if cell.operator not in ROUTING]
    without = f"without {' and '.join(sorted(ROUTING))}"
    for what, asked, some in (("all operators", ALL, measured), (without, REST, rest)):
        yield mean_figure(f"geometric mean over the best peer, {what}", asked, some)
    for one in ASKED:
        yield from _against(one, found)
    yield _two_seeds(seeds)
    yield _time(runs)
    yield _correlation(rank)


def mean_figure(name: str, asked: float, some: list[Cell], cells: int = 0) -> Figure:
    """Tell how many times ours the best peer's cost is on average, over some of so many cells."""
    if not some:
        return Figure(name, f"{asked}x")
    mean = geometric_mean(cell.ratio for cell in some)
    of = f" of {cells}" if cells > len(some) else ""
    alone = [cell.alone for cell in some if cell.alone]
    also = f"; alone {geometric_mean(alone):.2f}x" if alone else ""
    return Figure(name, f"{asked}x", f"{mean:.2f}x over {len(some)}{of} cells{also}", mean >= asked)


def _against(asked: AgainstPeer, found: list[Cell]) -> Iterator[Figure]:
    sizes = ", ".join(f"{name} {' '.join(map(str, of))}" for name, of in asked.axes.items())
    wanted = 1
    for values in asked.axes.values():
        wanted *= len(values)
    ratios = []
    for cell in found:
        axes = cell.content["axes"]
        if cell.operator == asked.operator and all(
            axes.get(n) in of for n, of in asked.axes.items()
        ):
            ratios += [peer for peer in cell.peers if peer["name"] == asked.peer]
    name = f"{asked.operator}, {sizes}, over {asked.peer}"
    if not ratios:
        yield Figure(name, f"{asked.ratio:.2f}x each")
        return
    got = ", ".join(_ratio(one) for one in ratios)
    missing = wanted - len(ratios)
    met = missing == 0 and all(one["over_winner"] >= asked.ratio for one in ratios)
    yield Figure(
        name, f"{asked.ratio:.2f}x each", got + f"; {missing} not measured" * bool(missing), met
    )


def _ratio(program: Json) -> str:
    low, high = program["over_winner_interval"]
    return f"{program['over_winner']:.2f}x ({low:.2f} to {high:.2f})"


def _two_seeds(content: Json | None) -> Figure:
    name = "two seeds: how far apart their winners are, median and worst"
    asked = f"{REGRET:.1%}, {WORST_REGRET:.0%}"
    if content is None:
        return Figure(name, asked)
    regrets = [row["regret"] for one in content["operators"] for row in one["workloads"]]
    middle, worst = median(regrets), max(regrets)
    got = f"{middle:.2%}, {worst:.1%} on {len(regrets)} workloads"
    return Figure(name, asked, got, middle <= REGRET and worst <= WORST_REGRET)


def _time(content: Json | None) -> Figure:
    name = f"time for ten workloads in their surroundings, over the {ALONE_S:.0f} s alone of before"
    asked = f"{SLOWDOWN}"
    if content is None or "auto" not in content["runs"]:
        return Figure(name, asked)
    here = content["runs"]["auto"]["wall_s"]
    got = f"{here / ALONE_S:.2f} ({here:.0f} s, {content['kernel']})"
    return Figure(name, asked, got, here <= SLOWDOWN * ALONE_S)


def _correlation(content: Json | None) -> Figure:
    name = "rank correlation of stand-in and real neighbours"
    if content is None:
        return Figure(name, f"{CORRELATION}")
    rows = content["rows"]
    got = ", ".join(f"{row['rank_correlation']:.3f} at T {row['T']}" for row in rows)
    met = all(row["rank_correlation"] >= CORRELATION for row in rows)
    return Figure(name, f"{CORRELATION}", got, met)


def in_short(results: list[Json]) -> str:
    """Say it in the few sentences that README.md has room for."""
    found = [cell for cell in cells(results) if cell.peers]
    if not found:
        return f"{len(results)} operators were measured, without any peer."
    rest = [cell for cell in found if cell.operator not in ROUTING]
    apart = " and ".join(f"`{name}`" for name in sorted(ROUTING))
    behind = sum(cell.behind for cell in found)
    (device, *_) = {one["environment"]["device"] for one in results}
    names = ", ".join(sorted({one["name"] for cell in found for one in cell.peers}))
    without = f", {_mean_of(rest)} without {apart}" if len(rest) < len(found) else ""
    return (
        f"On an {device}, {len(results)} operators that SGLang serves models with are "
        f"{_mean_of(found)} as fast as the fastest peer of each shape (of {names}; geometric mean "
        f"over {len(found)} shapes){without}. {_neighbours(results)} On {behind} of them the best "
        "peer is more than 2 % ahead. Peers that return their result were charged for memory that "
        "nobody had written, which makes these ratios too large: by at most 0.04 of the mean, as "
        "far as rounds alone can tell. They are to be measured again."
    )


def _neighbours(results: list[Json]) -> str:
    """Say on how many shapes a model's own products stand around the operator."""
    around = [
        one["surroundings"].get(workload["surroundings"], "")
        for one in results
        for workload in one["workloads"]
        if any(program["kind"] == "peer" for program in workload["programs"])
    ]
    real = sum("gemm" in one for one in around)
    return (
        f"Each stood in a chain: on {real} shapes between products of a model, on "
        f"{len(around) - real} between stand-ins that move as many bytes."
    )


def _mean_of(some: list[Cell]) -> str:
    return f"{geometric_mean(cell.ratio for cell in some):.2f}x" if some else "not measured"


def section(
    results: list[Json], seeds: Json | None, runs: Json | None, rank: Json | None, gpu: str
) -> Iterator[str]:
    """Write what the operators cost in their surroundings, with the figures that are asked."""
    found = cells(results)
    devices = {one["environment"]["device"] for one in results}
    yield f"## {len(results)} of SGLang's operators on an {' and '.join(sorted(devices))}\n"
    yield "| figure | asked | measured |\n|---|---|---|"
    yield from map(str, figures(found, seeds, runs, rank))
    yield (
        "\nMicroseconds that a call adds to the chain of kernels around it in a model: "
        "[surroundings](surroundings.md). All programs of a workload (the finalists of the search, "
        "the baseline, every peer that is installed) take turns in the same chain and the same "
        "rounds. *Ours* is the winner of the search, chosen on other rounds than those reported; "
        "*production's* is what SGLang calls today. *Over it* is how many times ours the best "
        "peer's cost is, with a paired 95 % interval. *Alone* compares the fastest peer without "
        "neighbours: cold inputs, back to back, and whoever can overlap its calls does. Workloads "
        "that a space holds out were searched like the others here. "
        "*Dispatch* says what serves the shape: nothing of ours where it is not proved faster.\n"
    )
    yield from behind_section(found)
    yield from _alone(found)
    for one in results:
        yield from operator_section(one)
    yield measured_at(results, gpu)


def measured_at(results: list[Json], gpu: str) -> str:
    """Name the commits, the versions of peers' packages, how long it took, and the files."""
    cases = [case for one in results for case in one["workloads"] if "commit" in case]
    commits = sorted({one["commit"] for one in (*(r["environment"] for r in results), *cases)})
    minutes = sum(one["seconds"] for one in results) / 60
    protocols = sorted({one["environment"].get("protocol", "1") for one in results})
    packages: dict[str, list[str]] = {}
    for one in results:
        for name, known in one["peer_packages"].items():
            packages.setdefault(name, []).append(known)
    versions = ", ".join(f"{n} {' or '.join(dict.fromkeys(of))}" for n, of in packages.items())
    return (
        f"Measured at {', '.join(commits)}{f' with {versions}' if versions else ''}, "
        f"{minutes:.0f} min in all, by protocol {' and '.join(protocols)} of measuring (today's is "
        f"{PROTOCOL}). `benchmarks/record_all.py`, "
        f"`benchmarks/results/{gpu}/<operator>.json`.\n"
    )


def behind_section(found: list[Cell]) -> Iterator[str]:
    """List the cells where a peer is ahead, and those without any."""
    listed = sorted((cell for cell in found if cell.peers and cell.ratio < 1.0), key=_by_ratio)
    if listed:
        cells = f"{len(listed)} cells" if len(listed) > 1 else "cell"
        yield f"The {cells} where the best peer is ahead, by however little:\n"
    for cell in listed:
        served = cell.content["dispatch"]
        note = f"; the dispatch takes {served}" if served.startswith("production's") else ""
        far = " **(over 2 %)**" if cell.behind else ""
        yield f"- {cell.name}: {_ratio(cell.best)} {cell.best['name']}{far}{note}"
    without = [cell.name for cell in found if not cell.peers]
    if without:
        before = "\n" if listed else ""
        yield f"{before}Without any peer, and in no mean: {'; '.join(without)}."
    if listed or without:
        yield ""


def _by_ratio(cell: Cell) -> float:
    return cell.ratio


def _alone(found: list[Cell]) -> Iterator[str]:
    """Say what a tuner that measures alone would have chosen."""
    around = [cell for cell in found if cell.content["surroundings"]]
    losses = [cell.misled_by for cell in around if cell.misled_by > 0.0]
    if losses:
        yield (
            f"On {len(losses)} of {len(around)} cells another finalist is fastest alone; taking "
            f"that one would cost {median(losses):.1%} (median) to {max(losses):.1%}.\n"
        )


def operator_section(result: Json) -> Iterator[str]:
    """Write one operator's table, and what became of its peers and checks."""
    found = cells([result])
    used = {cell.content["surroundings"] for cell in found}
    choice = choice_of(result)
    yield f"### {result['kernel']}{f', {choice}' if choice else ''}\n"
    around = [f"- `{n}`: {what}" for n, what in result["surroundings"].items() if n in used]
    yield from (*around, "") if around else ()
    yield (
        "| workload | in | baseline | ours | production's | best peer | over it "
        "| 95 % interval | alone | dispatch |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    yield from map(_row, found)
    yield ""
    if any(cell.peers for cell in found):
        mean = geometric_mean(cell.ratio for cell in found if cell.peers)
        alone = [cell.alone for cell in found if cell.peers and cell.alone]
        also = f"; alone {geometric_mean(alone):.2f}x" if alone else ""
        yield f"Geometric mean over the best peers: {mean:.2f}x{also}.\n"
    yield from _failures(found)
    yield from _not_asked(result)
    yield from _beside_todays(result)
    yield f"{_checked(result['checks'])}\n"


def _not_asked(result: Json) -> Iterator[str]:
    """Name the peers of the reference that a result neither compares nor gives a reason for."""
    from tuner.device.reference import load_peers

    reference = ROOT / f"kernels/sglang/{result['kernel']}.py"
    if not reference.exists():
        return
    workloads = result["workloads"]
    told = [{*w["peers"], *(one["name"] for one in w["programs"])} for w in workloads]
    counts = {name: sum(name not in known for known in told) for name in load_peers(reference)}
    missing = [f"`{name}` ({count} cells)" for name, count in counts.items() if count]
    if missing:
        yield (
            f"**Not compared, though the reference names them**: {', '.join(missing)} of "
            f"{len(workloads)}: no session asked for them, or they are for other choices.\n"
        )


def _beside_todays(result: Json) -> Iterator[str]:
    """Say what today's space has besides, and of how many cells space or code are others."""
    from tuner.session.records import file_sha, headers_sha
    from tuner.space.load import load_definition

    space = ROOT / f"search_spaces/sglang/{result['kernel']}.yaml"
    if not space.exists():
        return
    spec = load_definition(space).spec
    shas = file_sha(space), file_sha(spec.template), headers_sha(spec)
    asked = {one.key for one in (*spec.tuned, *spec.held_out)}
    if missing := len(asked - {case["workload"] for case in result["workloads"]}):
        yield (
            f"**Not measured**: {missing} of the {len(asked)} workloads of the search space; "
            "no session was asked for them, so nothing here speaks of them.\n"
        )
    of_cells = [case.get("files", result["files"]) for case in result["workloads"]]
    words = {"space": "another search space", "template": "another template"}
    counts = {
        words.get(name, f"other {name}"): sum(not sha.startswith(files[name]) for files in of_cells)
        for name, sha in zip(("space", "template", "headers"), shas, strict=True)
    }
    if older := ", ".join(f"{count} of {words}" for words, count in counts.items() if count):
        yield f"**Older code**, of {len(of_cells)} cells: {older} than today's.\n"


def _row(cell: Cell) -> str:
    content = cell.content
    cells = [
        content["workload"],
        content["surroundings"] or "alone",
        f"{content['programs'][0]['us']:.2f}",
        f"{cell.ours['us']:.2f}",
        cell.production,
    ]
    if cell.peers:
        low, high = cell.best["over_winner_interval"]
        alone = "-" if cell.alone is None else f"{cell.alone:.2f}x"
        best = f"{cell.best['name']} {cell.best['us']:.2f}"
        cells += [best, f"{cell.ratio:.2f}x", f"{low:.2f} to {high:.2f}", alone]
    else:
        cells += ["-"] * 4
    cells.append("production's" if content["dispatch"].startswith("production's") else "ours")
    return f"| {' | '.join(cells)} |"


def _failures(found: list[Cell]) -> Iterator[str]:
    """List what was said of peers, once for all workloads that it was said of."""
    compared = {(cell.name, one["name"]) for cell in found for one in cell.peers}
    said: Counter[tuple[str, str]] = Counter()
    for cell in found:
        for name, one in cell.content["peers"].items():
            first = _SEEN_ONCE.sub("", (one["reason"].splitlines() or [""])[0])
            first = _ONE_ELEMENT.sub(r"\1 it is off by more than a peer may be", first)
            first = _HOW_FAR.sub("by more than the tolerance", first)[:LONGEST_REASON]
            timed = "compared" if (cell.name, name) in compared else one["status"]
            said[name, f"{timed}: {first}" if first else timed] += 1
    if said:
        yield "Peers that were not compared, or fail inputs that production never sees:\n"
        yield from (
            f"- {name}, {count} of {len(found)} workloads: {what}"
            for (name, what), count in said.items()
        )
        yield ""


def _checked(checks: Json) -> str:
    kinds = ", ".join(
        f"{kind} {of['passed']}" + (f" ({of['failed']} failed)" if of["failed"] else "")
        for kind, of in checks["kinds"].items()
        if of["passed"] or of["failed"]
    )
    inputs = ", ".join(checks["input_kinds"])
    return f"Checks passed: {kinds or 'none'}. Kinds of inputs: {inputs or 'none'}."
