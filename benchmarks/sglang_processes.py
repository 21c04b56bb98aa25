"""Decode steps of SGLang as users start it: `sgl.Engine`, a process for each mode, in alternation.

    pip install sglang==0.5.17 ./OUT                  (OUT: of `tune export ... --format sglang`)
    python benchmarks/sglang_processes.py --model llama-3-8b --out llama-3-8b.json
           [--mode own=0 --mode norms=rmsnorm,fused_add_rmsnorm --mode all=1] [--processes 3]

A mode is a name and what TUNED_SGLANG says in it; the first one is what the others are compared
with. Every process starts the engine with random weights, decodes few and many tokens after the
same prompts, which its prefix cache holds, and takes the difference, so that neither prefill nor
the way in and out counts: the mean context is --context. From one process to another the engine's
own step differs, by up to 4 %: a step is the median over processes, and its spread is told. What
--out holds already is kept, and goes on to --processes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from environment import ROOT, versions, write_result
from sglang_step import PACKAGES, gpu_state, numbers

MODELS = ROOT / "benchmarks/models"
MODES = ("own=0", "tuned=1")
FEW_TOKENS, MORE_TOKENS = 16, 96
SERVED = re.compile(r"(\w+): tuned kernels serve")


def decode_steps(asked: argparse.Namespace, **server_args: Any) -> dict[str, Any]:
    """Start the engine in this process; return microseconds of a step, by batch size."""
    import sglang

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        config = (MODELS / f"{asked.model}.json").read_text(encoding="utf-8")
        Path(folder, "config.json").write_text(config, encoding="utf-8")
        engine = sglang.Engine(
            model_path=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            disable_prefill_cuda_graph=True,
            mem_fraction_static=asked.memory,
            cuda_graph_bs_decode=sorted(asked.batches),
            max_running_requests=max(256, *asked.batches),
            log_level="info",
            random_seed=1,
            **server_args,
        )
    started = time.perf_counter()
    steps = {str(batch): time_batch(engine, batch, asked) for batch in asked.batches}
    engine.shutdown()
    return {"start_s": round(started - began, 1), "step_us": steps}


def time_batch(engine: Any, batch: int, asked: argparse.Namespace) -> list[float]:
    """Time a step of so many sequences, several times."""
    length = asked.context - FEW_TOKENS - MORE_TOKENS // 2
    prompts = [[(31 * i + 7 * j) % 90000 + 100 for j in range(length)] for i in range(batch)]

    def decode_s(tokens: int) -> float:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        began = time.perf_counter()
        engine.generate(input_ids=prompts, sampling_params=sampling)
        return time.perf_counter() - began

    decode_s(FEW_TOKENS)  # prefills them
    few_and_more = (
        (decode_s(FEW_TOKENS), decode_s(FEW_TOKENS + MORE_TOKENS)) for _ in range(asked.runs)
    )
    return [round((more - few) / MORE_TOKENS * 1e6, 1) for few, more in few_and_more]


def run_apart(
    words: Sequence[str], environment: Mapping[str, str], what: str
) -> tuple[dict[str, Any], str]:
    """Start this program again; return what it answers and all that it printed.

    Ends with the last of that where there is no answer to `what`.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        done = subprocess.run(
            [sys.executable, sys.argv[0], *sys.argv[1:], *words, "--answer", str(answer)],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if not answer.exists():
            raise SystemExit(f"{what}: no answer\n{done.stdout[-4000:]}")
        return json.loads(answer.read_text(encoding="utf-8")), done.stdout


def run_process(switch: str) -> dict[str, Any]:
    """Measure in a process of its own, with the plugin switched so; say what it served."""
    measured, printed = run_apart((), {"TUNED_SGLANG": switch}, f"TUNED_SGLANG={switch}")
    return {**measured, "served": sorted(set(SERVED.findall(printed)))}


def summarize_steps(modes: Iterable[str], processes: Sequence[Mapping[str, Any]]) -> Any:
    """Compare each mode with the first one, by batch size, over the processes that measured it.

    `spread` holds the least and the greatest ratio of a process of one to a process of the other.
    """
    first, *_ = modes
    summary: dict[str, Any] = {}
    for batch in dict.fromkeys(batch for one in processes for batch in one["step_us"]):
        measured = [one for one in processes if batch in one["step_us"]]
        found = {
            mode: [median(one["step_us"][batch]) for one in measured if one["mode"] == mode]
            for mode in modes
        }
        own = found[first]
        summary[batch] = {
            mode: {
                "us": median(us),
                "processes_us": us,
                "speedup": round(median(own) / median(us), 4),
                "spread": [round(min(own) / max(us), 4), round(max(own) / min(us), 4)],
            }
            for mode, us in found.items()
            if us
        }
    return summary


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = sorted(path.stem for path in MODELS.glob("*.json"))
    parser.add_argument("--model", choices=names, default="llama-3-8b")
    parser.add_argument("--mode", action="append", metavar="NAME=SWITCH", help=" ".join(MODES))
    parser.add_argument("--processes", type=int, default=3, help="of each mode")
    parser.add_argument("--batches", type=numbers, default=[1, 16, 64, 128])
    parser.add_argument(
        "--context", type=int, default=1024, help="tokens before a step, on average"
    )
    parser.add_argument("--runs", type=int, default=3, help="of each batch size in a process")
    parser.add_argument("--memory", type=float, default=0.6, help="SGLang's share of the memory")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure process after process, and write what is known after each."""
    asked = arguments()
    if asked.answer:
        asked.answer.write_text(json.dumps(decode_steps(asked)), encoding="utf-8")
        return
    modes = dict(mode.split("=", 1) for mode in asked.mode or MODES)
    processes: list[dict[str, Any]] = []
    if asked.out.exists():
        processes += json.loads(asked.out.read_text(encoding="utf-8"))["processes"]
    environment = {"gpu": gpu_state(), "packages": versions(PACKAGES)}
    result: dict[str, Any] = {"steps": summarize_steps(modes, processes)}
    for number in range(asked.processes):
        # Forwards, then backwards: a drift of the machine falls on all of them.
        for mode in list(modes)[:: 1 if number % 2 == 0 else -1]:
            if sum(one["mode"] == mode for one in processes) > number:
                continue
            processes.append({"mode": mode, **run_process(modes[mode])})
            print(json.dumps(processes[-1]), flush=True)
            environment["gpu_after"] = gpu_state()
            result = {"model": asked.model, "context": asked.context, "modes": modes}
            result |= {"steps": summarize_steps(modes, processes), "processes": processes}
            write_result(asked.out, {**result, "environment": environment})
    for batch, compared in result["steps"].items():
        for mode, one in compared.items():
            print(batch, mode, one["us"], f"{one['speedup']}x", one["spread"], one["processes_us"])


if __name__ == "__main__":
    main()
