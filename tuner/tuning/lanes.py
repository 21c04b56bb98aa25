"""Work on several workloads at once, a thread for each member of a group of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed

from tuner.device.base import Device
from tuner.device.group import Turns, as_group
from tuner.model.kernel import Workload


def lane_of(device: Device, workload: Workload) -> int:
    """Number the thread that a workload's trials go to; 0 where there is one device."""
    group = as_group(device)
    return group.home(workload) if group else 0


def in_lanes(
    device: Device, workloads: Sequence[Workload], work: Callable[[Workload], None]
) -> None:
    """Call `work` for each workload: in their order, or those of different members at once.

    Threads take turns in all but waiting for their device, so that `work` may use the session. The
    first error ends them all, each at its next turn, and is raised.
    """
    lanes: dict[int, list[Workload]] = {}
    for workload in workloads:
        lanes.setdefault(lane_of(device, workload), []).append(workload)
    group = as_group(device)
    if group is None or len(lanes) < 2:
        for workload in workloads:
            go_home(device, workload)
            work(workload)
        return
    group.turns = turns = Turns()

    def drive(lane: int) -> None:
        group.serve(lane)
        with turns.taken():
            try:
                for workload in lanes[lane]:
                    work(workload)
            except BaseException:
                turns.end()  # before anybody else has one
                raise

    pool = ThreadPoolExecutor(len(lanes), thread_name_prefix="lane")
    under_way = [pool.submit(drive, lane) for lane in lanes]
    try:
        for one in as_completed(under_way):
            error = one.exception()
            if error is not None and not isinstance(error, CancelledError):
                raise error
    finally:
        turns.end()
        pool.shutdown(wait=False)


def go_home(device: Device, workload: Workload) -> None:
    """Have this thread do what names no workload, such as reading idle energy, on its home."""
    if group := as_group(device):
        group.serve(group.home(workload))
