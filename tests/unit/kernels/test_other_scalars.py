"""Kernels with other scalars than they were tuned for, as callers of an export may pass them."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from shipped_kernels import SPACES, Sample, start_samples
from slow import mostly_slow

from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.cpu.device import HostDevice
from tuner.model.expressions import Expression
from tuner.model.kernel import KernelSpec
from tuner.model.trial import Status
from tuner.space.choices import chosen_operators
from tuner.space.load import load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

# The scalar, its other value, and how the reference has the one that it was tuned for.
CASES = [
    ("moe_sum_reduce", "scale", "0.3", "SCALE = 2.5", {}),
    ("rmsnorm", "eps", "0.25", "EPS = 1.0e-6", {}),
    ("fused_add_rmsnorm", "eps", "0.25", "EPS = 1.0e-6", {}),
    ("fused_qk_norm_rope", "eps", "0.25", "EPS = 1.0e-6", {}),
    ("linear_add_rmsnorm", "eps", "0.25", "EPS = 1.0e-5", {}),
    ("fused_qk_norm_rope", "theta", "1.0e4", '"theta_1e6": 1.0e6', {"angles": "computed"}),
    ("decode_attention", "k_scale", "0.5", "K_SCALE = 1.0", {}),
    ("decode_attention", "v_scale", "0.3", "V_SCALE = 1.0", {}),
]


def changed(spec: KernelSpec, folder: Path, scalar: str, value: str, stated: str) -> KernelSpec:
    """Put another value in the place of a scalar, in the reference too."""
    text = spec.reference.read_text("utf-8")
    assert text.count(stated) == 1
    before = stated.rpartition(" ")[0]
    path = folder / spec.reference.name
    path.write_text(text.replace(stated, f"{before} {value}"), "utf-8")
    other = replace(spec.argument(scalar), value=Expression.parse(value))
    arguments = [other if one.name == scalar else one for one in spec.arguments]
    return replace(spec, reference=path, arguments=tuple(arguments))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(("name", "scalar", "value", "stated", "having"), mostly_slow(CASES))
def test_baseline_and_template_take_the_scalar_that_is_passed(
    name, scalar, value, stated, having, tmp_path: Path, compiler: HostCompiler
) -> None:
    definition = load_definition(SPACES / f"{name}.yaml")
    spec = changed(definition.spec, tmp_path, scalar, value, stated)
    template = Template.load(spec.template, spec.include_dirs)
    candidate = Candidate("template", definition.space, template)
    operators = chosen_operators(spec, {})
    with closing(HostDevice(spec, operators)) as device:
        evaluator = Evaluator(spec, candidate, operators, compiler, device)
        # Of a single row or token some scalars change nothing.
        edges = sorted(spec.edge_cases, key=spec.footprint_bytes)
        workload = next((one for one in edges if 1 not in one.values.values()), edges[0])
        assert evaluator.baseline(workload).status is Status.CORRECT
        sample = Sample(workload.values, having=having)
        (started,) = start_samples(evaluator, definition.space, [sample]).values()
        for pending in started:
            trial = evaluator.finish(pending)
            assert trial.status is Status.CORRECT, f"{trial.config}: {trial.reason}"
