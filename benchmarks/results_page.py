"""Write docs/results.md, and README's figures, from the result files beside this.

python benchmarks/results_page.py [--check]

Every figure has a file behind it. A section whose file is missing is left out. A file that does
not name a clean commit of the code that made it is refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import geometric_mean
from textwrap import fill

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import attention_section  # noqa: E402
import gemm_section  # noqa: E402
import hardware_section  # noqa: E402
import invariant_section  # noqa: E402
import kernelbench_verified_section  # noqa: E402
import moe_section  # noqa: E402
import operators_section  # noqa: E402
import processes_section  # noqa: E402
import scaling_section  # noqa: E402
import search_section  # noqa: E402
import seeds_section  # noqa: E402
import steps_section  # noqa: E402
import strangers_section  # noqa: E402
from environment import digest_of, is_clean, is_lost, missed  # noqa: E402

PAGE, README = ROOT / "docs/results.md", ROOT / "README.md"
MARKS = "<!-- results -->\n", "<!-- end of results -->\n"
RESULTS = ROOT / "benchmarks/results"
# What the figures are asked of.
GPU = "h200"


def page(results=RESULTS):
    """Compose the whole page from a folder of results."""
    parts = [
        "# Results\n",
        "Made by `python benchmarks/results_page.py` from the files under `benchmarks/results/`, "
        "each of which names the commit of the code that made it; a test keeps the two equal. An "
        "interval covers chance within its session, not another GPU or day.\n",
        *_operators(results),
    ]
    for section, name in SECTIONS:
        if not name.startswith("GPU/"):
            content = read(results / f"{name}.json")
            parts += [*section(content), *_lost(content)] if content is not None else ()
            continue
        for gpu in (GPU, *other_gpus(results)):
            content = read(results / f"{name.replace('GPU', gpu, 1)}.json")
            parts += [*section(content, gpu), *_lost(content)] if content is not None else ()
    return "\n".join(parts)


def _lost(content):
    if is_lost(content):
        commit = content["environment"]["commit"]
        yield f"**To be measured again**: {commit}, which this result names, is in no history.\n"


def read(path):
    """Read a result; None where there is none.

    Exits where its commit is dirty or unknown, or where it isn't what its benchmark wrote.
    """
    if not path.exists():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    known = content.get("environment", {})
    commit, recorded = known.get("commit"), known.get("recorded") == "true"
    if not is_clean(commit) or recorded:
        what = "is a replay of a recording" if recorded else f"is of commit {commit or 'unknown'}"
        raise SystemExit(
            f"{path}: {what}; measure it again from a clean commit (in a copy without .git, "
            "TUNE_COMMIT names it), or delete the file: the page then has no such section"
        )
    if content.get("digest") != digest_of(content):
        raise SystemExit(
            f"{path}: was edited by hand: its digest is of another content; restore it "
            f"(git checkout -- {path.name}), or run its benchmark again"
        )
    return content


def readme(text, results=RESULTS):
    """Put the figures between the marks of README.md."""
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    found = operator_results(results)
    said = [operators_section.in_short(found) if found else ANEW]
    steps = read(results / "h200/sglang_processes.json")
    said += [processes_section.in_short(steps)] if steps else []
    fleets = read(results / f"{GPU}/fused_moe.json")
    script = read(results / f"{GPU}/sglang_script.json")
    said += [moe_section.in_short(fleets, script)] if fleets else []
    written = "\n\n".join(fill(one, 118, break_on_hyphens=False) for one in said if one)
    return f"{before}{MARKS[0]}{written}\n{MARKS[1]}{after}"


ANEW = "The figures of SGLang's operators follow: they are being measured anew."


def operator_results(results, linear=False, gpu=GPU):
    """Read the results that recordings' sessions left, by operator: `linear` layers, or others."""
    files = sorted((results / gpu).glob("*.json"))
    found = [one for one in map(read, files) if "created" in one]
    found = [one for one in found if one["kernel"] not in invariant_section.OPERATORS]
    return [one for one in found if (one["kernel"] in gemm_section.LINEAR) == linear]


def other_gpus(results):
    """Name the folders of GPUs beside the one that the figures are asked of."""
    folders = sorted(path.name for path in results.iterdir() if path.is_dir())
    return [name for name in folders if name not in ("cpu", GPU)]


