"""SGLang's deterministic mode: are logits the same bits in every batch, and what does a step cost?

    pip install sglang==0.5.17 ./engine_configs/invariant_sglang ./OUT
    python benchmarks/reproducible_step.py --model llama-3-8b --out llama.json

engine_configs is what `tune fleet --invariant` wrote; OUT, if any, of `tune export ... --format
sglang` with sessions whose rows are invariant. Modes are SGLang as usual, its deterministic mode,
and that with ours. Each has two processes, which start with the same random weights. In one,
SGLang's model runner decodes a prompt alone, and first and last among others, and logits of every
token are compared bit by bit; that one also times a prefill. The other times decode steps of
`sgl.Engine`, as sglang_processes.py does.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from environment import versions, write_result
from sglang_engine import MODELS, Engine, NoPlugin
from sglang_processes import decode_steps, run_apart
from sglang_step import PACKAGES, gpu_state, numbers

USUAL, DETERMINISTIC, OURS = "usual", "deterministic", "deterministic, ours"
MODES = (USUAL, DETERMINISTIC, OURS)
TABLE = "invariant_sglang"
PLACES = ("first", "last")
# What a table's package logs once SGLang has it.
HAS_TABLE = re.compile(r"SGLang's invariant products have configs for (\d+) shapes")
Logits = Sequence[np.ndarray[Any, np.dtype[np.float32]]]


def environment_of(mode: str, plugins: str) -> dict[str, str]:
    """Say which plugins SGLang loads in a mode; a name that nobody has switches all off."""
    return {"SGLANG_PLUGINS": plugins if mode == OURS else "none"}


def server_args_of(mode: str) -> dict[str, Any]:
    """Say what a mode adds to the arguments of a server; attention is the same in all."""
    own = {"attention_backend": "fa3"}
    return own if mode == USUAL else {**own, "enable_deterministic_inference": True}


def compare_logits(alone: Logits, among: Logits) -> dict[str, Any]:
    """Compare the logits of each token bit by bit; once one differs, so may those after it.

    `first` is the first token, from 1 on, that has other bits, None where none has.
    """
    assert len(alone) == len(among)
    same = [one.tobytes() == other.tobytes() for one, other in zip(alone, among, strict=True)]
    first = next((number for number, equal in enumerate(same) if not equal), None)
    found: dict[str, Any] = {"tokens": len(same), "equal": sum(same), "first": None}
    if first is not None:
        apart = np.abs(alone[first].astype(np.float64) - among[first].astype(np.float64))
        found |= {"first": first + 1, "largest": float(apart.max())}
        found["argmax"] = bool(alone[first].argmax() == among[first].argmax())
    return found


def lines_of(modes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """List for each mode the logits, steps with their times over the usual ones, and prefills."""
    usual = modes.get(USUAL, {})
    for mode, found in modes.items():
        cases = found.get("logits", {})
        apart = {case: one for case, one in cases.items() if one["first"] is not None}
        said = ", ".join(f"{case}: from token {one['first']} on" for case, one in apart.items())
        yield f"{mode}: logits " + (f"differ among {said}" if apart else "have the same bits")
        for batch, times in found.get("step_us", {}).items():
            us = median(times)
            own = usual.get("step_us", {}).get(batch)
            ratio = f", {us / median(own):.2f}x the usual step" if own else ""
            yield f"  batch {batch}: {us:,.0f} us a step{ratio}"
        for tokens, times in found.get("prefill_us", {}).items():
            us = median(times)
            own = usual.get("prefill_us", {}).get(tokens)
            ratio = f", {median(own) / us:.2f} of the usual rate" if own else ""
            yield f"  prefill of {tokens}: {us:,.0f} us{ratio}"


def require_gpu() -> None:
    """End with what is missing where there is no GPU."""
    if shutil.which("nvidia-smi") is None:
        raise SystemExit("no NVIDIA GPU here: SGLang's deterministic mode is measured on one")


def probe_logits(asked: argparse.Namespace) -> dict[str, Any]:
    """Decode a prompt alone and among others in this process, and time prefills."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
    table = importlib.import_module(TABLE) if asked.mode == OURS else None
    given = argparse.Namespace(
        **vars(asked), layers=None, eager_prefill=True, fused_rope=False, moe_configs=[]
    )
    given.batches = [1, *(others + 1 for others in asked.others)]
    given.server_args = server_args_of(asked.mode)
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(given, NoPlugin(), Path(folder))
    found: dict[str, Any] = {"attention": engine.attention, "logits": {}}
    alone = decoded(engine, 0, "first", asked)
    for others in asked.others:
        for place in PLACES:
            among = decoded(engine, others, place, asked)
            found["logits"][f"{others}, {place}"] = compare_logits(alone, among)
    found["prefill_us"] = {
        str(tokens): [engine.extend(1, tokens)[3] for _ in range(asked.runs + 1)][1:]
        for tokens in asked.prefill
    }
    if table is not None:
        found["calls"] = table.calls()
        if not found["calls"]["table"]:
            raise SystemExit(f"{TABLE} is not reached: {found['calls']}")
    return found


