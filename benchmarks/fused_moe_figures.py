"""Make the figures of SGLang's fused MoE kernel out of what fused_moe.py measured on a GPU.

    python benchmarks/fused_moe_figures.py [FOLDER] [--recording FILE ...] [--session FOLDER ...]
                                           [--anew] [--replay] [--seeds N] [--out FILE]

FOLDER holds the fleets' sessions and the files *.seconds.json; without it FILE keeps its fleets.
Needs no GPU: the searches are replayed over recordings, or over what sessions of `fused_moe.py
record` hold, stopped or not, each with `--seeds` seeds. What sessions measured is kept in
benchmarks/recorded/fused_moe/spaces.json.xz: `record` goes on with it, and `--replay` searches it
without them. FILE keeps what it has of other fleets, or of other numbers of tokens of the same one,
each with the commit that it was made with, and of other searches. Of DeepSeek-V3's experts on eight
GPUs, with weights in bf16, benchmarks/recorded/fused_moe has the recording.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from environment import ROOT, write_result

if TYPE_CHECKING:
    from tuner.extensions.engines.configs.winners import Tables
    from tuner.extensions.study.recorded_spaces import RecordedSpace
    from tuner.model.trial import Comparison, Variant

SPACE = ROOT / "search_spaces/sglang/fused_moe.yaml"
MEASURED = ROOT / "benchmarks/recorded/fused_moe/spaces.json.xz"
WITHOUT_FILE, TRITON = "without_file", "3.6.0"
SEEDS, TRIALS, NEAR = 20, 192, 1.01
# The best of fewer than half of them says little of the best of all.
FEWEST_CONFIGS = 600
# Of a slice, besides its columns; the earliest fleets, which don't say it, are of Qwen3-30B-A3B.
SHAPE = {"experts": "E", "hidden": "K", "ep": "EP"}
UNSAID = {"experts": 128, "hidden": 2048, "ep": 1, "weights": "bf16"}
# Of a search; those of earlier results that don't say it are of Qwen3-30B-A3B, and in bf16.
SLICE = {"experts": "E", "columns": "N"}
QWEN3 = {"experts": 128, "columns": 768, "weights": "bf16"}
NAME = re.compile(r"fleet-N(?P<columns>\d+)(?P<two>-two)?-seed(?P<seed>\d+)")


def row(comparison: Comparison, table: Tables, trials: int) -> dict[str, Any]:
    """Compare what is written for a number of tokens with the engine's file and its default."""
    from tuner.model.statistics import paired_interval

    columns, tokens = list(zip(*comparison.rounds, strict=True)), comparison.workload.values["M"]
    wanted, variant = written(comparison, table)
    at = comparison.column(variant)
    found: dict[str, Any] = {
        "tokens": tokens,
        "us": round(median(columns[at]), 3),
        "engine_us": round(median(columns[0]), 3),
        "config": wanted,  # None: that of the engine itself
        "trials": trials,
        "over_engine": _ratio(paired_interval(columns[0], columns[at], 0)) if at else [1.0] * 3,
    }
    if WITHOUT_FILE in comparison.peers:
        default = columns[comparison.column(WITHOUT_FILE)]
        found["default_us"] = round(median(default), 3)
        found["over_default"] = _ratio(paired_interval(default, columns[at], 0))
    return found


def written(comparison: Comparison, table: Tables) -> tuple[dict[str, int] | None, Variant | None]:
    """Give what a file has for a number of tokens, and whose it is; None for the engine's own."""
    tokens = comparison.workload.values["M"]
    if tokens in table.undecided:
        return None, None
    wanted = _wanted(table, tokens)
    variants = (
        one
        for one in comparison.finalists
        if all(one.config[name] == value for name, value in wanted.items())
    )
    return wanted, next(variants)


def _wanted(table: Tables, tokens: int) -> dict[str, int]:
    from tuner.extensions.engines.configs.winners import DOWN

    second = {f"{DOWN}{name}": value for name, value in table.down.get(tokens, {}).items()}
    shared = f"{DOWN}BLOCK_SIZE_M"  # both GEMMs share the sorting
    return {**table.own[tokens], **{k: v for k, v in second.items() if k != shared}}


def _ratio(found: tuple[float, tuple[float, float]]) -> list[float]:
    ratio, (low, high) = found
    return [round(one, 4) for one in (ratio, low, high)]