def _operators(results):
    found = operator_results(results)
    if not found:
        yield f"{ANEW}\n"
        return
    also = (
        read(results / f"{GPU}/{name}.json") for name in ("two_seeds", "cold_tune", "stand_ins")
    )
    yield from operators_section.section(found, *also, GPU)
    if linear := operator_results(results, linear=True):
        yield from gemm_section.section(linear, GPU)
    named = (results / f"{GPU}/{name}.json" for name in invariant_section.OPERATORS)
    if invariant := [read(path) for path in named if path.exists()]:
        yield from invariant_section.section(invariant, GPU)
    for gpu in other_gpus(results):
        if found := operator_results(results, gpu=gpu):
            yield from operators_section.section(found, None, None, None, gpu)
        if linear := operator_results(results, linear=True, gpu=gpu):
            yield from gemm_section.section(linear, gpu, asked=False)


COLD_S = 45


def _cold(content, gpu=GPU):
    device = content["environment"]["device"]
    yield f"## A whole run from nothing, {device}\n"
    held_out, empty = "", "caches and store empty"
    beside = f" beside {content['beside']}" if content.get("beside") else ""
    if "held_out" in content:
        held_out = f" and {len(content['held_out'])} that are held out"
        empty = "store and compile cache empty, CuPy's too in the first run"
    yield (
        f"`tune kernels/sglang/{content['kernel']}.cu` on {len(content['workloads'])} workloads"
        f"{held_out}, on one with {content['cores']} cores{beside}, {empty}. Asked are "
        f"{COLD_S} s. *Busy* is the share of "
        "the search in which the device had a trial, *running* that with a kernel running, as NVML "
        "counts.\n"
    )
    yield "| surroundings | in all | of it | trials | busy | running | mean speedup |"
    yield "|---|---|---|---|---|---|---|"
    for name, run in content["runs"].items():
        phases = ", ".join(f"{of} {s:.1f} s" for of, s in run["phases_s"].items() if s >= 0.1)
        mean = geometric_mean(run["speedups"].values())
        late = missed(unless=run["wall_s"] <= COLD_S)
        yield (
            f"| {name} | {run['wall_s']:.1f} s{late} | {phases} | {run['trials']} "
            f"| {run['busy_share']:.1%} | {run['nvml_share']:.0%} | {mean:.2f}x |"
        )
    yield f"\n`benchmarks/cold_tune.py`, `benchmarks/results/{gpu}/cold_tune.json`.\n"


def _returned(content):
    yield "## A peer that returns its result\n"
    yield (
        "One Triton kernel of silu_and_mul between its neighbours, writing in place and into a "
        "tensor that it returns, which what follows reads, in the same rounds.\n"
    )
    yield "| T | in place, us | returned, us | ratio | 95 % interval |\n|---|---|---|---|---|"
    for row in content["rows"]:
        low, high = row["interval"]
        yield (
            f"| {row['T']} | {row['in_place_us']:.2f} | {row['returned_us']:.2f} "
            f"| {row['ratio']:.3f} | {low:.3f} to {high:.3f} |"
        )
    yield "\n`benchmarks/returned_results.py`, `benchmarks/results/h200/returned_results.json`.\n"


def _stand_ins(content):
    yield "## Stand-ins for real neighbours\n"
    yield (
        f"{content['configs']} configs of {content['kernel']} at H {content['H']} between the "
        f"products of a model's layer (`{content['real']}`) and between stand-ins "
        f"(`{content['stand_in']}`): how alike both rank them, how alike each ranks them in two "
        "halves of its rounds, and how much slower the stand-ins' best config is than the best "
        "between the products.\n"
    )
    yield "| T | configs | rank correlation | each with itself | regret |\n|---|---|---|---|---|"
    for row in content["rows"]:
        itself = ", ".join(f"{one:.3f}" for one in row["repeats"])
        figures = f"{row['rank_correlation']:.3f} | {itself} | {row['regret']:.2%}"
        yield f"| {row['T']} | {row['configs']} | {figures} |"
    if earlier := [row for row in content["rows"] if "commit" in row]:
        tokens = " and ".join(str(row["T"]) for row in earlier)
        commits = earlier[0]["commit"], content["environment"]["commit"]
        yield "\nT {} at {}, the others at {}.".format(tokens, *commits)
    yield "\n`benchmarks/stand_ins.py`, `benchmarks/results/h200/stand_ins.json`.\n"


