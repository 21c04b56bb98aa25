"""Profiles as diagnoses read them: a healthy kernel, but for what a test says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.support.simulated_device import H200_LIKE
from tuner.analysis.base import Degree, MachineCode, Profile, ProfileSubject
from tuner.analysis.metrics import stall
from tuner.device.base import Program
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Occupancy, Resources

MB = 1_000_000
MULTIPROCESSORS = H200_LIKE.multiprocessors


def launch(
    blocks: int = 80 * MULTIPROCESSORS,
    threads: int = 256,
    *,
    pdl: bool = True,
    shared_bytes: int = 0,
) -> Launch:
    """One launch of a kernel; by default its blocks fill whole waves."""
    return Launch("k", (blocks, 1, 1), (threads, 1, 1), shared_bytes, pdl=pdl)


def code(
    mix: Mapping[str, int] | None = None,
    *,
    loop_mix: Mapping[str, int] | None = None,
    load_bits: Mapping[int, int] | None = None,
    store_bits: Mapping[int, int] | None = None,
    lines: Mapping[str, int] | None = None,
    executed_lines: Mapping[tuple[int, str], int] | None = None,
) -> MachineCode:
    """The machine code of one kernel."""
    mix = mix or {}
    return MachineCode(
        kernel="k",
        instructions=sum(mix.values()),
        mix=mix,
        load_bits=load_bits or {},
        store_bits=store_bits or {},
        lines=lines or {},
        loop_mix=loop_mix or {},
        executed=_by_class(executed_lines or {}),
        executed_lines=executed_lines or {},
    )


def _by_class(lines: Mapping[tuple[int, str], int]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for (_, name), count in lines.items():
        found[name] = found.get(name, 0) + count
    return found


def waits(**reasons: float) -> dict[str, float]:
    """Counters of warps that waited, by the reason."""
    return {stall(reason): value for reason, value in reasons.items()}


def profile(
    *,
    time_us: float | None = None,
    traffic_bytes: int = 420 * MB,
    operations: int | None = None,
    launches: Sequence[Launch] | None = None,
    resources: Resources | None = None,
    occupancy: Occupancy | None = None,
    codes: Sequence[MachineCode] = (),
    counters: Mapping[str, float] | None = None,
    launch_counters: Sequence[Mapping[str, float]] = (),
    hot_lines: Sequence[tuple[int, float]] = (),
    streaming_gbps: float = H200_LIKE.streaming_gbps,
) -> Profile:
    """Make the profile of a kernel on an H200; 420 MB take 100 us there."""
    known = Degree.STATIC if time_us is None else Degree.TIMING
    subject = ProfileSubject(
        program=Program("key", Workload.of({"T": 1}), tuple(launches or (launch(),))),
        lines=(),
        resources=resources or Resources(registers=32),
        occupancy=occupancy or Occupancy(1.0, 8, "warps"),
        time_us=time_us,
        traffic_bytes=traffic_bytes,
        operations=operations,
    )
    return Profile(
        subject=subject,
        device=replace(H200_LIKE, streaming_gbps=streaming_gbps),
        degree=Degree.COUNTERS if counters or launch_counters else known,
        codes=tuple(codes),
        counters=counters or {},
        hot_lines=tuple(hot_lines),
        launch_counters=tuple(launch_counters),
    )
