"""The spaces that only benchmarks have: what they measure on a GPU is right on the CPU."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import launch_floor
import pytest
import same_kernel
import throughput

from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.cpu.device import HostDevice
from tuner.model.kernel import Workload
from tuner.model.trial import Status
from tuner.search.pool import valid_configs
from tuner.space.load import load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
# Small ones, and the choices of their operators. A chain of 200 steps has come to its end.
SPACES: Mapping[Path, tuple[Mapping[str, int], Mapping[str, str]]] = {
    throughput.SPACE: ({"T": 3, "D": 4096}, throughput.OPERATORS),
    same_kernel.SPACE: ({"N": 10_000, "W": 200}, {}),
    launch_floor.KERNEL.with_suffix(".yaml"): ({"N": 1}, {}),
}


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_the_baseline_and_a_config_are_right(path: Path, compiler: HostCompiler) -> None:
    axes, operators = SPACES[path]
    definition, workload = load_definition(path), Workload.of(axes)
    spec, space = definition.spec, definition.space
    device = HostDevice(spec, operators)
    candidate = Candidate("template", space, Template.load(spec.template, spec.include_dirs))
    evaluator = Evaluator(spec, candidate, operators, compiler, device)
    try:
        config = next(iter(valid_configs(space, evaluator.names(workload))))
        for trial in (
            evaluator.baseline(workload),
            evaluator.finish(evaluator.start(workload, config)),
        ):
            assert trial.status is Status.CORRECT, trial.reason
    finally:
        device.close()
