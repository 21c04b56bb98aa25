"""No template touches memory before it has waited for the launch before it.

A kernel launched with programmatic dependent launch that loads before `griddepcontrol.wait` reads
what the launch before it may still be writing. The compiler moves loads across the wait where
nothing in the source holds them back. Verification on a GPU sees it by running a late writer before
the kernel; the machine code shows it without one.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from slow import mostly_slow

from tuner.analysis.sass import disassemble
from tuner.app.check import target_info
from tuner.compiler.base import CompileRequest
from tuner.compiler.pool import NvrtcPool
from tuner.device.base import CompileTarget
from tuner.model.kernel import Launch
from tuner.search.pool import valid_configs
from tuner.space.choices import chosen_operators
from tuner.space.load import load_definition
from tuner.space.template import Template

SPACES = Path(__file__).parents[3] / "search_spaces" / "sglang"
OPERATORS = sorted(path.stem for path in SPACES.glob("*.yaml") if "." not in path.stem)
CONFIGS = 2
WAIT = "ACQBULK"
ACCESS = re.compile(r"(LDG|STG|LD\.|ST\.|ATOMG|ATOM\.|RED|UBLKCP)")
# Configs that load what no launch ever writes, a table of the kernel's own.
OWN_TABLES = {"fused_qk_norm_rope": ("angles", "table")}
# A later launch of the same operator may load its inputs early, if the first one lets it start only
# after its own wait; what the first one writes it may not, and only people can tell the two apart.
CHANGE = re.compile(r"(STG|ST\.|ATOMG|ATOM\.|RED|UBLKCP)")
OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


def requests(name: str) -> list[tuple[CompileRequest, tuple[Launch, ...], str]]:
    """Some programmatic configs on the smallest and the largest workload."""
    definition = load_definition(SPACES / f"{name}.yaml")
    spec, template = definition.spec, Template.load(definition.spec.template, definition.spec.include_dirs)
    operators = chosen_operators(spec, {})
    target = CompileTarget(spec, operators, target_info("sm_90a"))
    chance = random.Random(name)  # noqa: S311 - the same configs every time
    found = []
    ordered = sorted(spec.tuned, key=spec.footprint_bytes)
    for workload in (ordered[0], ordered[-1]):
        names = target.names(workload)
        pool = [c for c in valid_configs(definition.space, names) if c["pdl"]]
        if name in OWN_TABLES:
            parameter, value = OWN_TABLES[name]
            pool = [config for config in pool if config[parameter] != value]
        for config in chance.sample(pool, min(CONFIGS, len(pool))):
            launches = spec.candidate_launches({**names, **config})
            source = template.render({**workload.values, **operators, **config}).source
            found.append((target.request(source, launches), launches, f"{workload}: {config}"))
    return found


@pytest.mark.parametrize("name", mostly_slow(OPERATORS, ["silu_and_mul", "moe_sum_reduce"]))
def test_no_access_comes_before_the_wait(name: str) -> None:
    with NvrtcPool(workers=1) as compiler:
        for request, launches, said in requests(name):
            result = compiler.submit(request).result()
            assert result.ok, f"{said}\n{result.error}"
            functions = disassemble(result.cubin).split(".section\t.text.")[1:]
            for n, launch in enumerate(launches):
                if not launch.pdl:
                    continue
                forbidden = CHANGE if n else ACCESS
                symbol = result.lowered[launch.kernel]
                (text,) = [one for one in functions if one.startswith(f"{symbol},")]
                codes = OPCODE.findall(text)
                assert WAIT in codes, f"{said}: {symbol} never waits"
                early = [code for code in codes[: codes.index(WAIT)] if forbidden.match(code)]
                assert not early, f"{said}: {early} before {WAIT}"
