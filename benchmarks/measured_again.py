"""Do two measurements of the same configs agree? Between draws of inputs, processes and GPUs.

    python benchmarks/measured_again.py again SESSION [--workload KEY ...] [--gpus 0,1] [--times 3]
                                              [--draws 24] [--out FILE]      (needs NVIDIA GPUs)
    python benchmarks/measured_again.py sessions SESSION OTHER [--out FILE]

`again` times the finalists of a session beside their baseline in processes of their own: on each
GPU so many, each with so many draws of the inputs. So of what one config takes of the baseline's
time it can be said what changes with the inputs, with where a process has its memory, and with the
GPU. `sessions` compares, without a GPU, what the final rounds of two sessions hold of the same
configs, with what the scatter of eighths of their rounds lets expect, and says what the configs
gain that their files have in different ways.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from environment import ROOT, write_result
from running import ranking

PARTS, MOST = 8, 4
# Where a round scatters by 2 to 5 %, 96 of them say nothing of 0.5 %.
QUIET = 0.02
OUT = ROOT / "benchmarks/results/h200"


def of_sessions(folders: Sequence[Path]) -> dict[str, Any]:
    """Compare what two sessions' final rounds hold of the same configs."""
    from tuner.session.session import Session

    found, about = [], []
    for folder in folders:
        with Session.open(folder, read_only=True) as session:
            found.append({one.workload.key: logs(one) for one in session.comparisons()})
            about.append({"commit": session.environment["commit"], "name": folder.name})
            environment = dict(session.environment)
    first, second = found
    rows = [
        {"workload": key, "config": name, "first": list(own), "second": list(second[key][name])}
        for key, configs in first.items()
        for name, own in configs.items()
        if name in second.get(key, {})
    ]
    quiet = [row for row in rows if max(row["first"][2], row["second"][2]) < QUIET]
    return {
        "sessions": about,
        "configs": len(rows),
        "quiet": len(quiet),
        "apart": _rms([row["first"][0] - row["second"][0] for row in quiet]),
        "expected": _rms([math.hypot(row["first"][1], row["second"][1]) for row in quiet]),
        "choices": choices(folders),
        "rows": rows,
        "environment": environment,
    }


