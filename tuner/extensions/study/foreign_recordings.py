"""From a foreign file to a recording of one kernel that the `recorded` device answers from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tuner.device.recorded.recording import (
    RecordedDeviceInfo,
    RecordedProgram,
    RecordedWorkload,
    Recording,
)
from tuner.extensions.study.foreign import (
    BASELINE,
    MeasuredSpace,
    device_info,
    is_foreign,
    naming,
)
from tuner.extensions.study.kernel_tuner_files import load_measured
from tuner.model.config import Config, SearchSpace
from tuner.model.errors import DeviceError
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.trial import Status


def recording_from(
    path: Path,
    spec: KernelSpec,
    space: SearchSpace,
    operators: Mapping[str, str],
    workloads: Sequence[Workload] | None = None,
) -> Recording:
    """Read a foreign file as the recording of a kernel whose template has this space.

    `workloads` are those that will be asked for, None where that is not known. Raises
    `DeviceError` where parameters, GPU, workload or baseline do not fit.
    """
    measured = load_measured(path)
    own = measured.own
    with naming(path):
        theirs = [parameter.name for parameter in measured.parameters]
        if set(theirs) != set(space.names):
            raise DeviceError(
                f"its parameters are {', '.join(theirs)}; those of the search space are "
                f"{', '.join(space.names)}",
                remedy="name the parameters of the search space and its template as the file does",
            )
        workload = _workload(measured, spec, workloads)
        programs = _programs(measured, space)
        programs[BASELINE] = own.baseline if own else _stand_in(space, programs)
        return Recording(
            kernel=own.kernel if own else spec.name,
            created=measured.created,
            device=own.device if own else _device(measured, workload),
            operators=dict(own.operators if own else operators),
            workloads={
                workload.key: RecordedWorkload(
                    baseline=BASELINE,
                    programs=programs,
                    finals=own.finals if own else None,
                    surroundings=own.surroundings if own else "",
                )
            },
            keyed_by="config",
        )


def _programs(measured: MeasuredSpace, space: SearchSpace) -> dict[str, RecordedProgram]:
    """Key the answers by the space's configs; values that it lacks are out of its reach."""
    values = [{value: value for value in parameter.values} for parameter in space.parameters]
    programs = {}
    for config, answer in measured.answers.items():
        pairs = [
            (name, known[config[name]])
            for name, known in zip(space.names, values, strict=True)
            if config[name] in known
        ]
        if len(pairs) == len(space.names) and answer.status is not Status.NOT_RECORDED:
            # 1, 1.0 and True are one value here; the space says which of them is meant
            programs[Config(tuple(pairs)).key] = answer.program()
    return programs


def _stand_in(space: SearchSpace, programs: Mapping[str, RecordedProgram]) -> RecordedProgram:
    """Find the space's default config, which stands in for a baseline."""
    if space.default is None:
        raise DeviceError(
            "holds no baseline, and the search space names no default config to stand in for it",
            remedy="give the search space a `default:` that is in the file",
        )
    found = programs.get(space.default.key)
    if found is None or found.status is not Status.CORRECT:
        what = "has no answer for" if found is None else f"says `{found.status}` of"
        raise DeviceError(
            f"holds no baseline, and {what} the default config that would stand in for it: "
            f"{space.default}",
            remedy="give the search space another `default:`, one that is correct in the file",
        )
    return found


def _device(measured: MeasuredSpace, workload: Workload) -> RecordedDeviceInfo:
    info = device_info(measured.device)
    size = " x ".join(map(str, measured.problem_size)) or "not told"
    notes = {
        "timed_by": "another program (Kernel Tuner's file): by its own rules, which may leave "
        "inputs in the cache and count the launch; what it checked is not known",
        "recorded_kernel": measured.kernel or "not told",
        "recorded_problem_size": f"{size}, taken for {workload}",
        "baseline": "the file holds none: the space's default config stands in for it",
    }
    return info.model_copy(update={"environment": {**info.environment, **notes}})


def _workload(
    measured: MeasuredSpace, spec: KernelSpec, asked: Sequence[Workload] | None
) -> Workload:
    """Decide which workload the file answers for: named in it, the only one, or of its size."""
    choices = [w for w in (spec.workloads if asked is None else asked) if not w.held_out]
    size = _without_ones(measured.problem_size)
    if measured.own is not None:
        found = [w for w in choices if w.key == measured.own.workload]
        unclear = f"the workload {measured.own.workload}, which is not asked for"
        remedy = f"ask for it with --workload {measured.own.workload}"
    else:
        of_size = [w for w in choices if size and _without_ones(w.values.values()) == size]
        found = choices if len(choices) == 1 else of_size
        named = choices or list(spec.tuned)
        told = " x ".join(map(str, measured.problem_size)) or "it does not tell"
        unclear = f"one problem size, {told}; which of {len(named)} workloads that is, is not clear"
        example = f", as in --workload {named[0].key}" if named else ""
        remedy = f"name the workload that was measured{example}"
    if len(found) != 1:
        raise DeviceError(f"holds {unclear}", remedy=remedy)
    others = [workload for workload in asked or () if workload != found[0]]
    if others:
        raise DeviceError(
            f"holds one workload, {found[0]}; this run asks for {len(others)} more",
            remedy=f"--workload {found[0].key} asks for that one alone",
        )
    return replace(found[0], held_out=False)


def _without_ones(sizes: Iterable[int]) -> list[int]:
    return sorted(size for size in sizes if size != 1)


class KernelTunerFiles:
    """Kernel Tuner's caches and T4 results; implements `ForeignFiles`."""

    def is_foreign(self, path: Path) -> bool:
        return is_foreign(path)

    def read(
        self,
        path: Path,
        spec: KernelSpec,
        operators: Mapping[str, str],
        workloads: Sequence[Workload] | None,
    ) -> Recording:
        from tuner.space.load import load_definition

        space = load_definition(spec.path, operators).space
        return recording_from(path, spec, space, operators, workloads)


FOREIGN = KernelTunerFiles()
