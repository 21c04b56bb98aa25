"""Which device of a group times which workload: chosen by expected work, kept with the session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tuner.compiler.base import Compiler
from tuner.device.base import Device
from tuner.device.group import DeviceGroup, Home, Member, as_group
from tuner.model.errors import DeviceLost, WorkerError
from tuner.model.kernel import Workload
from tuner.session.events import HomesChosen, ReferenceTimed
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.evaluator import evaluator_of

# Devices that differ by more on the reference kernel are told of.
ALIKE = 0.02


def settle_homes(
    plan: Plan,
    session: Session,
    device: Device,
    compiler: Compiler,
    trials: Mapping[Workload, int],
) -> str:
    """Give every workload its home in a group, those of an earlier run again; return a warning.

    `trials` is what each tuned workload may take. The members time one kernel first, by which they
    are compared, and by which the times of a workload are adjusted that has to move.
    """
    group = as_group(device)
    if group is None:
        return ""
    names = [member.name for member in group.members]
    # The first: all times are in its terms, and a device that was lost may be back.
    first = next(iter(session.events(HomesChosen)), None)
    chosen = {w.key: name for w, name in chosen_homes(plan, names, trials).items()}
    homes = {key: Home(name) for key, name in (first.homes if first else chosen).items()}
    if {*names} | {home.member for home in homes.values()} != {*names[:1]}:
        group.reference_us = _reference_us(plan, session, group, compiler)
    group.settle(homes)
    keep_homes(session, group)
    return "" if group.info.on_cpu else difference(group.reference_us)


def chosen_homes(
    plan: Plan, names: Sequence[str], trials: Mapping[Workload, int]
) -> dict[Workload, str]:
    """Spread workloads by their trials, then by their bytes; the same for the same plan."""
    spread: dict[Workload, str] = {}
    for workloads in (plan.tuned, plan.held_out, plan.spec.edge_cases):
        loads = dict.fromkeys(names, (0, 0))
        work = {w: (trials.get(w, 1), plan.spec.footprint_bytes(w)) for w in workloads}
        for workload in sorted(work, key=lambda one: work[one], reverse=True):
            name = min(names, key=loads.__getitem__)
            (count, size), (more, larger) = loads[name], work[workload]
            loads[name] = count + more, size + larger
            spread.setdefault(workload, name)
    return spread


def keep_homes(session: Session, device: Device) -> tuple[str, ...]:
    """Record the homes of a group where they have changed; say which members are gone."""
    group = as_group(device)
    if group is None or not group.moved:
        return ()
    group.moved = False
    homes = group.homes
    lost = {member.name: member.lost for member in group.members if member.lost}
    known = {name for event in session.events(HomesChosen) for name in event.lost}
    event = HomesChosen(
        0,
        tuple(member.name for member in group.members),
        {key: home.member for key, home in homes.items()},
        {key: home.factor for key, home in homes.items() if home.factor != 1.0},
        lost,
    )
    if event not in session.events(HomesChosen)[-1:]:
        session.record_event(event)
    return tuple(
        f"{name} is gone, and others time its workloads: {reason}"
        for name, reason in lost.items()
        if name not in known
    )


def difference(reference_us: Mapping[str, float]) -> str:
    """Say which devices differ by more than `ALIKE` on the reference; "" for none."""
    if not reference_us:
        return ""
    fastest = min(reference_us, key=reference_us.__getitem__)
    slower = {name: us / reference_us[fastest] - 1.0 for name, us in reference_us.items()}
    told = [f"{name} by {100 * share:.1f} %" for name, share in slower.items() if share > ALIKE]
    if not told:
        return ""
    return (
        f"slower than {fastest} on the reference kernel: {', '.join(told)}; a workload's times "
        "come from one of them"
    )


def _reference_us(
    plan: Plan, session: Session, group: DeviceGroup, compiler: Compiler
) -> dict[str, float]:
    """Time the baseline on the workload of most bytes, on each member that has not before."""
    workload = max(plan.tuned, key=lambda one: plan.spec.min_bytes.integer(one.values))
    known: dict[str, float] = {}
    for event in session.events(ReferenceTimed):
        known |= event.times_us
    timed = dict(_timed(plan, group, compiler, workload, known))
    if timed:
        session.record_event(ReferenceTimed(0, workload.key, timed))
    return known | timed


def _timed(
    plan: Plan,
    group: DeviceGroup,
    compiler: Compiler,
    workload: Workload,
    known: Mapping[str, float],
) -> Iterable[tuple[str, float]]:
    def time(member: Member) -> float | None:
        made = evaluator_of(plan, compiler, member.device).baseline(workload)
        return None if made.measurement is None else made.measurement.median_us

    new = [(n, one) for n, one in enumerate(group.members) if one.name not in known]
    with ThreadPoolExecutor(max(1, len(new)), thread_name_prefix="reference") as pool:
        under_way = [(number, one, pool.submit(time, one)) for number, one in new]
        for number, member, future in under_way:
            try:
                time_us = future.result()
            except (DeviceLost, WorkerError) as error:
                group.drop(number, error.message)
                continue
            if time_us is not None:
                yield member.name, time_us
