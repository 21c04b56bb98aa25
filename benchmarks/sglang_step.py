"""Steps of SGLang with and without what was tuned for it, in one process, in alternation.

    pip install sglang==0.5.17 ./OUT                  (OUT: of `tune export ... --format sglang`)
    python benchmarks/sglang_step.py --plugin NAME --model llama-3-8b --out llama.json
    python benchmarks/sglang_step.py --model qwen3-30b-a3b --moe-configs DIR --out qwen.json

SGLang's own model runner with random weights. A decode step is the replay of a CUDA graph; each
mode has its graphs, captured anew for every batch size. In each round all modes have a turn, in
shuffled order; a speedup is the median of the rounds' ratios, with its 95 % interval. Logits are
compared, the plugin's calls counted (of a graph: while it was warmed up and captured), and kernels
summed up by kind. DIR is what `tune fleet` or fused_moe_file.py wrote: with it, SGLang's fused MoE
kernel has its configs from SGLang's own files, from none, and from DIR's; the kernel's time in
each mode says which gain it implies.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from environment import versions, write_result
from moe_modes import OWN, Mode, folders_of, gains, named_folder, pairs_of
from sglang_engine import MODELS, Engine, NoPlugin, Plugin
from step_kernels import Kernel, profiled, shares
from step_speedups import speedup, summary

PLUGIN = "tuned_kernels"  # the name that `tune export` gives
PACKAGES = (
    *("sglang", "sglang-kernel", "flashinfer-python", "nvidia-cutlass-dsl", "apache-tvm-ffi"),
    *("torch", "triton", "transformers"),
)
GPU = "name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw"
BLOCK_US = 40_000.0  # of replays, about, between two events
WARM_UP_S = 0.3
NOT_KEPT = ("out", "moe_configs")  # of what was asked: paths
PROFILED = 3  # replays of each graph


def modes_of(
    plugin: Plugin | NoPlugin, asked: argparse.Namespace, folders: Mapping[str, Path]
) -> list[Mode]:
    """List SGLang's own mode first, then those of the plugin, then those of MoE configs."""
    served = plugin.operators - {"fused_qk_norm_rope"}
    modes = [Mode(OWN)]
    if served:
        modes += [Mode("tuned", served)]
    if asked.each:
        modes += [Mode(f"only {name}", frozenset({name})) for name in sorted(served)]
    if asked.fused_rope:
        own = f"{OWN}, fused rope"
        modes += [Mode(own, fused_rope=True)]
        modes += [Mode("tuned, fused rope", plugin.operators, True)]
        if asked.each:
            only = "fused_qk_norm_rope"
            modes += [Mode(f"only {only}", frozenset({only}), True, own)]
    return modes + [Mode(name, configs=folder) for name, folder in folders.items()]


def decode_case(engine: Engine, modes: list[Mode], batch: int, asked: argparse.Namespace) -> Any:
    """Time the graphs of all modes for one batch size, compare logits, sum up kernels."""
    backends, calls, taken = [], {}, {}
    for _ in range(asked.captures):
        engine.plugin.calls()
        captured = {}
        for mode in modes:
            captured[mode.name] = engine.decode_graph(mode, batch)
            calls[mode.name] = engine.plugin.calls()
            taken[mode.name] = engine.moe.taken() if engine.moe else []
        backends.append(captured)
    engine.use(modes[0])
    tokens, _, running, _ = engine.extend(batch, asked.context)
    keys = engine.step(modes, backends[0], tokens, running)
    graphs = [{name: one._graphs[keys[name]] for name, one in each.items()} for each in backends]
    logits = [
        {name: replayed(one, keys[name], batch) for name, one in each.items()} for each in backends
    ]
    times = rounds(modes, graphs, asked.rounds)
    case = {
        "context": asked.context,
        "calls": calls,
        "graphs": {name: key.variant_label for name, key in keys.items()},
        "logits": differences(logits),
        **summary(modes, times, asked.captures),
        "kernels": decode_kernels(modes, graphs, engine.plugin.kernels),
    }
    if engine.moe is not None:
        case["configs"] = taken
        measured = {
            (name, against): speedup(times[against], times[name], asked.captures)
            for name, against in pairs_of(modes)
        }
        case["gains"] = list(gains(modes, measured, case, batch))
    return case


def decode_kernels(
    modes: list[Mode], graphs: list[dict[str, Any]], tuned: Mapping[str, str]
) -> dict[str, Any]:
    """Profile the graphs of every capture, the modes in turn, and sum up each mode's kernels."""
    found: dict[str, list[Kernel]] = {
        mode.name: [] for mode in modes if not mode.name.startswith("only")
    }
    for captured in graphs:
        for name in found:
            found[name] += profiled(captured[name].replay, times=PROFILED)
    replays = PROFILED * len(graphs)
    return {name: shares(kernels, tuned, replays) for name, kernels in found.items()}