def _floor(content):
    (one,) = content["workloads"]
    yield "## The least that a call takes\n"
    yield (
        f"Alone, a kernel that writes one number takes {one['baseline_us']:.2f} us a call, "
        f"{one['tuned_us']:.2f} us with programmatic launch: nothing is faster. "
        "`benchmarks/launch_floor.py`, `benchmarks/results/h200/launch_floor.json`.\n"
    )


def _campaign(content):
    seconds, gpus = content["seconds"], content["gpus"]
    runs = "one go" if content["runs"] == 1 else f"{content['runs']} runs that resume one another"
    longest = sorted(seconds, key=seconds.get, reverse=True)[:3]
    yield "## Renewing all of it\n"
    yield (
        f"`scripts/record`, {len(seconds)} recordings and benchmarks: "
        f"{content['wall_s'] / 60:.1f} min on {gpus} GPUs with {content['cores']} cores, in "
        f"{runs}. "
        f"One after the other the jobs are {sum(seconds.values()) / 60:.0f} min; the longest are "
        + ", ".join(f"{name} ({seconds[name] / 60:.1f} min)" for name in longest)
        + ". `benchmarks/record_all.py`, `benchmarks/results/h200/record_all.json`.\n"
    )


def _without_a_gpu(content):
    operators = content["operators"].values()
    least = min(min(one["shares"].values()) for one in operators)
    halved = [x for one in operators for x in one["shares_with_half_the_trials"].values()]
    configs = sorted(one["configs"] for one in operators)
    yield "## On the recordings, without a GPU\n"
    yield (
        f"`tune` on the {len(operators)} recordings takes {content['seconds']:.0f} s in all on "
        f"{content['environment']['cores']} cores, and finds at least {least:.1%} of the best "
        f"recorded on each workload. They hold {configs[0]} to {configs[-1]} configs of each, so "
        "that says little of the search. With trials for half of them it reaches "
        f"{geometric_mean(halved):.1%} (geometric mean over {len(halved)} "
        f"workloads; at least {min(halved):.1%}). `benchmarks/recorded_operators.py`, "
        "`benchmarks/results/cpu/recorded_operators.json`.\n"
    )


SEARCH_S = 30


def _gemm_search(content):
    device, (workload,) = content["environment"]["device"], content["workloads"]
    runs = content["runs"].values()
    (trials,) = {run["trials"] for run in runs}
    searched, whole = (
        " and ".join(f"{run[name]:.1f} s" for run in runs) for name in ("search_s", "wall_s")
    )
    yield f"## A search of {trials} configs of one product, {device}\n"
    yield (
        f"`{content['kernel']}` on {workload} between its neighbours, searcher "
        f"`{content['searcher']}`, {content['cores']} cores, nothing compiled before: the search "
        f"{searched} (asked: {SEARCH_S} s), the whole command {whole}, the first with CuPy's cache "
        "empty too. `benchmarks/cold_tune.py`, "
        "`benchmarks/results/h200/gemm_search.json`.\n"
    )


def _compile_time(content):
    yield "## Compiling a config of the tensor-core GEMMs\n"
    times = "; ".join(
        f"`{r['operator']}` {r['median_s']:.2f} s, one in ten over {r['longest_tenth_s']:.2f} s"
        for r in content["rows"]
    )
    first, known = content["rows"][0], content["environment"]
    yield (
        f"On one core of an {known['cpu']} with {first['compiler']}, the median of "
        f"{first['configs']} random configs of each: {times}. Asked are 0.35 s. "
        "`benchmarks/compile_time.py`, `benchmarks/results/cpu/compile_time.json`.\n"
    )


