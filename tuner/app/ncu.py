"""Write a program of a session's baseline and winner that Nsight Compute opens."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tuner.app.authors import authors
from tuner.app.check import NVIDIA_TARGET, UnavailableDevice, target_info
from tuner.app.session_plan import verified_plan
from tuner.app.trust import MayRun, say_no
from tuner.compiler.includes import UNIT_NAME
from tuner.device.cuda.counters import NOT_FOUND, find_ncu, profile_script, run_profile
from tuner.device.cuda.tool_process import save_jobs
from tuner.device.select import open_compiler
from tuner.model.errors import DeviceError, InputError
from tuner.model.languages import CUDA
from tuner.process.files import atomic_write
from tuner.session.events import CandidateMade, MachineCodeCompared
from tuner.session.session import Session
from tuner.space.load import workload_from_text
from tuner.tuning.evaluator import Candidates
from tuner.tuning.machine_code import build_pair, keep_comparison

NAMES = ("baseline", "winner")


@dataclass(frozen=True, slots=True)
class NcuProgram:
    """A folder with the program, for GPUs of an architecture, and a script for Nsight Compute."""

    folder: Path
    architecture: str

    @property
    def script(self) -> Path:
        return self.folder / "ncu.sh"

    @property
    def reports(self) -> tuple[Path, ...]:
        return tuple(self.folder / f"{name}.ncu-rep" for name in NAMES)


def write_program(
    session: Session,
    workload: str,
    *,
    folder: Path | None = None,
    space: Path | None = None,
    target: str | None = None,
    jobs: int | None = None,
    may_run: MayRun = say_no,
) -> NcuProgram:
    """Write baseline and winner of a workload with inputs as the verifier draws them.

    It is for the session's GPU, or for `target`. No GPU is needed, and nothing runs. How the
    machine code of the two differs is noted in the session, for its report. Raises `InputError`
    where the workload has no winner, or its kernel is not of CUDA.
    """
    plan = verified_plan(session.directory, session.manifest, space, may_run=may_run)
    if plan.spec.is_callable or plan.spec.language is not CUDA:
        raise InputError(
            "is no kernel in CUDA, and its launches are not tune's",
            path=plan.spec.source,
            remedy="run `ncu python` on a program of your own that calls it",
        )
    wanted = workload_from_text(plan.spec, workload).values
    result = next((one for one in session.results() if one.workload.values == wanted), None)
    if result is None:
        known = "; ".join(one.workload.key for one in session.results()) or "none"
        raise InputError(f"nothing was tuned for {workload}", remedy=f"tuned workloads: {known}")
    measured = session.environment.get("architecture", "")
    info = target_info(target or (measured if measured.startswith("sm_") else NVIDIA_TARGET))
    folder = (folder or session.directory / "ncu" / result.workload.key).absolute()
    with ExitStack() as stack:
        compiler = open_compiler(jobs, architecture=info.architecture)
        stack.callback(compiler.close)
        candidates = Candidates(plan, compiler, UnavailableDevice(info))
        if session.events(CandidateMade):
            authors().restore(plan, session, candidates)
        pair = build_pair(candidates, result)
    # Somebody else's session may lead elsewhere.
    own = session.directory.absolute()
    for place in (folder, *(folder / name for name in NAMES), *folder.parents):
        if place == own:
            break
        if place.is_symlink() and place.is_relative_to(own):
            raise InputError("is a link", path=place, remedy="name a folder with --to")
    ncu_program = NcuProgram(folder, info.architecture)
    programs = {name: built.program for name, built in zip(NAMES, pair, strict=True)}
    for name, built in zip(NAMES, pair, strict=True):
        (folder / name).mkdir(parents=True, exist_ok=True)
        atomic_write(folder / name / UNIT_NAME, built.source)
    save_jobs(folder, plan.spec, plan.config.operators, programs)
    launches = {name: len(program.launches) for name, program in programs.items()}
    atomic_write(ncu_program.script, profile_script(launches))
    compared = (event for event in session.events(MachineCodeCompared) if event.is_of(result))
    if info.architecture not in {event.architecture for event in compared}:
        keep_comparison(session, result, info.architecture, *pair)
    return ncu_program


def profile(program: NcuProgram) -> None:
    """Run the tool on this machine's GPU; raise `DeviceError` where it makes no report."""
    if find_ncu() is None and "NCU" not in os.environ:
        raise DeviceError(NOT_FOUND)
    for report in program.reports:
        report.unlink(missing_ok=True)
    said = run_profile(program.script)
    if not all(report.is_file() for report in program.reports):
        raise DeviceError(f"Nsight Compute made no report: {said}")
