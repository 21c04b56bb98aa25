"""Keeping bits: what a search has to know before it may try only configs of the default's class."""

from __future__ import annotations

from tuner.model.config import Config, SearchSpace
from tuner.model.errors import DeviceError, KernelError, SpaceError
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.trial import Status, Trial
from tuner.tuning.device_queues import work_in_queues
from tuner.tuning.evaluator import Evaluator
from tuner.tuning.run import Run

_LEAVE_OUT = "leave --keep-bits out"


def require_bits(spec: KernelSpec, space: SearchSpace) -> Config:
    """Return the default config, whose bits are to be kept; raise `InputError` for none."""
    if space.default is None:
        raise SpaceError(
            "--keep-bits keeps those of the default config, and the space has none",
            path=spec.path,
            remedy=f"write `default: {{NAME: VALUE, ...}}`, or {_LEAVE_OUT}",
        )
    varying = [one.name for one in spec.arguments if not one.deterministic]
    if varying:
        raise SpaceError(
            f"--keep-bits: the bits of {', '.join(varying)} may differ from call to call "
            "(`deterministic: false`)",
            path=spec.path,
            remedy=f"require them to repeat, or {_LEAVE_OUT}",
        )
    return space.default


def default_bits(run: Run) -> dict[Workload, str]:
    """Digest what the default config makes on each workload, held-out ones too.

    What the session lacks is run, and kept where a search would try it as well; where memory ends
    the workload is left undecided. Raises `KernelError` where the default is not right, and
    `DeviceError` where the device can't tell.
    """
    plan, session, evaluator = run.plan, run.session, run.evaluator
    default = require_bits(plan.spec, plan.space)
    bits: dict[Workload, str] = {}

    def digest(workload: Workload) -> None:
        with run.skipped.unless_memory_ends(workload, plan.candidate):
            trial = session.trial(plan.candidate, workload, default)
            if trial is None:
                trial = evaluator.finish(evaluator.start(workload, default))
                if default in run.pools.get(workload, ()):
                    session.record(trial)
            bits[workload] = _bits_of(trial, plan.spec, evaluator)

    work_in_queues(run.device, (*plan.tuned, *plan.held_out), digest)
    return bits


def _bits_of(trial: Trial, spec: KernelSpec, evaluator: Evaluator) -> str:
    bits = trial.correctness.bits if trial.correctness else ""
    if trial.status is Status.CORRECT and bits:
        return bits
    if "recording" in evaluator.device.capabilities:
        what = "bits" if trial.status is Status.CORRECT else "measurement"
        raise DeviceError(
            f"holds no {what} of the default config ({trial.config}) on {trial.workload}, which "
            "--keep-bits compares all others with",
            path=evaluator.device.recording.path,
            remedy=f"make it anew with `tune record`, use a GPU, or {_LEAVE_OUT}",
        )
    if trial.status is Status.CORRECT:
        raise DeviceError(
            f"--keep-bits: {evaluator.device.info.name} says times, but no bits of outputs",
            remedy=f"use a GPU (--device cuda), or {_LEAVE_OUT}",
        )
    raise KernelError(
        f"--keep-bits: the default config ({trial.config}) is no model on {trial.workload}: "
        f"{trial.status}: {trial.reason}",
        path=spec.path,
        remedy=f"name a `default` that is right on every workload, or {_LEAVE_OUT}",
    )