def fleet(folder: Path) -> dict[str, Any]:
    """Read one session of a fleet."""
    from tuner.extensions.engines.configs.winners import configs_of
    from tuner.session.session import Session

    named = NAME.fullmatch(folder.name)
    assert named is not None
    (table,) = configs_of([folder], "sglang", TRITON, SPACE).tables.values()
    with Session.open(folder, read_only=True) as session:
        rows = [
            row(one, table, len(session.trials("initial", one.workload)))
            for one in session.comparisons()
        ]
        environment, config = dict(session.environment), session.manifest.config
    seconds = folder.with_name(f"{folder.name}.seconds.json")
    parts = json.loads(seconds.read_text(encoding="utf-8")) if seconds.exists() else []
    return {
        "columns": int(named["columns"]),
        **{name: config.workloads[0].values[axis] for name, axis in SHAPE.items()},
        "weights": config.operators["WEIGHTS"],
        "two": named["two"] is not None,
        "seed": int(named["seed"]),
        "seconds": round(sum(spent for _, spent in parts), 1) or None,
        "runs": len(parts),  # each of which goes on where the one before was stopped
        # numbers of tokens; there are fewer rows where the run was stopped
        "asked": len(config.workloads),
        "rows": sorted(rows, key=lambda one: one["tokens"]),
        "environment": environment,
    }


def needed(found_us: Sequence[float], best_us: float) -> int | None:
    """Count the trials until the search has come within 1 % of the best, None for never."""
    return next((n for n, us in enumerate(found_us, start=1) if us <= NEAR * best_us), None)


def searched(space: RecordedSpace, weights: str, seeds: int) -> dict[str, Any]:
    """Replay the search over one number of tokens with every seed, alone."""
    from tuner.extensions.study.comparison import ReplaySettings, replay

    settings = ReplaySettings(("auto",), seeds, min(TRIALS, len(space.pool)))
    runs = [replay(space, "auto", seed, settings) for seed in range(seeds)]
    counts = [needed(one.found_us, space.optimum_us) for one in runs]
    return {
        **{name: space.workload.values[axis] for name, axis in SLICE.items()},
        "weights": weights,
        "tokens": space.workload.values["M"],
        "configs": len(space.pool),
        "best_us": round(space.optimum_us, 3),
        "trials": counts,
        "end_us": [round(one.found_us[-1], 3) for one in runs],
    }


def kept(
    sessions: Sequence[Path], path: Path = MEASURED, *, anew: bool = False
) -> list[dict[str, Any]]:
    """Add what sessions measured of their spaces to what the file has; give what it has of theirs.

    What is known of a space stays, and the rest of it is added; with `anew` it is replaced.
    """
    known = {_space(one): one for one in read_measured(path)} if path.exists() else {}
    own = {}
    for folder in sessions:
        for one in _measured(folder):
            before = None if anew else known.get(_space(one))
            own[_space(one)] = known[_space(one)] = continued(before, one) if before else one
    text = json.dumps([known[name] for name in sorted(known)])
    path.write_bytes(lzma.compress(text.encode(), preset=9))
    return list(own.values())


