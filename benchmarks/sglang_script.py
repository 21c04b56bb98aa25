"""What SGLang's own script takes to tune its fused MoE kernel, from a part of it.

    python benchmarks/sglang_script.py SCRIPTS [--tokens 16,1024] [--configs 64] [--out FILE]
            (needs an NVIDIA GPU, SGLang 0.5.17, sglang-kernel and flashinfer-python 0.6.15.post1)

SCRIPTS is the folder benchmark/kernels/fused_moe_triton of a checkout of SGLang, at the version
that is installed. Its script runs as it is, for Qwen3-30B-A3B, with so many of its configs at
random: for each number of tokens once with an empty cache of Triton's and once more with a full
one. It tunes one number of tokens after the other in one process, which keeps what it compiled: all
of its configs for 18 numbers take the difference of the two once, and the second 18 times. Where
Ray is missing, by which it spreads over GPUs, calls are made at once. FlashInfer, which it imports,
is not in what offline.py packs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from environment import ROOT, environment, require_clean, versions, write_result
from sglang_engine import MODELS

SCRIPT = "tuning_fused_moe_triton.py"
MODEL = "qwen3-30b-a3b"
NUMBERS = 18  # of tokens, which the script tunes unless it is told otherwise
SEED = 0
LIMIT_S = 900
OUT = ROOT / "benchmarks/results/h200/sglang_script.json"
LIST = "import json, common_utils; print(json.dumps(common_utils.get_configs_compute_bound()))"
# What the script asks of Ray.
RAY = {
    "__init__.py": """
class Remote:
    def __init__(self, call):
        self.remote = call


def remote(**wanted):
    def made(kind):
        class Worker(kind):
            def __getattribute__(self, name):
                found = super().__getattribute__(name)
                return Remote(found) if name in ("tune", "benchmark") else found

        Worker.remote = Worker
        return Worker

    return made


def init():
    pass


def available_resources():
    return {"GPU": 1}


def get_gpu_ids():
    return [0]


def get(results):
    return results
""",
    "experimental/__init__.py": "",
    "experimental/tqdm_ray.py": "tqdm = iter\n",
}


def prepared(folder: Path, scripts: Path) -> dict[str, str]:
    """Lay the model's config and, where it is missing, Ray there; return the environment."""
    model = folder / "model/config.json"
    model.parent.mkdir()
    model.write_text((MODELS / f"{MODEL}.json").read_text(encoding="utf-8"), encoding="utf-8")
    if find_spec("ray") is None:
        for name, text in RAY.items():
            file = folder / "ray" / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
    before = os.environ.get("PYTHONPATH")
    paths = [str(folder), str(scripts), *([before] if before else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def all_configs(folder: Path, environ: Mapping[str, str]) -> list[dict[str, int]]:
    """Ask the script's own module which configs it tries."""
    listed: list[dict[str, int]] = json.loads(said(["-c", LIST], folder, environ).splitlines()[-1])
    return listed


def tuning_s(
    tokens: int, chosen: Path, scripts: Path, folder: Path, environ: Mapping[str, str]
) -> float:
    """Run the script for one number of tokens; return the seconds that it says."""
    command = [str(scripts / SCRIPT), "--model", "model", "--tp-size", "1", "--tune"]
    command += ["--batch-sizes", str(tokens), "--search-space-file", str(chosen)]
    text = said(command, folder, environ)
    found = re.findall(r"Tuning took ([0-9.]+) seconds", text)
    if not found:
        raise SystemExit(f"{SCRIPT} does not say how long it took: {text[-300:]}")
    return float(found[-1])


def said(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> str:
    """Run Python in the folder; return what it printed."""
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=dict(environ),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if ended.returncode:
        raise SystemExit(f"{command[0]} ends with {ended.returncode}: {ended.stderr[-2000:]}")
    return ended.stdout


def estimated_s(rows: Sequence[Mapping[str, Any]], share: float) -> float:
    """Say what all configs take for all numbers of tokens, of which a share was measured."""
    compiling_s = max(row["first_s"] - row["again_s"] for row in rows)
    return (compiling_s + NUMBERS * fmean(row["again_s"] for row in rows)) / share


def measured(scripts: Path, tokens: Sequence[int], count: int) -> dict[str, Any]:
    """Run the script on so many configs for each number of tokens, twice."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environ = prepared(folder, scripts)
        every = all_configs(folder, environ)
        chosen = folder / "configs.json"
        sample = random.Random(SEED).sample(every, min(count, len(every)))  # noqa: S311, a sample
        chosen.write_text(json.dumps(sample), encoding="utf-8")
        for number in tokens:
            cached = {**environ, "TRITON_CACHE_DIR": f"{folder}/triton-{number}"}
            first_s, again_s = (tuning_s(number, chosen, scripts, folder, cached) for _ in range(2))
            rows.append({"tokens": number, "first_s": first_s, "again_s": again_s})
            print(rows[-1], flush=True)
    return {
        "script": hashlib.sha256((scripts / SCRIPT).read_bytes()).hexdigest()[:12],
        "configs": len(sample),
        "of": len(every),
        "rows": rows,
        "estimated_s": round(estimated_s(rows, len(sample) / len(every)), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", type=Path, help="SGLang's benchmark/kernels/fused_moe_triton")
    parser.add_argument("--tokens", default="16,1024")
    parser.add_argument("--configs", type=int, default=64)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    require_clean()
    if not (asked.scripts / SCRIPT).is_file():
        parser.error(f"{asked.scripts} has no {SCRIPT}: name that folder of a checkout of SGLang")
    numbers = [int(one) for one in asked.tokens.split(",")]
    found = measured(asked.scripts.resolve(), numbers, asked.configs)
    packages = {"packages": versions(("torch", "triton", "sglang", "ray"))}
    write_result(asked.out.resolve(), {**found, "environment": {**environment(), **packages}})


if __name__ == "__main__":
    main()
