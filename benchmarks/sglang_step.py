"""Steps of SGLang with and without a plugin of tuned kernels, in one process, in alternation.

    pip install sglang==0.5.17 ./OUT                  (OUT: of `tune export ... --format sglang`)
    python benchmarks/sglang_step.py --plugin NAME --model llama-3-8b --out llama.json

SGLang's own model runner with random weights. A decode step is the replay of a CUDA graph; each
mode has its graphs, captured anew for every batch size. In each round all modes have a turn, in
shuffled order; a speedup is the median of the rounds' ratios, with its 95 % interval. Logits are
compared, the plugin's calls counted (of a graph: while it was warmed up and captured), and kernels
summed up by kind.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import re
import statistics
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from environment import ROOT, versions, write_result
from sglang_engine import MODELS, OWN, Engine, Mode, Plugin

# Which kernels are of which operator or kind: `tune timeline` reads the same.
KERNELS = ROOT / "tuner/timeline/operators.yaml"
PACKAGES = (
    *("sglang", "sglang-kernel", "flashinfer-python", "nvidia-cutlass-dsl", "apache-tvm-ffi"),
    *("torch", "triton", "transformers"),
)
GPU = "name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw"
BLOCK_US = 40_000.0  # of replays, about, between two events
WARM_UP_S = 0.3
NAMES, LONGEST_NAME = 24, 120  # of kernels in a result


def modes_of(plugin: Plugin, asked: argparse.Namespace) -> list[Mode]:
    """List SGLang's own mode first, then those of the plugin."""
    served = plugin.operators - {"fused_qk_norm_rope"}
    modes = [Mode(OWN), Mode("tuned", served)]
    if asked.each:
        modes += [Mode(f"only {name}", frozenset({name})) for name in sorted(served)]
    if asked.fused_rope:
        own = f"{OWN}, fused rope"
        modes += [Mode(own, fused_rope=True)]
        modes += [Mode("tuned, fused rope", plugin.operators, True)]
        if asked.each:
            only = "fused_qk_norm_rope"
            modes += [Mode(f"only {only}", frozenset({only}), True, own)]
    return modes


def decode_case(engine: Engine, modes: list[Mode], batch: int, asked: argparse.Namespace) -> Any:
    """Time the graphs of all modes for one batch size, compare logits, sum up kernels."""
    backends, calls = [], {}
    for _ in range(asked.captures):
        engine.plugin.calls()
        captured = {}
        for mode in modes:
            captured[mode.name] = engine.decode_graph(mode, batch)
            calls[mode.name] = engine.plugin.calls()
        backends.append(captured)
    engine.use(modes[0])
    tokens, _, running, _ = engine.extend(batch, asked.context)
    engine.runner.decode(tokens, running)  # fills in what the graphs read
    engine.runner.synchronize()
    key = engine.decoder._replay_graph_key
    graphs = [{name: one._graphs[key] for name, one in each.items()} for each in backends]
    logits = [{name: replayed(one, key, batch) for name, one in each.items()} for each in backends]
    times = rounds(modes, graphs, asked.rounds)
    return {
        "context": asked.context,
        "calls": calls,
        "logits": differences(logits),
        **summary(modes, times, asked.captures),
        "kernels": {
            mode.name: profile(graphs[0][mode.name].replay, engine.plugin.kernels, times=3)
            for mode in modes
            if not mode.name.startswith("only")
        },
    }


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


def summary(
    modes: list[Mode], times: Mapping[str, list[float]], captures: int = 1
) -> dict[str, Any]:
    """Give medians, and the speedup of each mode over the one that it is compared with."""
    return {
        "us": {name: statistics.median(some) for name, some in times.items()},
        "speedup": {
            mode.name: {
                "against": mode.against,
                **speedup(times[mode.against], times[mode.name], captures),
            }
            for mode in modes
            if mode.name != OWN
        },
        "rounds_us": {name: [round(one, 2) for one in some] for name, some in times.items()},
    }


