"""Rows of a product whose bits may not depend on the batch, run at several sizes on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from shipped_kernels import EditedSource, Edits, ShippedKernel, chosen_scratch, compile_edited

from tuner.compiler.base import Compiler
from tuner.device.base import Outcome
from tuner.extensions.cpu.device import HostDevice
from tuner.model.expressions import Value
from tuner.space.choices import chosen_operators
from tuner.space.load import load_definition
from tuner.space.template import Template

TOKENS = (1, 18)
BASELINE = "baseline"
Configs = Mapping[str, Mapping[str, Value]]


def run_rows(
    kernel: ShippedKernel,
    cancelling: str,
    configs: Configs,
    folder: Path,
    compiler: Compiler,
    choice: Mapping[str, str] | None = None,
    depth: int = 512,
    edits: Mapping[str, Edits] | None = None,
) -> dict[str, list[Outcome]]:
    """Say of the baseline and of configs by name what is told of their rows, at each of TOKENS.

    `cancelling` is the text of a reference whose sums are what rounding leaves, so that each order
    has bits of its own. `edits` are of the rendered source of the config with that name.
    """
    text = kernel.spec.path.read_text(encoding="utf-8")
    before, after = text.split("workloads:\n")[0], text.split("surroundings:")[1]
    sizes = ", ".join(f"{{T: {tokens}, N: 72, K: {depth}}}" for tokens in TOKENS)
    text = f"{before}workloads: {{tuned: [{sizes}]}}\nsurroundings:{after}"
    text = text.replace(f"../../kernels/sglang/{kernel.spec.name}.py", "cancelling.py")
    text = text.replace("../..", str(kernel.spec.path.parents[2]))
    (folder / "cancelling.py").write_text(cancelling, encoding="utf-8")
    (folder / "rows.yaml").write_text(text, encoding="utf-8")
    whole = load_definition(folder / "rows.yaml")
    operators = chosen_operators(whole.spec, choice or {})
    definition = whole.chosen(operators)
    spec, space = definition.spec, definition.space
    template = Template.load(spec.template, spec.include_dirs)
    macros = "".join(f"#define {name} {value}\n" for name, value in operators.items())

    def sources() -> Iterator[EditedSource]:
        for workload in spec.tuned:
            launches = spec.baseline_launches(dict(workload.values))
            tokens = workload.values["T"]
            source = macros + kernel.source
            yield EditedSource(f"{tokens} {BASELINE}", source, (), workload, launches)
            for name, having in configs.items():
                names = {**workload.values, **space.default, **having, **operators}
                names |= {"multiprocessors": 2}
                source, launches = template.render(names).source, spec.candidate_launches(names)
                scratch, changed = chosen_scratch(spec, names), (edits or {}).get(name, ())
                yield EditedSource(f"{tokens} {name}", source, changed, workload, launches, scratch)

    outcomes: dict[str, list[Outcome]] = {}
    with closing(HostDevice(spec, operators)) as device:
        for name, program in compile_edited(compiler, sources()).items():
            outcomes.setdefault(name.partition(" ")[2], []).append(device.bits(program))
    return outcomes


def bits_of(outcomes: Sequence[Outcome]) -> set[str]:
    """Give the digests that correct rows have at all sizes."""
    assert {(outcome.status.name, outcome.reason) for outcome in outcomes} == {("CORRECT", "")}
    return {outcome.correctness.bits for outcome in outcomes if outcome.correctness}