def _throughput(content, gpu=GPU):
    rates, environment = content["rates"], content["environment"]
    yield "## Configs compiled, verified and timed per second\n"
    yield (
        f"96 configs, cold compile cache, {environment['cpus']} cores, {environment['device']}, "
        "both programs in turn, median of three.\n"
    )
    yield "| program | configs a second |"
    yield "|---|---|"
    yield f"| tune | {rates['tune']:.1f} |"
    yield (
        f"| Kernel Tuner {environment['kernel_tuner']}, one verification in NumPy "
        f"| {rates['kernel_tuner']:.1f} |"
    )
    unchecked = rates["kernel_tuner, nothing verified"]
    yield f"| Kernel Tuner, nothing verified | {unchecked:.1f} |"
    yield (
        f"\n{rates['tune'] / rates['kernel_tuner']:.1f} times its rate "
        f"({', '.join(f'{one:.1f}' for one in content['ratios'])} in turn), and "
        f"{rates['tune'] / unchecked:.1f} times that of a run that verifies nothing (asked: 10 "
        f"times the first){missed(unless=rates['tune'] >= 10 * rates['kernel_tuner'])}. In its "
        "seconds are the opening of the search and the baseline, which Kernel Tuner does not "
        "measure. "
        f"`benchmarks/throughput.py`, `benchmarks/results/{gpu}/throughput.json`.\n"
    )


def _throughput_against(content, gpu=GPU):
    (_, ours), (name, before) = content["rates"].items()
    met = missed(unless=content["ratio"] >= 0.97)
    yield (
        f"At {content['environment']['commit'][:8]} the same search runs at {ours:.1f} configs a "
        f"second, beside {before:.1f} of {name.removeprefix('tune, ')}, before a third round of "
        f"attacks was mended: {content['ratio']:.3f} of it (asked: 0.97){met}, "
        f"{', '.join(f'{one:.2f}' for one in content['ratios'])} in turn. "
        "`benchmarks/throughput.py --against`, "
        f"`benchmarks/results/{gpu}/throughput_against.json`.\n"
    )


def _same_kernel(content):
    rows = content["workloads"]
    slowed = [row["planted_slowdown"] for row in rows]
    low = min(row["speedup_5_to_95_percent"][0] for row in rows)
    high = max(row["speedup_5_to_95_percent"][1] for row in rows)
    yield "## A kernel against itself\n"
    yield (
        f"{content['comparisons']} comparisons of a kernel with itself: "
        f"{content['said_to_differ_though_the_same']} were called faster or slower. As many with a "
        f"copy that does 2 % more and takes {min(slowed):.1%} to {max(slowed):.1%} longer: "
        f"{content['planted_slowdown_found']} were called slower. Nine in ten of the reported "
        f"speedups of equal kernels lie between {low:.4f}x and {high:.4f}x, so a difference under "
        "0.2 % is never claimed. "
        "`benchmarks/same_kernel.py`, `benchmarks/results/h200/same_kernel.json`.\n"
    )


def _verification(content):
    rows = content["workloads"]
    within = [row["medians_within_1_percent"] for row in rows]
    yield "## What a trial takes on the GPU, and what verifying it adds\n"
    yield "| workload | timing, ms | verification, ms | adds | medians within 1 % of the finals' |"
    yield "|---|---|---|---|---|"
    for row, share in zip(rows, within, strict=True):
        yield (
            f"| {row['workload']} | {row['timing_ms']:.1f} | {row['verification_ms']:.1f} "
            f"| {row['verification_share']:.0%} | {share:.0%} |"
        )
    yield (
        f"\nOver all of them verification adds {content['verification_share']:.0%}; up to T=1024 "
        f"timing takes {content['mean_timing_ms_up_to_T_1024']:.1f} ms a config on average. At T=1 "
        "the search and the finals rotate over different buffers, and their medians differ by "
        "more. `benchmarks/verification_cost.py`, `benchmarks/results/h200/verification_cost.json`."
        "\n"
    )


def _on_host(content):
    yield "## What verifying takes on the CPU\n"
    yield (
        f"With `--device host`, compiling and verifying one config at {content['workload']} with "
        f"all checks takes {content['median_s']:.2f} s. `benchmarks/host_verification.py`, "
        "`benchmarks/results/cpu/host_verification.json`.\n"
    )


def _mutants(content):
    yield "## How strong the check is\n"
    yield "| what was broken | mutants that differ | caught | survivors |"
    yield "|---|---|---|---|"
    for name, score in content["scores"].items():
        killed, survived = score["counts"]["killed"], score["counts"]["survived"]
        yield f"| {name} | {killed + survived} | {score['share']:.1%} | {survived} |"
    yield (
        "\n`tune mutate`, on the CPU. `benchmarks/mutation_score.py`, "
        "`benchmarks/results/cpu/mutation_score.json`.\n"
    )