def continued(known: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Add what is measured of a space to what is known, in the known part's microseconds.

    Two hosts' GPUs, and two days', differ by a percent: the baseline, which both parts timed, says
    by how much.
    """
    new = own["us"].keys() - known["us"].keys()
    if not new:
        return dict(known)
    ratio = known["baseline_us"] / own["baseline_us"]
    added = {key: us and round(us * ratio, 3) for key, us in own["us"].items() if key in new}
    commits = {*known["commit"].split(" "), own["commit"]}
    return {**known, "commit": " ".join(sorted(commits)), "us": {**known["us"], **added}}


def _space(measured: Mapping[str, Any]) -> tuple[str, str]:
    return measured["workload"], measured["weights"]


def _measured(folder: Path) -> Iterator[dict[str, Any]]:
    from tuner.session.session import Session

    with Session.open(folder, read_only=True) as session:
        config, commit = session.manifest.config, session.environment["commit"]
        baselines = session.baselines()
        for workload in config.workloads:
            trials = session.trials("initial", workload)
            if not trials or workload not in baselines:
                continue
            us = {one.config.key: one.time_us and round(one.time_us, 3) for one in trials}
            yield {
                "workload": workload.key,
                "weights": config.operators["WEIGHTS"],
                "commit": commit,
                "baseline_us": round(baselines[workload].measurement.median_us, 3),
                "us": us,
            }


def read_measured(path: Path = MEASURED) -> list[dict[str, Any]]:
    """Read what sessions measured, a number of tokens of one slice each."""
    found: list[dict[str, Any]] = json.loads(lzma.decompress(path.read_bytes()))
    return found


def space_of(measured: Mapping[str, Any]) -> RecordedSpace:
    """Make what the search is replayed over of what was measured for one number of tokens."""
    from tuner.extensions.study.recorded_spaces import RecordedSpace
    from tuner.model.config import Config
    from tuner.model.trial import Measurement, Status, Trial
    from tuner.search.pool import Pool
    from tuner.space.load import load_definition, workload_from_text

    definition = load_definition(SPACE).chosen({"WEIGHTS": measured["weights"]})
    workload, space = workload_from_text(definition.spec, measured["workload"]), definition.space
    trials = {}
    for key, us in measured["us"].items():
        values = json.loads(key)
        config = Config.of({one.name: values[one.name] for one in space.parameters})
        timed = None if us is None else Measurement((us,), 1, 1)
        status = Status.LAUNCH if us is None else Status.CORRECT
        trials[config] = Trial("initial", workload, config, status, measurement=timed)
    pool = Pool.of(space.parameters, trials)
    return RecordedSpace("fused_moe", MEASURED, workload, space, pool, trials)


def searches(
    recordings: Sequence[Path], measured: Sequence[Mapping[str, Any]], seeds: int
) -> list[dict[str, Any]]:
    """Replay the search over all numbers of tokens of recordings and of what was measured."""
    from tuner.device.recorded.recording import load_recording
    from tuner.extensions.study.recorded_spaces import recorded_spaces

    found = [
        (space, load_recording(one).operators["WEIGHTS"])
        for one in recordings
        for space in recorded_spaces(one, SPACE)
    ]
    found += [
        (space_of(one), one["weights"]) for one in measured if len(one["us"]) >= FEWEST_CONFIGS
    ]
    return [searched(space, weights, seeds) for space, weights in found]


def with_earlier(path: Path, replayed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add the searches of an earlier result that were not replayed again."""
    known = json.loads(path.read_text(encoding="utf-8"))["searches"] if path.exists() else []

    def name(one: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(one[key] for key in (*QWEN3, "tokens"))

    made = {name(one): dict(one) for one in [*({**QWEN3, **one} for one in known), *replayed]}
    return [made[key] for key in sorted(made)]


def with_fleets(path: Path, made: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add the fleets of an earlier result that were not made again, and rows that one lacks."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"fleets": []}
    found = {_name(one): dict(one) for one in made}
    for one in known["fleets"]:
        earlier = {"commit": known["environment"]["commit"], **one}
        of = found.setdefault(_name(earlier), earlier)
        tokens = {row["tokens"] for row in of["rows"]}
        added = [
            {"commit": earlier["commit"], **row}
            for row in earlier["rows"]
            if row["tokens"] not in tokens
        ]
        if added:
            rows = sorted([*of["rows"], *added], key=lambda row: row["tokens"])
            stopped = {"seconds": None, "stopped_s": of.get("seconds") or of.get("stopped_s")}
            of |= {"rows": rows, "asked": max(of["asked"], len(rows)), **stopped}
    return [found[name] for name in sorted(found)]


def _name(fleet: Mapping[str, Any]) -> tuple[Any, ...]:
    shape = [fleet.get(name, unsaid) for name, unsaid in UNSAID.items()]
    return fleet["columns"], fleet.get("two", False), fleet["seed"], *shape


def fleets(folder: Path) -> Iterator[dict[str, Any]]:
    """Read all sessions of a folder that are of fleets."""
    for path in sorted(folder.iterdir()):
        if NAME.fullmatch(path.name):
            yield fleet(path)


def summary(made: Sequence[Mapping[str, Any]], replayed: Sequence[Mapping[str, Any]]) -> None:
    """Print what it says."""
    from tuner.model.statistics import geometric_mean

    for one in made:
        for name in ("over_engine", "over_default"):
            ratios = [found[name][0] for found in one["rows"] if name in found]
            if ratios:
                mean, worst = geometric_mean(ratios), min(ratios)
                title = f"N={one['columns']}{' two' * one['two']} seed {one['seed']} {name}"
                print(f"{title}: {mean:.3f}x, worst {worst:.3f}x of {len(ratios)}")
    for found in replayed:
        print(f"M={found['tokens']}: {found['configs']} configs, trials {found['trials']}")
    counts = [n or TRIALS for one in replayed for n in one["trials"]]
    if counts:
        print(f"trials to within 1 %: median {median(counts):.0f}, most {max(counts)}")


def main() -> None:
    """Read, replay and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--recording", type=Path, nargs="+", default=[])
    parser.add_argument("--session", type=Path, nargs="+", default=[])
    parser.add_argument("--anew", action="store_true", help="in place of what is kept of a space")
    parser.add_argument("--replay", action="store_true", help="search all that is kept")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, help="else in results/GPU")
    asked = parser.parse_args()
    from tuner.app.record import gpu_folder

    made = list(fleets(asked.folder)) if asked.folder else []
    if asked.folder and not made:
        parser.error(f"{asked.folder}: has no session of a fleet")
    if not made and not (asked.out and asked.out.exists()):
        parser.error("without a FOLDER, --out names a result that has fleets")
    measured = kept(asked.session, anew=asked.anew) if asked.session else []
    measured = read_measured() if asked.replay else measured
    replayed = searches(asked.recording, measured, asked.seeds)
    summary(made, replayed)
    if made:
        environment = made[0]["environment"]
    else:
        environment = json.loads(asked.out.read_text(encoding="utf-8"))["environment"]
    gpu = gpu_folder(environment["device"])
    out = asked.out or ROOT / f"benchmarks/results/{gpu}/fused_moe.json"
    own = [
        {"commit": one["environment"]["commit"], **{k: one[k] for k in one if k != "environment"}}
        for one in made
    ]
    write_result(
        out,
        {
            "fleets": with_fleets(out, own),
            "searches": with_earlier(out, replayed),
            "environment": environment,
        },
    )


if __name__ == "__main__":
    main()
