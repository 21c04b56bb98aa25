"""Exported sources of our own kernels, built by nvcc as their README says, compile and wait."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from slow import mostly_slow

from tuner.analysis.sass import disassemble, read
from tuner.analysis.waits import before_wait
from tuner.app.check import target_info
from tuner.device.base import CompileTarget
from tuner.export.cpp import in_namespace
from tuner.space.choices import chosen_operators
from tuner.space.load import load_definition
from tuner.space.template import Template

SPACES = Path(__file__).parents[3] / "search_spaces" / "sglang"
OPERATORS = sorted(path.stem for path in SPACES.glob("*.yaml") if "." not in path.stem)
BUILD_S = 300


def exported(name: str) -> str:
    """The default config on the largest workload, as a variant holds it."""
    definition = load_definition(SPACES / f"{name}.yaml")
    spec, operators = definition.spec, chosen_operators(definition.spec, {})
    workload = max(spec.tuned, key=spec.footprint_bytes)
    assert definition.space.default is not None
    names = {**workload.values, **operators, **definition.space.default}
    launches = spec.candidate_launches(
        {**CompileTarget(spec, operators, target_info("sm_90a")).names(workload), **names}
    )
    assert all(launch.pdl for launch in launches)
    source = Template.load(spec.template, spec.include_dirs).render(names).source
    assert "//%" not in source
    defined = "\n".join(f"#define {macro} {value}" for macro, value in operators.items())
    return f"{defined}\n{in_namespace(source, 'variant')}\n"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
@pytest.mark.parametrize("name", mostly_slow(OPERATORS, ["topk_softmax"]))
def test_a_variant_compiles_alone_and_touches_nothing_before_its_wait(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "variant.cu").write_text(exported(name))
    command = ["nvcc", "-std=c++17", "-O3", "-arch=sm_90a", "-cubin", "variant.cu"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=BUILD_S)
    text = disassemble((tmp_path / "variant.cubin").read_bytes())
    kernels = [one.name for one in read(text).values() if one.entry]
    assert any(name in kernel for kernel in kernels)
    for kernel in kernels:
        found = before_wait(text, kernel)
        assert found is not None
        # The first of two launches is not the last: the second waits for it in any case.
        assert found.triggers == ("count_routes" in kernel)
        assert not found.problem, kernel
        assert not found.unclear, kernel