def _filter(content):
    yield "## Filtering\n"
    yield (
        f"{content['combinations']:,} combinations of {content['parameters']} parameters to "
        f"{content['valid']:,} valid ones: {content['median_seconds']:.2f} s. "
        "`benchmarks/filter_space.py`, `benchmarks/results/cpu/filter_space.json`."
    )
    yield ""


def _start(content):
    yield "## Start\n"
    yield (
        f"`tune --help`: {content['median_seconds']:.2f} s, the longest of "
        f"{len(content['seconds'])} runs {max(content['seconds']):.2f} s. "
        "`benchmarks/start_time.py`, `benchmarks/results/cpu/start_time.json`."
    )
    yield ""


# What the page says, in its order, each from one file.
SECTIONS = (
    (attention_section.section, "GPU/decode_attention"),
    (processes_section.section, "h200/sglang_processes"),
    (processes_section.each, "h200/sglang_step/llama-3-8b-each"),
    (processes_section.neighbours, "h200/gemm_surroundings"),
    *((steps_section.steps, f"h200/sglang_step/{model}") for model in steps_section.ASKED),
    (moe_section.fused_moe, "GPU/fused_moe"),
    (moe_section.seeds, "h200/fused_moe_seeds"),
    (moe_section.sessions, "h200/fused_moe_sessions"),
    (moe_section.again, "h200/fused_moe_again"),
    (moe_section.compiling, "h200/compile_ahead"),
    (moe_section.script, "h200/sglang_script"),
    (moe_section.step, "h200/sglang_step/qwen3-30b-a3b-moe-configs"),
    (steps_section.call_cost, "h200/call_cost"),
    (kernelbench_verified_section.section, "GPU/kernelbench_verified"),
    (_stand_ins, "h200/stand_ins"),
    (_returned, "h200/returned_results"),
    (seeds_section.two_seeds, "h200/two_seeds"),
    (seeds_section.simulated, "cpu/simulated_seeds"),
    (seeds_section.fleet, "cpu/simulated_fleet"),
    (_floor, "h200/launch_floor"),
    (_campaign, "h200/record_all"),
    (scaling_section.campaign_places, "cpu/campaign_scaling"),
    (scaling_section.campaign_on_gpus, "GPU/campaign_scaling"),
    (scaling_section.several_gpus, "cpu/several_gpus"),
    (scaling_section.one_run_on_gpus, "GPU/several_gpus"),
    (scaling_section.cluster_load, "cpu/cluster_load"),
    (scaling_section.shared_store, "cpu/shared_store"),
    (_cold, "GPU/cold_tune"),
    (_without_a_gpu, "cpu/recorded_operators"),
    (search_section.recorded, "cpu/recorded_search"),
    (search_section.features, "cpu/code_features"),
    (search_section.methods, "cpu/search"),
    (search_section.cost, "cpu/searcher_cost"),
    (search_section.many, "cpu/many_workloads"),
    (_compile_time, "cpu/compile_time"),
    (_gemm_search, "h200/gemm_search"),
    (_throughput, "GPU/throughput"),
    (_throughput_against, "GPU/throughput_against"),
    (search_section.replay_length, "h200/replay_length"),
    (_same_kernel, "h200/same_kernel"),
    (_verification, "h200/verification_cost"),
    (_on_host, "cpu/host_verification"),
    (_mutants, "cpu/mutation_score"),
    (strangers_section.drafted, "cpu/strangers"),
    (strangers_section.small, "cpu/strangers_small"),
    (strangers_section.strength, "cpu/strength"),
    (strangers_section.large_sizes, "GPU/strangers_large"),
    (strangers_section.mended, "GPU/strangers_large_again"),
    (strangers_section.large_inputs, "GPU/large_inputs"),
    (hardware_section.portable_kernels, "cpu/portable_kernels"),
    (hardware_section.opencl_throughput, "cpu/opencl_throughput"),
    (hardware_section.opencl_on_more_cores, "cpu/opencl_throughput_16_cores"),
    (hardware_section.hip_configs, "cpu/hip_configs"),
    (_filter, "cpu/filter_space"),
    (_start, "cpu/start_time"),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if different")
    texts = {PAGE: page(), README: readme(README.read_text(encoding="utf-8"))}
    if parser.parse_args().check:
        raise SystemExit(any(p.read_text(encoding="utf-8") != text for p, text in texts.items()))
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
