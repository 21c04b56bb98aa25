"""The page's part on many GPUs, hosts and writers: what was simulated, and what was run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]
# How many times as fast a campaign was to be as on one GPU, by the number of GPUs.
ASKED: Mapping[int, float] = {2: 1.85, 4: 3.5}


def campaign_places(content: Json) -> Iterator[str]:
    """Tell how much sooner a campaign ends on several places."""
    waits = content["recorded_s"]
    of_places = " and ".join(
        f"{one['speedup']:.2f}x as fast on {one['places']} (the waits allow {one['allowed']:.2f}x)"
        for one in content["rows"][1:]
    )
    yield "## A campaign on several GPUs\n"
    yield (
        f"Simulated, without a GPU: {len(waits)} jobs that wait as long as the operators' "
        f"recordings took on an H200, {sum(waits.values()) / 60:.0f} min in all, divided by "
        f"{content['scale']:g}. A campaign of them is {of_places} places as on one. What jobs take "
        "from one another, cores above all, is not in it. `benchmarks/campaign_scaling.py`, "
        "`benchmarks/results/cpu/campaign_scaling.json`.\n"
    )


def campaign_on_gpus(content: Json, gpu: str) -> Iterator[str]:
    """Tell how long a campaign took on GPUs, how much less than on one, and what was asked."""
    rows = [one for one in content["rows"] if not one["failed"]]
    known = content["environment"]
    told = (
        f"Run on {known['device']}: {len(rows[0]['jobs'])} operators with "
        f"{content['workloads_each']} workloads each and at most {content['trials']} trials of "
        f"each, from empty caches, with {known['cores']} cores, divided among the GPUs."
    )
    yield f"{' '.join(filter(None, (told, content.get('circumstances'))))}\n"
    yield "| GPUs | seconds | as fast as on one | asked | the jobs' own seconds, added up |"
    yield "|---|---|---|---|---|"
    alone_s = next((one["seconds"] for one in rows if one["gpus"] == 1), None)
    for one in rows:
        yield (
            f"| {one['gpus']} | {one['seconds']:.1f} | {_over_one(one, alone_s)} "
            f"| {sum(one['jobs'].values()):.0f} |"
        )
    yield (
        "\nA campaign on N GPUs cannot end before an Nth of its jobs' own seconds. "
        "`benchmarks/campaign_scaling.py --gpus`, "
        f"`benchmarks/results/{gpu}/campaign_scaling.json`.\n"
    )


def _over_one(row: Json, alone_s: float | None) -> str:
    """Say how many times as fast it was as on one GPU, and what was asked."""
    wanted = ASKED.get(row["gpus"])
    asked = f"{wanted}x" if wanted else ""
    if alone_s is None:
        return f"one was not measured | {asked}"
    speedup = alone_s / row["seconds"]
    missed = " **missed**" if wanted and speedup < wanted else ""
    return f"{speedup:.2f}x | {asked}{missed}"


def several_gpus(content: Json) -> Iterator[str]:
    """Tell how much sooner one run ends whose workloads several devices share."""
    first, *others = content["runs"]
    faster = " and ".join(
        f"{first['seconds'] / one['seconds']:.2f}x as fast on {one['members']}" for one in others
    )
    operators = first["operators"]
    yield "## One run on several GPUs\n"
    yield (
        f"Simulated, without a GPU: {len(operators)} operators of {content['workloads_each']} "
        "workloads each, one after the other, on devices that answer from a recording and take "
        f"as long as an H200 did. They are {faster} devices as on one ({first['seconds']:.0f} s), "
        f"with {_cores(content)}. `benchmarks/several_gpus.py`, "
        "`benchmarks/results/cpu/several_gpus.json`.\n"
    )


def one_run_on_gpus(content: Json, gpu: str) -> Iterator[str]:
    """Tell the same of real GPUs, phase by phase."""
    first, *others = content["runs"]
    counts = [first["members"], *(one["members"] for one in others)]
    operators = first["operators"]
    yield (
        f"Run on {gpu.upper()}s of one host: {', '.join(operators)}, with "
        f"{content['workloads_each']} workloads each, one operator after the other. Seconds on "
        f"{', '.join(map(str, counts))} GPUs:\n"
    )
    yield f"| | {' | '.join(map(str, counts))} | as fast |"
    yield f"|---|{'---|' * len(counts)}---|"
    for name in operators:
        seconds = [one["operators"][name]["seconds"] for one in content["runs"]]
        yield _seconds_row(name, seconds)
    phases = dict.fromkeys(p for one in operators.values() for p in one["time"]["phases_s"])
    for phase in phases:
        yield _seconds_row(
            f"all, {phase}",
            [
                sum(one["time"]["phases_s"].get(phase, 0.0) for one in run["operators"].values())
                for run in content["runs"]
            ],
        )
    yield _seconds_row("all", [one["seconds"] for one in content["runs"]])
    yield (
        "\n*Opening* holds the reference kernel that several GPUs time first, and the start of "
        "their processes. The tools that watch the winners (*checks*) run on the first GPU, and "
        "compilers are shared. `benchmarks/several_gpus.py`, "
        f"`benchmarks/results/{gpu}/several_gpus.json`.\n"
    )


def _seconds_row(name: str, seconds: list[float]) -> str:
    faster = " and ".join(f"{seconds[0] / one:.2f}x" for one in seconds[1:] if seconds[0] > 0.05)
    return f"| {name} | {' | '.join(f'{one:.1f}' for one in seconds)} | {faster} |"


def cluster_load(content: Json) -> Iterator[str]:
    """Tell what a trial costs those who only hand it on."""
    run, compiled = content["run"], content["compile_and_run"]
    cost_ms, needs = run["processor_ms_per_trial"], run["cores_for_asked"]
    idle, peak_mib = content["idle_cores"], content["peak_mib"]
    yield "## What a cluster costs its coordinator\n"
    yield (
        f"{content['workers']:,} simulated workers in {content['processes_of_workers']} processes, "
        f"each {content['trial_s']:g} s a trial: idle they cost Dask's scheduler "
        f"{idle['scheduler']:.2f} and the coordinator {idle['coordinator']:.2f} of a core, and a "
        f"trial {cost_ms['scheduler']:.2f} and {cost_ms['coordinator']:.2f} ms of one. So "
        f"{content['asked_trials_per_s']:,} trials a second need {needs['together']:.2f} of a core "
        f"for both, and {compiled['cores_for_asked']['together']:.2f} with a compilation before "
        f"each; they need {peak_mib['scheduler']} and {peak_mib['coordinator']} MiB at most. These "
        f"are the processor's times. The workers had the same {_cores(content)}, where "
        f"{run['trials_per_s']:.0f} trials a second were reached: the rate itself was not run. "
        "`benchmarks/cluster_load.py`, `benchmarks/results/cpu/cluster_load.json`.\n"
    )


def shared_store(content: Json) -> Iterator[str]:
    """Tell what many writers of one PostgreSQL server lose."""
    sessions, searches = content["sessions"], content["searches"]
    yield "## Many writers of a shared store\n"
    yield (
        f"PostgreSQL {content['server']}, {content['writers']} processes that write at once. "
        f"Copies of {sessions['sessions']} sessions with {sessions['trials']:,} trials: "
        f"{sessions['fetched_equal']} fetched back equal, in {sessions['seconds']:.0f} s. "
        f"{searches['searches']:,} searches, offered {searches['offered']:,} times: "
        f"{searches['missing']} missing, {searches['twice']} there twice, in "
        f"{searches['seconds']:.0f} s. With {_cores(content)}. `benchmarks/shared_store.py`, "
        "`benchmarks/results/cpu/shared_store.json`.\n"
    )


def _cores(content: Json) -> str:
    known = content["environment"]
    return f"{known['cores']} cores under a load of {known['load_average']:.0f}"
