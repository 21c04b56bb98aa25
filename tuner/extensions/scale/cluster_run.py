"""Open what a run measures and compiles with on a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.device.group import group_of
from tuner.device.select import ALL, HOST
from tuner.model.errors import ClusterLost, DeviceError, InputError
from tuner.model.settings import AUTO

if TYPE_CHECKING:
    from tuner.compiler.base import Compiler
    from tuner.device.base import Device
    from tuner.extensions.scale.cluster.coordinator import Cluster
    from tuner.extensions.scale.cluster.device import RemoteDevice
    from tuner.extensions.scale.cluster.membership import Wanted
    from tuner.model.cluster import ClusterSettings
    from tuner.space.plan import Plan

CUDA = "cuda"
_COUNT = re.compile(r"[1-9][0-9]{0,8}")
Say = Callable[[str], None]


def require_of_cluster(device: str, gpu_model: str) -> None:
    """Raise `InputError` for a device that no cluster has, and for the model of none."""
    if device not in (AUTO, CUDA, HOST):
        raise InputError(
            f"--device {device} names a device of one machine, and --cluster is given",
            remedy="use --device cuda or host; --gpu-model chooses among GPUs",
        )
    if device == HOST and gpu_model:
        raise InputError(
            f"--gpu-model {gpu_model} chooses among GPUs, and --device host is the CPU",
            remedy="leave one of them out",
        )


def open_on_cluster(
    settings: ClusterSettings, plan: Plan, say: Say, stack: ExitStack
) -> tuple[Device, Compiler | None]:
    """Take a slot of a cluster, or as many as `--gpus` asks for.

    The compiler is None for kernels in Python, which have their own. The stack ends the connection.
    Raises `InputError` and `DeviceError` where the cluster cannot be used.
    """
    asked, gpus = plan.config.device, plan.config.gpus.strip()
    require_of_cluster(asked, settings.gpu_model)
    if gpus not in ("", ALL) and not _COUNT.fullmatch(gpus):
        raise InputError(
            f"--gpus {gpus} names GPUs of one machine, and --cluster is given",
            remedy="write all, or how many of the cluster's are to share the workloads",
        )
    from tuner.extensions.scale.cluster.network import require_dask

    require_dask()  # which the others import
    from tuner.extensions.scale.cluster.compiler import RemoteCompiler
    from tuner.extensions.scale.cluster.coordinator import Cluster
    from tuner.extensions.scale.cluster.device import RemoteDevice, RemoteGpu
    from tuner.extensions.scale.cluster.membership import Wanted

    cluster = Cluster(settings, say)
    stack.callback(cluster.close)
    wanted = Wanted(asked == HOST, settings.gpu_model)
    kind = RemoteDevice if wanted.on_cpu else RemoteGpu

    def open_device(of: Wanted, wait_s: float | None = None) -> RemoteDevice:
        return kind(cluster, of, plan.spec, plan.config.operators, say, wait_s=wait_s)

    device: Device = (
        open_device(wanted) if not gpus else _group(cluster, wanted, gpus, open_device, say)
    )
    if plan.spec.is_callable:
        return device, None
    return device, RemoteCompiler(cluster, on_cpu=wanted.on_cpu)


def _group(
    cluster: Cluster,
    wanted: Wanted,
    gpus: str,
    opened: Callable[[Wanted, float | None], RemoteDevice],
    say: Say,
) -> Device:
    """Open the slots that are free, by their names; those that cannot be had are told of."""
    from tuner.extensions.scale.cluster.coordinator import LeftOutError

    infos = cluster.fitting(wanted, wait_s=cluster.settings.timeouts.rejoin_s)
    names = [info.name for info in infos]
    most = len(names) if gpus == ALL else int(gpus)
    members: dict[str, RemoteDevice] = {}
    failures: list[DeviceError] = []
    try:
        while names and len(members) < most:
            some, names = names[: most - len(members)], names[most - len(members) :]
            with ThreadPoolExecutor(len(some)) as pool:
                # At once: each takes seconds.
                opening = {
                    name: pool.submit(opened, replace(wanted, name=name), 0.0) for name in some
                }
            ended = {name: future.exception() for name, future in opening.items()}
            members |= {n: opening[n].result() for n, error in ended.items() if error is None}
            for error in filter(None, ended.values()):
                if not isinstance(error, DeviceError) or isinstance(error, ClusterLost):
                    raise error
                failures.append(error)
        if failures and not members:
            raise _join_failures(cluster, failures)
        if not members:  # which says why there is none
            device = opened(wanted, 0.0)
            members[device.name] = device
        for failure in failures:
            if not isinstance(failure, LeftOutError):
                say(f"Warning: left out: {failure.message}")
        if gpus != ALL and len(members) < most:
            raise DeviceError(
                f"{most} are asked for, and the cluster has {len(members)} that are free",
                remedy="--gpus all takes what there is",
            )
        return group_of(members)
    except BaseException:
        for member in members.values():
            member.close()
        raise


def _join_failures(cluster: Cluster, failures: Sequence[DeviceError]) -> DeviceError:
    """Make one error of why no slot could be opened, and of the workers that were never asked."""
    from tuner.extensions.scale.cluster.coordinator import LeftOutError

    left_out = cluster.left_out()
    errors: list[DeviceError] = [left_out] if left_out else []
    errors += [failure for failure in failures if not isinstance(failure, LeftOutError)]
    if len(errors) == 1:
        return errors[0]
    remedies = dict.fromkeys(error.remedy for error in errors if error.remedy)
    return DeviceError(
        "; ".join(error.message for error in errors), remedy="; ".join(remedies) or None
    )
