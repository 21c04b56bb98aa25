"""Everything about a search space that can be found out without a GPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tuner.app.plan import check_signature, read_chosen
from tuner.app.proofs import Proof, prover, require_right
from tuner.compiler.base import Compiler, PassingCompiler, PythonCompiler
from tuner.device.base import ComparisonRounds, Device, DeviceInfo, Outcome, Program, amd_info
from tuner.device.families import family
from tuner.device.inputs import NORMAL
from tuner.device.select import open_compiler, open_device
from tuner.device.verify.reference_process import ReferenceProcess
from tuner.model.config import Config, SearchSpace
from tuner.model.errors import DeviceError
from tuner.model.hardware import (
    AMD_TARGETS,
    COMPUTE_CAPABILITIES,
    DEFAULT_TARGET,
    MULTIPROCESSORS,
    architecture_for,
    is_amd,
)
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.languages import HIP, OPENCL
from tuner.model.trial import Status, Trial
from tuner.search.pool import Pool, valid_configs
from tuner.space.callables import load_template
from tuner.space.load import Definition
from tuner.tuning.evaluator import Candidate, Evaluator
from tuner.tuning.run import no_valid_config
from tuner.tuning.search import require_one_compiles

# NumPy takes about a second for it; a larger problem is left to the GPU.
LARGEST_REFERENCE_BYTES = 64 << 20
NVIDIA_TARGET = "sm_90a"
_FIXED = re.compile(r"\w+ == \d+")
_TARGET = re.compile(r"(?:sm_)?(\d{1,2})(\d)[af]?")


@dataclass(frozen=True, slots=True)
class SpaceCheck:
    """What a check learned; `valid` counts what constraints leave of a workload's configs.

    `searched` counts what `prune` leaves of them, and `sample` holds compiled ones of those.

    `proofs` say what running the baseline on the CPU showed. `estimated` are the workloads
    with so many that their number was estimated from random draws.
    A sampled trial is `not_recorded` where the config compiles within the limits: only a device
    could say more.
    """

    spec: KernelSpec
    target: DeviceInfo
    compiler: str
    combinations: int
    valid: Mapping[Workload, int]
    searched: Mapping[Workload, int]
    sample: tuple[Trial, ...]
    estimated: frozenset[Workload] = frozenset()
    proofs: tuple[Proof, ...] = ()

    @property
    def not_shown(self) -> str:
        """Say why the reference was not compared with the baseline; "" where it was."""
        if any(proof.compared for proof in self.proofs):
            return ""
        if self.spec.is_callable or not self.spec.language.is_read:
            return "nothing but CUDA, HIP and OpenCL runs on the CPU here; a run on a device will"
        why = (proof.open_because for proof in reversed(self.proofs) if proof.open_because)
        return next(why, "the baseline was not run (`--no-run`)")

    @property
    def rejected(self) -> Mapping[str, int]:
        """Count the sampled configs over a limit, by reason."""
        return Counter(t.reason for t in self.sample if t.status is Status.RESOURCE_LIMIT)


class UnavailableDevice(Device):
    """Stand in for a GPU of one architecture: whatever would run on it is `not_recorded`."""

    capabilities = frozenset({"machine_code"})

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info

    def run(
        self,
        program: Program,
        *,
        incumbent_us: float | None = None,
        full_verification: bool = False,
    ) -> Outcome:
        return Outcome(Status.NOT_RECORDED, "compiled within the limits; not run")

    def verify(self, program: Program) -> Outcome:
        return self.run(program)

    def compare(self, programs: Sequence[Program], *, rounds: int) -> ComparisonRounds:
        raise DeviceError("nothing can be timed without a device")

    def close(self) -> None:
        """Nothing is held open."""


def target_info(text: str) -> DeviceInfo:
    """Read a compile target such as `sm_90a`, `90` or `gfx942`; raise `DeviceError` otherwise."""
    if is_amd(text):
        return amd_info(text)
    match = _TARGET.fullmatch(text)
    capability = (int(match[1]), int(match[2])) if match else None
    if capability not in COMPUTE_CAPABILITIES:
        known = " ".join(architecture_for(capability) for capability in COMPUTE_CAPABILITIES)
        known += f" {' '.join(AMD_TARGETS)}"
        raise DeviceError(f"unknown target {text!r}", remedy=f"targets: {known}")
    architecture = architecture_for(capability)
    return DeviceInfo(
        name=architecture,
        architecture=architecture,
        compute_capability=capability,
        multiprocessors=MULTIPROCESSORS[capability],
        l2_bytes=0,
        streaming_gbps=0.0,
        recorded=False,
    )


def _check(
    definition: Definition,
    operators: Mapping[str, str],
    target: DeviceInfo,
    compiler: Compiler,
    sample: int,
    run: bool,
) -> SpaceCheck:
    spec, space = definition.spec, definition.space
    if spec.rows:
        definition.keeping_rows()
    template = load_template(spec, space)
    template.check(space, spec)
    check_signature(spec)
    proofs: tuple[Proof, ...] = ()
    is_read = not spec.is_callable and spec.language.is_read
    if is_read:
        prover().require_no_constant_memory(spec)
    with closing(ReferenceProcess(spec, operators)) as reference:
        if is_read and run:
            allows = partial(_keeps, space)
            proofs = prover().prove(spec, operators, target, reference, allows)
            require_right(spec, proofs)
        # On the smallest workload, or the smallest edge case; its tolerance refuses zeros.
        groups = (spec.workloads, spec.edge_cases)
        smallest = (min(group, key=spec.footprint_bytes) for group in groups if group)
        small = (w for w in smallest if spec.footprint_bytes(w) <= LARGEST_REFERENCE_BYTES)
        if (workload := next(small, None)) is not None:
            reference.judge(workload, NORMAL, 0, {})
        reference.require_telling()
    device = UnavailableDevice(target)
    candidate = Candidate("checked", space, template)
    evaluator = Evaluator(spec, candidate, operators, compiler, device)
    pools = {w: valid_configs(space, evaluator.names(w)) for w in spec.workloads}
    allowed = pools
    if space.prune:
        allowed = {w: valid_configs(space.unpruned, evaluator.names(w)) for w in spec.workloads}
    for workload in spec.tuned:
        if not len(pools[workload]):
            raise no_valid_config(spec, space, workload, pools[workload])
    for workload in spec.workloads:
        evaluator.baseline_program(workload)
    pending = [evaluator.start(*chosen) for chosen in _spread(spec, space, pools, sample)]
    trials = tuple(evaluator.finish(each) for each in pending)
    require_one_compiles(trials, template)
    valid, searched = ({w: p.estimated_size for w, p in each.items()} for each in (allowed, pools))
    estimated = frozenset(
        w for each in (allowed, pools) for w, pool in each.items() if not pool.size_is_exact
    )
    made_by = compiler.version
    return SpaceCheck(spec, target, made_by, space.size, valid, searched, trials, estimated, proofs)


def _keeps(space: SearchSpace, sizes: Mapping[str, int]) -> bool:
    """Tell whether sizes keep the constraints over axes alone, but for `K == 1024`.

    That one says what a constant of the source is, which follows the axis where sizes are cut.
    """
    limits = (limit for limit in space.constraints if not _FIXED.fullmatch(limit.text))
    ours = (limit for limit in limits if limit.names <= sizes.keys())
    return all(limit.evaluate(sizes) for limit in ours)


def _spread(
    spec: KernelSpec, space: SearchSpace, pools: Mapping[Workload, Pool], count: int
) -> Iterable[tuple[Workload, Config]]:
    first, default = spec.tuned[0], space.default
    picks = [(first, default)] if default is not None and default in pools[first] else []
    if count >= sum(len(pools[workload]) for workload in spec.tuned):
        picks += ((workload, config) for workload in spec.tuned for config in pools[workload])
        return dict.fromkeys(picks)
    for number in range(count):
        workload = spec.tuned[number % len(spec.tuned)]
        pool = pools[workload]
        picks.append((workload, pool[(2 * number + 1) * len(pool) // (2 * count)]))
    return dict.fromkeys(picks)


def check(
    space: Path | str,
    *,
    target: str | None = None,
    sample: int = 8,
    operators: Mapping[str, str] | None = None,
    jobs: int | None = None,
    run: bool = True,
) -> SpaceCheck:
    """Check a search space, its template, its kernel and its reference; no GPU is needed.

    Unless `run` is False, the baseline is run on the CPU to prove what each argument is.

    The baseline and `sample` configs, spread evenly over the valid ones, are compiled for `target`,
    by default `sm_90a`, and `gfx942` for a kernel in HIP; a kernel in CUDA that also is one in
    HIP's dialect is compiled as such for one of AMD's targets. A kernel in OpenCL is compiled for
    the first OpenCL device here, whatever the target; where there is none it is not compiled.
    Raises `InputError` for the first mistake; a config of the sample that does not compile is one
    only where none does.
    """
    definition, chosen = read_chosen(space, operators)
    if definition.spec.language is OPENCL and family("opencl").list_here():
        device = open_device("opencl", definition.spec, chosen)
        with closing(device), closing(device.compiler(jobs)) as compiler:
            return _check(definition, chosen, device.info, compiler, sample, run)
    hip = definition.spec.language is HIP
    info = target_info(target or (DEFAULT_TARGET if hip else NVIDIA_TARGET))
    if hip and not is_amd(info.architecture):
        raise DeviceError(
            f"a kernel in HIP cannot be compiled for {info.architecture}",
            path=definition.spec.source,
            remedy=f"targets of HIP: {' '.join(AMD_TARGETS)}",
        )
    if definition.spec.is_callable:
        return _check(definition, chosen, info, PythonCompiler(), sample, run)
    if not definition.spec.language.is_read:
        return _check(definition, chosen, info, PassingCompiler("an evaluator"), sample, run)
    with closing(open_compiler(jobs, architecture=info.architecture)) as compiler:
        return _check(definition, chosen, info, compiler, sample, run)
