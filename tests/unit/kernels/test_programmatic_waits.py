"""No template touches memory before it has waited for the launches before it, but constant inputs.

A kernel launched with programmatic dependent launch that loads before `griddepcontrol.wait` reads
what the launch before it may still be writing; one that lets the next launch begin early exposes
what the launches before it still use. Verification on a GPU sees much of it; the machine code shows
it without one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from shipped_kernels import Together
from slow import mostly_slow

from tuner.analysis.sass import disassemble, read
from tuner.analysis.unwritten import find_unwritten
from tuner.analysis.waits import before_wait
from tuner.app.check import target_info
from tuner.compiler.base import CompileRequest
from tuner.compiler.cache import Cache
from tuner.compiler.pool import NvrtcPool
from tuner.device.base import CompileTarget
from tuner.model.config import Config
from tuner.model.kernel import Launch
from tuner.search.pool import valid_configs
from tuner.space.choices import chosen_operators
from tuner.space.load import load_definition
from tuner.space.template import Template

SPACES = Path(__file__).parents[3] / "search_spaces" / "sglang"
OPERATORS = sorted(path.stem for path in (SPACES.parents[1] / "kernels/sglang").glob("*.cu"))
# For each of two workloads, besides one that triggers early. ONE is the smaller workload's alone,
# and what triggers early then the larger one's.
ONE = 1
CONFIGS = mostly_slow([ONE, 3], sample=[])


def reads_constants(name: str) -> bool:
    return bool(load_definition(SPACES / f"{name}.yaml").spec.constants)


def requests(name: str, configs: int) -> list[tuple[CompileRequest, tuple[Launch, ...], Config]]:
    """Some programmatic configs on the smallest and the largest workload, one triggering early."""
    definition = load_definition(SPACES / f"{name}.yaml")
    spec = definition.spec
    template = Template.load(spec.template, spec.include_dirs)
    operators = chosen_operators(spec, {})
    target = CompileTarget(spec, operators, target_info("sm_90a"))
    chance = random.Random(name)  # noqa: S311 - the same configs every time
    found = []
    ordered = sorted(spec.tuned, key=spec.footprint_bytes)
    for workload in (ordered[0], ordered[-1]):
        names = target.names(workload)
        pool = [config for config in valid_configs(definition.space, names) if config["pdl"]]
        late = [config for config in pool if config["pdl_trigger"] == "exit"]
        assert names["successor_waits"] or late == pool
        chosen = chance.sample(late, min(configs, len(late)))
        early = Config.of({**chosen[0], "pdl_trigger": "early"})
        last = workload is ordered[-1]
        for config in ([early] if last else chosen) if configs == ONE else (*chosen, early):
            launches = spec.candidate_launches({**names, **config})
            source = template.render({**workload.values, **operators, **config}).source
            found.append((target.request(source, launches), launches, config))
    return found


@pytest.fixture(scope="module")
def compiler() -> Iterator[NvrtcPool]:
    with NvrtcPool(workers=1, cache=Cache()) as pool:
        yield pool


@pytest.mark.parametrize("configs", CONFIGS)
@pytest.mark.parametrize("name", mostly_slow(OPERATORS, ["silu_and_mul", "moe_sum_reduce"]))
def test_no_access_comes_before_the_wait(name: str, configs: int, compiler: NvrtcPool) -> None:
    constants = reads_constants(name)
    asked = requests(name, configs)
    together = Together(compiler)
    compiled = [together.submit(request) for request, _, _ in asked]
    together.compile()
    functions = read(disassemble(compiled[0].result().cubin))
    for (_, launches, config), one in zip(asked, compiled, strict=True):
        result = one.result()
        for launch in launches:
            assert launch.pdl
            found = before_wait(functions, result.lowered[launch.kernel])
            assert found is not None
            assert not find_unwritten(functions[result.lowered[launch.kernel]]), config
            problem = found.problem_beside_constants if constants else found.problem
            assert not problem, f"{config}: {launch.kernel}: {problem}"
            assert not found.unclear, f"{config}: {launch.kernel}: {found.unclear}"
        assert found is not None
        assert found.triggers == (config["pdl_trigger"] == "early"), config
