"""Which device of a group times which workload, and work on several workloads at once.

A device has one queue; each member of a group has its own, with a thread that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed

from tuner.device.base import Device
from tuner.device.group import DeviceGroup, Home, Member, Turns, as_group
from tuner.model.errors import DeviceLost, WorkerError
from tuner.model.kernel import Workload
from tuner.session.events import HomesChosen, ReferenceTimed
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Candidates, evaluator_of

# Devices that differ by more on the reference kernel are told of.
ALIKE = 0.02


def queue_of(device: Device, workload: Workload) -> int:
    """Number the queue that a workload's trials go to; 0 where there is one device."""
    group = as_group(device)
    return group.home(workload) if group else 0


def serve_queue_of(device: Device, workload: Workload) -> None:
    """Have this thread do what names no workload, such as reading idle energy, on its device."""
    if group := as_group(device):
        group.serve(group.home(workload))


def work_in_queues(
    device: Device, workloads: Sequence[Workload], work: Callable[[Workload], None]
) -> None:
    """Call `work` for each workload: in their order, or those of different members at once.

    Threads take turns in all but waiting for their device, so that `work` may use the session. The
    first error ends them all, each at its next turn, and is raised.
    """
    queues: dict[int, list[Workload]] = {}
    for workload in workloads:
        queues.setdefault(queue_of(device, workload), []).append(workload)
    group = as_group(device)
    if group is None or len(queues) < 2:
        for workload in workloads:
            serve_queue_of(device, workload)
            work(workload)
        return
    group.turns = turns = Turns()

    def drive(queue: int) -> None:
        group.serve(queue)
        with turns.taken():
            try:
                for workload in queues[queue]:
                    work(workload)
            except BaseException:
                turns.end()  # before anybody else has one
                raise

    pool = ThreadPoolExecutor(len(queues), thread_name_prefix="device queue")
    under_way = [pool.submit(drive, queue) for queue in queues]
    try:
        for future in as_completed(under_way):
            error = future.exception()
            if error is not None and not isinstance(error, CancelledError):
                raise error
    finally:
        turns.end()
        pool.shutdown(wait=False)


def assign_workloads(
    plan: Plan, session: Session, candidates: Candidates, trials: Mapping[Workload, int]
) -> str:
    """Give every workload its device of a group, those of an earlier run again; return a warning.

    `trials` is what each tuned workload may take. The members time one kernel first, by which they
    are compared, and by which the times of a workload are adjusted that has to move.
    """
    group = as_group(candidates.device)
    if group is None:
        return ""
    names = [member.name for member in group.members]
    # The first: all times are in its terms, and a device that was lost may be back.
    first = next(iter(session.events(HomesChosen)), None)
    chosen = {w.key: name for w, name in spread_workloads(plan, names, trials).items()}
    homes = {key: Home(name) for key, name in (first.homes if first else chosen).items()}
    if {*names} | {home.member for home in homes.values()} != {*names[:1]}:
        group.reference_us = _time_reference(plan, session, candidates, group)
    group.settle(homes)
    record_assignment(session, group)
    return "" if group.info.on_cpu else name_slower_devices(group.reference_us)


def spread_workloads(
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


def record_assignment(session: Session, device: Device) -> tuple[str, ...]:
    """Record a group's assignment where it has changed; say which members are gone."""
    group = as_group(device)
    if group is None or not group.moved:
        return ()
    group.moved = False
    lost = {member.name: member.lost for member in group.members if member.lost}
    known = {name for event in session.events(HomesChosen) for name in event.lost}
    event = HomesChosen(
        0,
        tuple(member.name for member in group.members),
        {key: home.member for key, home in group.homes.items()},
        {key: home.factor for key, home in group.homes.items() if home.factor != 1.0},
        lost,
    )
    if event not in session.events(HomesChosen)[-1:]:
        session.record_event(event)
    return tuple(
        f"{name} is gone, and others time its workloads: {reason}"
        for name, reason in lost.items()
        if name not in known
    )


def name_slower_devices(reference_us: Mapping[str, float]) -> str:
    """Say which devices differ by more than `ALIKE` on the reference; "" for none."""
    if not reference_us:
        return ""
    fastest = min(reference_us, key=reference_us.__getitem__)
    behind = {name: us / reference_us[fastest] - 1.0 for name, us in reference_us.items()}
    slower = [f"{name} by {100 * share:.1f} %" for name, share in behind.items() if share > ALIKE]
    if not slower:
        return ""
    return (
        f"slower than {fastest} on the reference kernel: {', '.join(slower)}; a workload's times "
        "come from one of them"
    )


def _time_reference(
    plan: Plan, session: Session, candidates: Candidates, group: DeviceGroup
) -> dict[str, float]:
    """Time the baseline on the workload of most bytes, on each member that has not before."""
    workload = max(plan.tuned, key=lambda one: plan.spec.min_bytes.integer(one.values))
    known: dict[str, float] = {}
    for event in session.events(ReferenceTimed):
        known |= event.times_us

    def time(member: Member) -> float | None:
        measured = evaluator_of(plan, candidates.compiler, member.device).baseline(workload)
        return None if measured.measurement is None else measured.measurement.median_us

    new = [(n, one) for n, one in enumerate(group.members) if one.name not in known]
    timed: dict[str, float] = {}
    with ThreadPoolExecutor(max(1, len(new)), thread_name_prefix="reference") as pool:
        under_way = [(number, one, pool.submit(time, one)) for number, one in new]
        for number, member, future in under_way:
            try:
                time_us = future.result()
            except (DeviceLost, WorkerError) as error:
                group.drop(number, error.message)
                continue
            if time_us is not None:
                timed[member.name] = time_us
    if timed:
        session.record_event(ReferenceTimed(0, workload.key, timed))
    return known | timed