def speedup(own_us: list[float], tuned_us: list[float], captures: int = 1) -> dict[str, Any]:
    """Return the median of the rounds' ratios, of several captures their mean, and its interval.

    The rounds took the captures in turn. Where a graph's memory lies costs or gains up to 1 % of a
    step: the interval of 95 % is a bootstrap over captures, and over the rounds of each.
    """
    import numpy

    ratios = numpy.array(own_us) / numpy.array(tuned_us)
    each = [ratios[first::captures] for first in range(captures)]
    random_ = numpy.random.default_rng(5)
    drawn = numpy.stack([numpy.median(random_.choice(one, (10_000, one.size)), 1) for one in each])
    chosen = random_.integers(captures, size=(captures, 10_000))
    means = numpy.take_along_axis(drawn, chosen, 0).mean(0)
    low, high = numpy.quantile(means, (0.025, 0.975))
    interval = [round(float(low), 4), round(float(high), 4)]
    middle = numpy.mean([numpy.median(one) for one in each])
    return {"median": round(float(middle), 4), "interval": interval}


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
        mode.name: profile(partial(once, mode), engine.plugin.kernels, times=1)
        for mode in modes
        if not mode.name.startswith("only")
    }
    compared = {"calls": calls, "logits": differences([logits])}
    return {**compared, **summary(modes, times), "kernels": kernels}


def profile(call: Callable[[], Any], tuned: Mapping[str, str], *, times: int) -> dict[str, Any]:
    """Sum up the kernels of a call by kind: how many, microseconds, and their share."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    call()
    torch.cuda.synchronize()
    with profiled(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(times):
            call()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    kernels = [one for one in profiler.events() if one.device_type == cuda]
    return shares([(one.name, one.time_range.elapsed_us()) for one in kernels], tuned, times)


def shares(
    kernels: Iterable[tuple[str, float]], tuned: Mapping[str, str], times: int
) -> dict[str, Any]:
    """Sum up kernels' names and microseconds of so many calls by kind, the longest first."""
    us: dict[str, float] = defaultdict(float)
    names: dict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for name, taken in kernels:
        kind = kind_of(name, tuned)
        us[kind] += taken / times
        names[name[:LONGEST_NAME]] += taken / times
        counts[kind] += 1
    total = sum(us.values())
    return {
        "us": round(total, 1),
        "kinds": {
            kind: {"count": counts[kind] / times, "us": round(one, 2), "share": one / total}
            for kind, one in longest_first(us)
        },
        "names": {name: round(one, 2) for name, one in longest_first(names)[:NAMES]},
    }


def longest_first(us: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(us.items(), key=lambda item: -item[1])


def kind_of(kernel: str, tuned: Mapping[str, str]) -> str:
    """Say what a kernel does: an operator, after `tuned` where it is the plugin's, or a kind."""
    if kernel in tuned:
        return f"tuned {tuned[kernel]}"
    for pattern, kind in kernel_table():
        if pattern.search(kernel):
            return kind
    return "other"


@cache
def kernel_table() -> tuple[tuple[re.Pattern[str], str], ...]:
    import yaml

    rows = yaml.safe_load(KERNELS.read_text(encoding="utf-8"))["kernels"]
    named = ((row["kernel"], row.get("operator") or row.get("kind")) for row in rows)
    return tuple((re.compile(pattern), kind) for pattern, kind in named if kind)


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
    for mode, profiled in case["kernels"].items():
        kinds = (f"{kind} {one['share']:.1%}" for kind, one in profiled["kinds"].items())
        print(f"  {mode}: {', '.join(kinds)}", flush=True)


def calls_text(calls: Mapping[str, Mapping[str, int]]) -> str:
    """Write the calls of each operator that tuned kernels took, of all."""
    each = (f"{name} {one['tuned']}/{sum(one.values())}" for name, one in calls.items())
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
    parser.add_argument("--plugin", default="tuned_kernels", help="what `tune export` named it")
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
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    began = time.time()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    plugin = Plugin(asked.plugin)
    print("\n".join(plugin.log), flush=True)
    modes = modes_of(plugin, asked)
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(asked, plugin, Path(folder))
    start_s = time.time() - began
    print(f"started in {start_s:.0f} s: {engine.attention}, {engine.graph_config}", flush=True)
    result: dict[str, Any] = {
        "model": asked.model,
        "asked": {name: value for name, value in vars(asked).items() if name != "out"},
        "replaced": plugin.log,
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
    print(f"lower ends of tuned: {lower_ends(result)}", flush=True)
    print(f"{time.time() - began:.0f} s in all", flush=True)
    os._exit(0)  # SGLang's threads would keep the process


def lower_ends(result: dict[str, Any]) -> str:
    """List the lower end of the plugin's interval for each case."""
    return ", ".join(
        f"{step} {size} {case['speedup']['tuned']['interval'][0]:.4f}"
        for step in ("decode", "prefill")
        for size, case in result[step].items()
    )


if __name__ == "__main__":
    main()