def decoded(engine: Engine, others: int, place: str, asked: argparse.Namespace) -> Logits:
    """Decode greedily the prompt that is the first of any number; return its logits by token."""
    runner = engine.runner
    runner.clear()
    np.random.seed(3)  # SGLang draws prompts by it
    make = engine._one_batch.prepare_synthetic_inputs_for_latency_test
    requests = make(others + 1, asked.context)
    if place == "last":
        requests.reverse()
    row = 0 if place == "first" else others
    tokens, logits, running = runner.extend(requests)
    rows = [logits[row].float().cpu().numpy()]
    for _ in range(asked.tokens - 1):
        tokens, logits = runner.decode(tokens, running)
        rows.append(logits[row].float().cpu().numpy())
    return rows


def time_steps(asked: argparse.Namespace) -> dict[str, Any]:
    """Start the engine in this process; return microseconds of a step, by batch size."""
    return {"step_us": decode_steps(asked, **server_args_of(asked.mode))["step_us"]}


def run_process(mode: str, part: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Measure a part of a mode in a process of its own; end where it gives no answer."""
    words, environment = ("--mode", mode, "--part", part), environment_of(mode, asked.plugins)
    measured, printed = run_apart(words, environment, f"{mode}, {part}")
    if mode == OURS and part == "steps" and not HAS_TABLE.search(printed):
        raise SystemExit(f"{mode}: SGLang has not loaded {TABLE}\n{printed[-4000:]}")
    return measured


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = sorted(path.stem for path in MODELS.glob("*.json"))
    parser.add_argument("--model", choices=names, default="llama-3-8b")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=[*MODES])
    parser.add_argument("--plugins", default=f"{TABLE},tuned_kernels", help="of the last mode")
    parser.add_argument("--others", type=numbers, default=[7, 31, 63], help="prompts beside one")
    parser.add_argument("--tokens", type=int, default=64, help="that are compared")
    parser.add_argument("--batches", type=numbers, default=[1, 16, 64], help="that are timed")
    parser.add_argument("--prefill", type=numbers, default=[8192], help="that are timed, or ''")
    parser.add_argument("--context", type=int, default=1024, help="tokens before a step")
    parser.add_argument("--runs", type=int, default=5, help="of what is timed")
    parser.add_argument("--memory", type=float, default=0.6, help="SGLang's share of the memory")
    parser.add_argument("--out", type=Path, required=True)
    for name in ("--mode", "--part", "--answer"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main() -> None:
    """Measure mode after mode, write what is known after each, and list it."""
    asked = arguments()
    require_gpu()
    if asked.answer:
        measure = probe_logits if asked.part == "logits" else time_steps
        Path(asked.answer).write_text(json.dumps(measure(asked)), encoding="utf-8")
        sys.stdout.flush()
        os._exit(0)  # SGLang's threads would keep the process
    began = time.time()
    modes: dict[str, dict[str, Any]] = {}
    for mode in asked.modes:
        modes[mode] = run_process(mode, "logits", asked) | run_process(mode, "steps", asked)
        result = {
            "model": asked.model,
            "context": asked.context,
            "tokens": asked.tokens,
            "plugins": asked.plugins,
            "modes": modes,
            "environment": {"gpu": gpu_state(), "packages": versions(PACKAGES)},
        }
        write_result(asked.out, result)
    print("\n".join(lines_of(modes)))
    print(f"{time.time() - began:.0f} s in all")


if __name__ == "__main__":
    main()
