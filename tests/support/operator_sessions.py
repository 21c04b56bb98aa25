"""Sessions of our own operators with made-up comparisons, for every choice that they have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path

from dispatch_sample import ENVIRONMENT, comparison
from manifests import manifest

from tuner.dispatch.kernels import device_numbers
from tuner.model.trial import INITIAL, Variant
from tuner.session.records import file_sha
from tuner.session.session import Session
from tuner.space.callables import load_template
from tuner.space.load import load_definition

SPACES = Path(__file__).parents[2] / "search_spaces" / "sglang"
OPERATORS = sorted(path.stem for path in (SPACES.parents[1] / "kernels/sglang").glob("*.cu"))


@cache
def choices(kernel: str) -> list[Mapping[str, str]]:
    """List every choice of an operator, the default first."""
    operators = load_definition(SPACES / f"{kernel}.yaml").spec.operators
    values = product(*(one.values for one in operators))
    return [dict(zip((one.name for one in operators), chosen, strict=True)) for chosen in values]


def write_operator_session(
    folder: Path, kernel: str, operators: Mapping[str, str], most_bytes: int | None = None
) -> Path:
    """Write a session of one of our operators."""
    return write_session_of(folder, SPACES / f"{kernel}.yaml", operators, most_bytes)


def write_session_of(
    folder: Path,
    path: Path,
    operators: Mapping[str, str],
    most_bytes: int | None = None,
    time_us: float = 5.0,
) -> Path:
    """Write a session in which the default config won on the largest workload that it is for.

    It has all workloads, or those of at most so many bytes, or the edge cases where none is.
    """
    definition = load_definition(path, operators)
    spec = definition.spec
    workloads = spec.workloads
    if most_bytes is not None:
        small = tuple(w for w in workloads if spec.footprint_bytes(w) <= most_bytes)
        workloads = small or spec.edge_cases
    made = manifest(
        kernel=spec.name,
        space=spec.path,
        template=spec.template,
        space_sha=file_sha(spec.path),
        template_sha=file_sha(spec.template),
        source_sha=file_sha(spec.source),
        device="cuda",
        workloads=workloads,
        operators=dict(operators),
    )
    space, device = definition.space, device_numbers(ENVIRONMENT)
    assert space.default is not None
    won = Variant(INITIAL, space.default)
    allowed = (w for w in workloads if not space.violated(won.config, {**w.values, **device}))
    largest = max((w for w in allowed if not w.held_out), key=spec.footprint_bytes)
    with Session.create(folder, made, ENVIRONMENT) as session:
        template = load_template(spec, space)
        session.add_candidate(INITIAL, template.text, spec.path.read_text("utf-8"))
        session.append(comparison(largest, {won: time_us}))
        session.mark("complete")
    return folder
