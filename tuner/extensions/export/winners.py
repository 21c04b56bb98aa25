"""A session's winners, as every format of an export starts from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.app.session_plan import unchanged_spec
from tuner.device.base import DeviceInfo
from tuner.dispatch.kernels import capability_of
from tuner.dispatch.table import SessionDispatch, SetSelection
from tuner.extensions.export.sources import Measured
from tuner.model.errors import SessionError
from tuner.model.kernel import KernelSpec, Workload
from tuner.session.records import Manifest
from tuner.session.session import Session

# Which of a session's workloads an export is about.
Narrow = Callable[[KernelSpec, Sequence[Workload]], Sequence[Workload]]


@dataclass(frozen=True, slots=True)
class Winners:
    """The variants that serve each shape by a session's evidence, and how they were measured."""

    spec: KernelSpec
    manifest: Manifest
    dispatch: SessionDispatch
    measured: Measured
    device: DeviceInfo
    environment: Mapping[str, str]

    @property
    def incomplete(self) -> tuple[str, ...]:
        """Name the tuned workloads on which nothing was compared."""
        return tuple(str(e.workload) for e in self.dispatch.table.entries if e.best is None)


def cuda_winners_of(
    directory: Path,
    choice: SetSelection | None,
    space: Path | None,
    narrow: Narrow | None = None,
) -> Winners:
    """Read a session as `winners_of`; raise `SessionError` too where its kernel is Python."""
    winners = winners_of(directory, choice, space, narrow)
    if winners.spec.is_callable:
        raise SessionError(
            f"{winners.spec.name} is a Python kernel: there is no CUDA to export",
            path=directory,
            remedy="--format sglang-configs or vllm-configs writes the engines' own files of "
            "configs; the modules under `tuned` in the session hold what was tuned",
        )
    return winners


def winners_of(
    directory: Path,
    choice: SetSelection | None,
    space: Path | None,
    narrow: Narrow | None = None,
) -> Winners:
    """Read the session in `directory`; without a `choice` of variants it is the session's own.

    `space` is its search space where that is no longer where it was, and `narrow` chooses the
    workloads that count. Raises `SessionError` where
    there is no session, nothing was compared in it, or its files have changed.
    """
    with Session.open(directory, read_only=True) as session:
        spec = unchanged_spec(session, space)
        if not session.comparisons():
            raise SessionError(
                "nothing was compared with the baseline, so that nothing can be exported",
                path=directory,
                remedy=f"finish it with `tune --resume {directory}`",
            )
        manifest, environment = session.manifest, session.environment
        verified_by = session.verified_by
        own = SetSelection(manifest.config.variants_within, manifest.config.max_variants)
        try:
            workloads = narrow(spec, manifest.config.workloads) if narrow is not None else None
            dispatch = SessionDispatch(session, choice or own, workloads=workloads)
        except SessionError as error:
            raise SessionError(error.message, path=directory, remedy=error.remedy) from error
    spec = spec.with_added(dispatch.added_scratch)
    recorded = manifest.config.device.startswith("recorded")
    created = manifest.created.partition("T")[0]
    measured = Measured(
        device=environment.get("device", manifest.config.device),
        architecture=environment["architecture"],
        date=environment.get("date", "") if recorded else created,
        recorded=recorded,
        operators=manifest.config.operators,
        verified_by=verified_by,
    )
    device = DeviceInfo(
        name=measured.device,
        architecture=measured.architecture,
        compute_capability=capability_of(environment),
        multiprocessors=int(environment["multiprocessors"]),
        l2_bytes=0,
        streaming_gbps=0.0,
        recorded=recorded,
    )
    return Winners(spec, manifest, dispatch, measured, device, environment)