def choices(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Say where the files of two sessions differ, and what each one's config gains in its own.

    A gain over the engine's own config is a logarithm, with its standard error; that config has 0.
    """
    found = [dict(_chosen(folder)) for folder in folders]
    first, second = found
    return [
        {"tokens": tokens, "chosen": [first[tokens], second[tokens]]}
        for tokens in sorted(first.keys() & second.keys())
        if first[tokens]["config"] != second[tokens]["config"]
    ]


def _chosen(folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    from fused_moe_figures import SPACE, TRITON, written

    from tuner.extensions.engines.configs.alike import Gain, gain_of
    from tuner.extensions.engines.configs.winners import configs_of
    from tuner.session.session import Session

    (table,) = configs_of([folder], "sglang", TRITON, SPACE).tables.values()
    with Session.open(folder, read_only=True) as session:
        for one in session.comparisons():
            wanted, variant = written(one, table)
            gain = gain_of(one, variant) if variant else Gain(0.0, 0.0)
            said = {"gain": round(gain.gain, 5), "error": round(gain.error, 5)}
            yield one.workload.values["M"], {"config": wanted, **said}


def logs(comparison: Any) -> dict[str, tuple[float, float, float]]:
    """Say of each finalist how much of the baseline's time it takes: log, error, scatter."""
    columns = np.log(np.array(comparison.rounds)).T
    found = {}
    for variant in comparison.finalists:
        over = columns[comparison.column(variant)] - columns[0]
        means = [float(part.mean()) for part in np.array_split(over, PARTS)]
        error = stdev(means) / math.sqrt(PARTS)
        numbers = (float(over.mean()), error, float(over.std(ddof=1)))
        found[variant.config.key] = tuple(round(one, 5) for one in numbers)
    return found


def child(asked: argparse.Namespace) -> None:
    """Time the finalists in this process; print a row of log ratios for each draw."""
    from tuner.session.session import Session
    from tuner.space.load import load_definition

    with Session.open(asked.session[0], read_only=True) as session:
        config, comparisons = session.manifest.config, session.comparisons()
    source = load_definition(config.space).spec.source
    wanted = [
        one for one in comparisons if not asked.workload or one.workload.key in asked.workload
    ]
    settings = {
        "device": asked.device,
        "space": config.space,
        "workloads": [one.workload.key for one in wanted],
        "operators": dict(config.operators),
    }
    with ranking(source, settings) as (run, evaluator):
        for one in wanted:
            chosen = [variant.config for variant in one.finalists[:MOST]]
            workload = next(w for w in run.plan.config.workloads if w.key == one.workload.key)
            programs = [evaluator.baseline_program(workload)]
            programs += [evaluator.program(workload, config) for config in chosen]
            # Each row has inputs of its own.
            rows = run.device.rank(programs, rounds=asked.draws)
            draws = [_over(row) for row in rows if all(row)]
            row = {"workload": workload.key, "configs": [c.key for c in chosen], "draws": draws}
            print(json.dumps({**row, "gpu": asked.child}), flush=True)
        environment = {**run.device.info.environment, "device": run.device.info.name}
        print(json.dumps({"environment": environment}), flush=True)


def _over(row: Sequence[float | None]) -> list[float]:
    """Say what each takes of the first one's time, as a log."""
    logs = [math.log(us) for us in row if us]
    return [round(one - logs[0], 5) for one in logs[1:]]


def again(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Time the finalists in processes of their own on each GPU; give what is known after each."""
    rows, environment = [], {}
    for turn in range(asked.times):
        # At once on all GPUs: what a host's clocks and power do is then the same for all.
        started = [_started(asked, gpu) for gpu in asked.gpus]
        for process in started:
            text, _ = process.communicate()
            if process.returncode:
                raise SystemExit(f"a process ended with code {process.returncode}")
            for line in text.splitlines():
                if line.startswith("{"):
                    said = json.loads(line)
                    environment = said.pop("environment", environment)
                    rows += [{"turn": turn, **said}] if said else []
        yield {**summary(rows), "rows": rows, "environment": environment}


def _started(asked: argparse.Namespace, gpu: int) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, "again", str(asked.session[0]), "--child", str(gpu)]
    words += ["--draws", str(asked.draws), "--device", asked.device]
    words += [word for key in asked.workload for word in ("--workload", key)]
    alone = {"CUDA_VISIBLE_DEVICES": str(gpu), "TUNE_STORE": "none"}
    return subprocess.Popen(
        words, env={**os.environ, **alone}, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Say how far apart means are by their draws alone, and of processes and GPUs besides."""
    draws, processes, gpus, errors = [], [], [], []
    for means, within in _configs(rows):
        draws.append(within)
        count = len(rows[0]["draws"])
        on_gpu = [fmean(of) for of in means.values()]
        spread = [stdev(of) for of in means.values() if len(of) > 1]
        processes += [math.sqrt(max(one**2 - within**2 / count, 0.0)) for one in spread]
        errors.append(within / math.sqrt(count))
        if len(on_gpu) > 1 and spread:
            error = _rms(spread) ** 2 / len(next(iter(means.values())))
            gpus.append(math.sqrt(max(stdev(on_gpu) ** 2 - error, 0.0)))
    parts = {"draw": draws, "process": processes, "gpu": gpus, "error_of_a_process": errors}
    return {"deviations": {name: _rms(of) for name, of in parts.items()}}


def _configs(
    rows: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[dict[int, list[float]], float]]:
    """Give each config's means of every process, by GPU, and how its draws scatter in one."""
    for key in dict.fromkeys(row["workload"] for row in rows):
        of = [row for row in rows if row["workload"] == key]
        for place in range(len(of[0]["configs"])):
            means: dict[int, list[float]] = {}
            within = []
            for row in of:
                values = [draw[place] for draw in row["draws"]]
                means.setdefault(row["gpu"], []).append(fmean(values))
                within.append(stdev(values))
            yield means, _rms(within)


def _rms(values: Sequence[float]) -> float:
    return round(math.sqrt(fmean(one**2 for one in values)), 5) if values else 0.0


def main() -> None:
    """Measure or read, and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", choices=("again", "sessions"))
    parser.add_argument("session", type=Path, nargs="+")
    parser.add_argument("--workload", action="append", default=[], help="key, M=48,... (all)")
    parser.add_argument("--gpus", type=lambda text: [*map(int, text.split(","))], default=[0])
    parser.add_argument("--times", type=int, default=3, help="processes on each GPU")
    parser.add_argument("--draws", type=int, default=24, help="of the inputs, in each")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if len(asked.session) != (2 if asked.what == "sessions" else 1):
        parser.error(f"`{asked.what}` takes {2 if asked.what == 'sessions' else 1}")
    if asked.child is not None:
        child(asked)
        return
    sessions = asked.what == "sessions"
    name = "fused_moe_sessions.json" if sessions else "fused_moe_again.json"
    for found in [of_sessions(asked.session)] if sessions else again(asked):
        about = {key: value for key, value in found.items() if key not in ("rows", "environment")}
        print(about, flush=True)
        write_result((asked.out or OUT / name).resolve(), found)


if __name__ == "__main__":
    main()
