"""Make a recording: measure a space, or a large part of it, and keep it in one file."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice
from pathlib import Path

from tuner.app.run import tune
from tuner.compiler.base import Compiler, CompileRequest, source_key
from tuner.device.base import Device
from tuner.device.recorded.recording import (
    TICK_US,
    RecordedCompilation,
    RecordedDeviceInfo,
    RecordedFinals,
    RecordedProgram,
    RecordedWorkload,
    Recording,
    peer_key,
    recording_name,
)
from tuner.device.select import HOST
from tuner.model.errors import DeviceError
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.languages import HIP, OPENCL
from tuner.model.progress import Listener
from tuner.model.settings import AUTO, COMMAND
from tuner.model.trial import (
    INITIAL,
    Comparison,
    Correctness,
    Measurement,
    Status,
    Trial,
)
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Evaluator, evaluator_of
from tuner.tuning.run import undecided_of, unsearched_workloads

# The best of each workload are compared with the baseline in the same rounds. A search that ends
# near the optimum ends in one of them, and so has a paired interval without a GPU too.
FINALISTS = 16
# Fewer where only a part is measured: a search on it knows the same times, so it ends in the same.
FINALISTS_OF_A_PART = 3
# Configs that are measured on each workload for each that a search may try.
SURVEYED = 2
# Sources that are looked up in the compiler's cache at a time.
BATCH = 64
# Far beyond every L2: the rate of a kernel that moves this much is the memory's own.
CACHE_FREE_BYTES = 1 << 29
# Decided without the GPU, and so decided again by whoever answers from the recording.
_LOCAL = frozenset({Status.CONSTRAINT, Status.COMPILE, Status.RESOURCE_LIMIT, Status.NOT_RECORDED})
# Where a kernel in another language than CUDA and Python is measured.
_DEVICES = {OPENCL: "opencl", HIP: "hip"}


def recording_plan(plan: Plan) -> Plan:
    """Turn a plan into one that measures what searches may ask for, held-out workloads too.

    That is every valid config or, for a number of trials, what `tuning.search.cross_measure` tries.
    `auto` becomes the kind of device that runs the kernel: it never stands for a recording here.
    Raises `DeviceError` for a device whose times are no measurements.
    """
    config = plan.config
    kind = _DEVICES.get(plan.spec.language, "cuda")
    made = f"a recording is made on a GPU or an OpenCL device: --device {kind}"
    if config.device.startswith(COMMAND):
        raise DeviceError(
            f"what {config.device.removeprefix(COMMAND)} says cannot be recorded: a recording "
            "answers for what tune has verified",
            remedy=f"{made}; the session of a plain run keeps every answer",
        )
    if config.device.partition(":")[0] == "recorded":
        why = f"--device {config.device} cannot be recorded: its times were measured before"
        raise DeviceError(why, remedy=made)
    if config.device == HOST:
        why = "--device host cannot be recorded: the CPU's times say nothing of a GPU's"
        raise DeviceError(why, remedy=made)
    changed = replace(
        config,
        device=kind if config.device == AUTO else config.device,
        searcher="exhaustive" if config.trials is None else "auto",
        surveyed=None if config.trials is None else SURVEYED * config.trials,
        workloads=tuple(replace(workload, held_out=False) for workload in config.workloads),
        finalists=FINALISTS if config.trials is None else FINALISTS_OF_A_PART,
    )
    return replace(plan, config=changed)


def record(
    plan: Plan, *, session: Session, device: Device, compiler: Compiler, listener: Listener
) -> Recording:
    """Measure, or resume measuring, `recording_plan(plan)`; return the recording of it all.

    Raises `DeviceError` where memory ended before a workload was measured as it should be.
    """
    tune(plan, session=session, device=device, compiler=compiler, listener=listener)
    if left := sorted(unsearched_workloads(session, INITIAL)):
        raise DeviceError(
            f"no recording is made without {', '.join(left)}: {undecided_of(session)[left[0]]}",
            remedy=f"free the memory and go on with --resume {session.directory}, or leave it out",
        )
    evaluator = evaluator_of(plan, compiler, device)
    comparisons = {comparison.workload: comparison for comparison in session.comparisons()}
    return Recording(
        kernel=plan.spec.name,
        created=session.manifest.created,
        device=_device(plan.spec, session, device),
        operators=dict(plan.config.operators),
        workloads={
            workload.key: _workload(session, evaluator, workload, comparisons.get(workload))
            for workload in plan.config.workloads
        },
        invariant=plan.spec.invariant is not None,
        compiled=_record_compilations(plan, session, evaluator, compiler),
    )


def recording_path(spec: KernelSpec, device: Device) -> Path:
    """Name the file that the `recorded` device looks for: `recordings/<gpu>/<kernel>.json.xz`."""
    folder = spec.source.parent / "recordings" / gpu_folder(device.info.name)
    return folder / recording_name(spec.source)


def gpu_folder(name: str) -> str:
    """Name the folder of what was measured on a GPU: `h200` for `NVIDIA H200`."""
    gpu = name.lower().removeprefix("nvidia ")
    return re.sub(r"[^\w.+]+", "-", gpu).strip("-")


def _device(spec: KernelSpec, session: Session, device: Device) -> RecordedDeviceInfo:
    facts = {name: getattr(device.info, name) for name in RecordedDeviceInfo.model_fields}
    facts["environment"] = dict(facts["environment"])
    # What a run from the recording states of itself must not be mistaken for the GPU machine's.
    software = ("compiler", "commit", "python", "tune")
    known = session.environment
    facts["environment"] |= {f"recorded_{name}": known[name] for name in software if name in known}
    if device.info.members > 1:
        facts["environment"]["recorded_members"] = str(device.info.members)
    # The rates of programs whose buffers cannot stay in a cache: a roofline seen.
    times = [
        (trial.workload, trial.time_us)
        for trial in session.trials(INITIAL)
        if trial.time_us is not None and spec.surroundings_of(trial.workload) is None
    ]
    times += [
        (comparison.workload, min(comparison.alone_us))
        for comparison in session.comparisons()
        if comparison.alone_us
    ]
    rates = [
        spec.min_bytes.integer(workload.values) / time_us / 1e3
        for workload, time_us in times
        if spec.footprint_bytes(workload) >= CACHE_FREE_BYTES
    ]
    best = round(max(rates, default=0.0), 1)
    facts["streaming_gbps"] = max(device.info.streaming_gbps, best)
    return RecordedDeviceInfo(**facts)


def _workload(
    session: Session, evaluator: Evaluator, workload: Workload, comparison: Comparison | None
) -> RecordedWorkload:
    baseline = evaluator.baseline_key(workload)
    measured = session.baselines()[workload]
    programs = {baseline: _program(Status.CORRECT, "", measured.measurement, measured.correctness)}
    for trial in session.trials(INITIAL, workload):
        if trial.status not in _LOCAL:
            programs[evaluator.key(workload, trial.config)] = _record_program(session, trial)
    finals, raced = None, tuple[int | None, ...]()
    if comparison is not None:
        if comparison.raced_us:
            raced = None, *map(_ticks, comparison.raced_us), *[None] * len(comparison.peers)
        finals = RecordedFinals(
            programs=(
                baseline,
                *(evaluator.key(workload, variant.config) for variant in comparison.finalists),
                *map(peer_key, comparison.peers),
            ),
            rounds=tuple(tuple(map(_ticks, row)) for row in comparison.rounds),
            isolated=tuple(None if t is None else _ticks(t) for t in comparison.isolated_us),
            alone=tuple(map(_ticks, comparison.alone_us)),
            raced=raced,
        )
    around = evaluator.spec.surroundings_of(workload)
    peers = {}
    for peer in session.peers(workload):
        # The only times of a peer are those of the rounds.
        ticks: tuple[int, ...] = ()
        if comparison is not None and peer.name in comparison.peers:
            column = comparison.column(peer.name)
            ticks = tuple(_ticks(row[column]) for row in comparison.rounds)
        kept = RecordedProgram(status=peer.status, reason=peer.reason, ticks=ticks)
        peers[peer.name] = kept
    return RecordedWorkload(
        baseline=baseline,
        programs=programs,
        finals=finals,
        peers=peers,
        configs=tuple(trial.config.key for trial in session.trials(INITIAL, workload)),
        surroundings=around.content if around else "",
    )


def _record_compilations(
    plan: Plan, session: Session, evaluator: Evaluator, compiler: Compiler
) -> dict[str, RecordedCompilation]:
    requests: dict[str, CompileRequest] = {}
    asked: list[CompileRequest] = []
    for workload in plan.config.workloads:
        asked.append(evaluator.baseline_request(workload))
        tried = session.trials(INITIAL, workload)
        asked += [evaluator.request(workload, trial.config) for trial in tried]
    for request in asked:
        key = source_key(
            request.source, request.options, request.architecture, request.include_dirs
        )
        # Which kernels of a source are launched may depend on the workload.
        kernels = dict.fromkeys((*requests.get(key, request).kernels, *request.kernels))
        requests[key] = replace(request, kernels=tuple(kernels))
    compilations: dict[str, RecordedCompilation] = {}
    keys = iter(requests)
    while batch := list(islice(keys, BATCH)):
        results = [compiler.submit(requests[key]) for key in batch]
        for key, result in zip(batch, results, strict=True):
            compilations[key] = RecordedCompilation.of(result.result())
    return compilations


def _record_program(session: Session, trial: Trial) -> RecordedProgram:
    final = session.trial(INITIAL, trial.workload, trial.config, stage="finals")
    if final is not None and final.status is not Status.CORRECT:
        return _program(final.status, final.reason, None)
    # Which bits are kept decides whoever plays it back.
    status = Status.CORRECT if trial.status is Status.OTHER_BITS else trial.status
    reason = "" if status is Status.CORRECT else trial.reason
    return _program(status, reason, trial.measurement, trial.correctness)


def _program(
    status: Status, reason: str, measurement: Measurement | None, verdict: Correctness | None = None
) -> RecordedProgram:
    if measurement is None or status is not Status.CORRECT:
        return RecordedProgram(status=status, reason=reason)
    return RecordedProgram(
        status=status,
        reason=reason,
        ticks=tuple(map(_ticks, measurement.times_us)),
        calls=measurement.calls_per_replay,
        sets=measurement.buffer_sets,
        stopped_early=measurement.stopped_early,
        bits=verdict.digest if verdict else "",
    )


def _ticks(time_us: float) -> int:
    return round(time_us / TICK_US)