def replayed(backend: Any, key: Any, batch: int) -> Any:
    import torch

    backend._graphs[key].replay()
    torch.cuda.synchronize()
    return backend._outputs[key].next_token_logits[:batch].float().clone()


def differences(captures: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Compare logits with SGLang's own of the first capture; of several captures the worst."""
    base = captures[0][OWN]
    found: dict[str, dict[str, float]] = {}
    for name in captures[0]:
        each = [one[name] for one in captures]
        found[name] = {
            "relative_error": max(float((one - base).norm() / base.norm()) for one in each),
            "same_argmax": min(
                float((one.argmax(-1) == base.argmax(-1)).float().mean()) for one in each
            ),
            "finite": float(all(bool(one.isfinite().all()) for one in each)),
        }
    return found


def rounds(modes: list[Mode], graphs: list[dict[str, Any]], count: int) -> dict[str, list[float]]:
    """Replay the graphs in blocks, all modes in each round, in shuffled order; microseconds."""
    replays = {}
    for mode in modes:
        until = time.perf_counter() + WARM_UP_S / len(modes)
        while time.perf_counter() < until:
            replay_us(graphs[0][mode.name], 5)
        replays[mode.name] = max(3, round(BLOCK_US / replay_us(graphs[0][mode.name], 5)))
    times: dict[str, list[float]] = {mode.name: [] for mode in modes}
    shuffled = random.Random(4)  # noqa: S311, an order
    for number in range(count):
        for mode in shuffled.sample(modes, len(modes)):
            graph = graphs[number % len(graphs)][mode.name]
            times[mode.name].append(replay_us(graph, replays[mode.name]))
    return times


def replay_us(graph: Any, times: int) -> float:
    """Time replays by events; one before them, since an event on an idle stream is early."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    for _ in range(times):
        graph.replay()
    end.record()
    end.synchronize()
    elapsed: float = start.elapsed_time(end) * 1e3 / times
    return elapsed


def prefill_case(engine: Engine, modes: list[Mode], tokens: int, asked: argparse.Namespace) -> Any:
    """Time a prefill of one sequence from the call to its logits, all modes in each round."""
    graphs: dict[str, Any] = {}

    def once(mode: Mode) -> tuple[Any, float]:
        engine.use(mode)
        engine.prefill_with(graphs[mode.name])
        _, found, _, us = engine.extend(1, tokens)
        return found, us

    calls, logits = {}, {}
    for mode in modes:
        engine.plugin.calls()
        graphs[mode.name] = engine.prefill_graph(mode, tokens)
        logits[mode.name] = once(mode)[0].float().clone()
        calls[mode.name] = engine.plugin.calls()
    times: dict[str, list[float]] = {mode.name: [] for mode in modes}
    shuffled = random.Random(6)  # noqa: S311, an order
    for _ in range(asked.prefill_rounds):
        for mode in shuffled.sample(modes, len(modes)):
            times[mode.name].append(once(mode)[1])
    kernels = {
        mode.name: shares(profiled(partial(once, mode), times=1), engine.plugin.kernels, 1)
        for mode in modes
        if not mode.name.startswith("only")
    }
    compared = {"calls": calls, "logits": differences([logits])}
    return {**compared, **summary(modes, times), "kernels": kernels}


def print_case(name: str, case: dict[str, Any]) -> None:
    print(f"{name}: {OWN} {case['us'][OWN]:.1f} us")
    for mode, one in case["speedup"].items():
        low, high = one["interval"]
        logits = case["logits"][mode]
        print(
            f"  {mode:26} {case['us'][mode]:9.1f} us  {one['median']:.4f}x [{low:.4f}, {high:.4f}]"
            f" of {one['against']}; logits {logits['relative_error']:.2e} apart,"
            f" {logits['same_argmax']:.0%} the same argmax; calls {calls_text(case['calls'][mode])}"
        )
    for mode, kernels in case["kernels"].items():
        kinds = (f"{kind} {one['share']:.1%}" for kind, one in kernels["kinds"].items())
        print(f"  {mode}: {', '.join(kinds)}", flush=True)
    for one in case.get("gains", ()):
        low, high = one["measured"]["interval"]
        record = f", by the record {one['implied_by_record']}x" if "recorded" in one else ""
        print(
            f"  {one['mode']} over {one['against']}: {one['measured']['median']}x [{low}, {high}],"
            f" implied by the kernel's {one['share']:.1%} {one['implied']}x{record}"
        )
    for mode, configs in case.get("configs", {}).items():
        print(f"  {mode} took {configs}", flush=True)


def calls_text(calls: Mapping[str, Mapping[str, int]]) -> str:
    """Write the calls of each operator that tuned kernels took, of all."""
    each = (
        f"{name} {one['tuned']}/{one['tuned'] + one['original']}" for name, one in calls.items()
    )
    return ", ".join(each) or "none"


def gpu_state() -> dict[str, str]:
    used = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    command = ["nvidia-smi", f"--id={used}", f"--query-gpu={GPU}", "--format=csv,noheader"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(zip(GPU.split(","), (one.strip() for one in said.split(",")), strict=True))


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = sorted(path.stem for path in MODELS.glob("*.json"))
    parser.add_argument(
        "--plugin", help=f"what `tune export` named it; {PLUGIN}, or none with --moe-configs"
    )
    parser.add_argument(
        "--moe-configs",
        type=named_folder,
        nargs="+",
        default=[],
        metavar="[NAME=]DIR",
        help="as SGLANG_MOE_CONFIG_DIR has them; each is a mode, beside one without a file",
    )
    parser.add_argument("--model", choices=names, default="llama-3-8b")
    parser.add_argument("--layers", type=int, help="of the model; all of them by default")
    parser.add_argument("--batches", type=numbers, default=[1, 16, 64, 128])
    parser.add_argument("--context", type=int, default=1024, help="tokens before a decode step")
    parser.add_argument("--prefill", type=numbers, default=[512, 2048, 8192], help="or ''")
    parser.add_argument("--eager-prefill", action="store_true", help="without CUDA graphs")
    parser.add_argument("--each", action="store_true", help="each operator by itself, too")
    parser.add_argument(
        "--fused-rope", action="store_true", help="SGLang's fused_qk_norm_rope, too (Qwen3 MoE)"
    )
    parser.add_argument("--rounds", type=int, default=64)
    parser.add_argument("--captures", type=int, default=8, help="of each graph")
    parser.add_argument("--prefill-rounds", type=int, default=40)
    parser.add_argument("--memory", type=float, default=0.6, help="SGLang's share of the memory")
    parser.add_argument(
        "--server-args", type=json.loads, default={}, metavar="JSON", help="more of SGLang's own"
    )
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with tempfile.TemporaryDirectory() as scratch:
        measure(asked, Path(scratch))
    os._exit(0)  # SGLang's threads would keep the process


def measure(asked: argparse.Namespace, scratch: Path) -> None:
    """Start SGLang, measure case after case, and write the result after each."""
    began = time.time()
    bare = asked.moe_configs and not asked.plugin
    plugin = NoPlugin() if bare else Plugin(asked.plugin or PLUGIN)
    print("\n".join(plugin.log), flush=True)
    modes = modes_of(plugin, asked, folders_of(asked.moe_configs, scratch / "no file"))
    engine = Engine(asked, plugin, scratch)
    start_s = time.time() - began
    print(f"started in {start_s:.0f} s: {engine.attention}, {engine.graph_config}", flush=True)
    result: dict[str, Any] = {
        "model": asked.model,
        "asked": {name: value for name, value in vars(asked).items() if name not in NOT_KEPT},
        "replaced": list(plugin.log),
        "attention": engine.attention,
        "cuda_graphs": engine.graph_config,
        "start_s": start_s,
        "environment": {"gpu": gpu_state(), "packages": versions(PACKAGES)},
        "decode": {},
        "prefill": {},
    }
    measured = (
        *(("decode", decode_case, batch) for batch in asked.batches),
        *(("prefill", prefill_case, tokens) for tokens in asked.prefill),
    )
    for step, case_of, size in measured:
        case = result[step][str(size)] = case_of(engine, modes, size, asked)
        print_case(f"{step} {size}", case)
        result["environment"]["gpu_after"] = gpu_state()
        write_result(asked.out, result)
    if plugin.operators:
        print(f"lower ends of tuned: {lower_ends(result)}", flush=True)
    print(f"{time.time() - began:.0f} s in all", flush=True)


def lower_ends(result: dict[str, Any]) -> str:
    """List the lower end of the plugin's interval for each case."""
    return ", ".join(
        f"{step} {size} {case['speedup']['tuned']['interval'][0]:.4f}"
        for step in ("decode", "prefill")
        for size, case in result[step].items()
    )


if __name__ == "__main__":
    main()
