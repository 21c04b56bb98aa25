"""Kernels to lay out and judge: specs made from a few lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tuner.model.expressions import Expression
from tuner.model.kernel import Argument, KernelSpec, Tolerance

REFERENCE = """\
def reference(xp, inputs, axes):
    return {"y": 2.0 * inputs["x"]}
"""


def array(name: str, dtype: str, shape: tuple[object, ...], role: str, fill: str) -> Argument:
    dimensions = tuple(Expression.parse(str(size)) for size in shape)
    return Argument(name, dtype, dimensions, role, fill)  # type: ignore[arg-type]


def scalar(name: str, dtype: str, value: str) -> Argument:
    return Argument(name, dtype, value=Expression.parse(value), line=12)


@pytest.fixture
def make_spec(tmp_path: Path) -> Callable[..., KernelSpec]:
    """Make a spec of arrays (name, dtype, shape, role[, fill]) and scalars (name, dtype, value)."""

    def make(
        *arguments: tuple[object, ...],
        axes: tuple[str, ...] = ("T",),
        reference: str = REFERENCE,
        tolerances: Mapping[str, Tolerance] | None = None,
    ) -> KernelSpec:
        made = [
            scalar(*item) if len(item) == 3 else array(*item, *["normal"][len(item) - 4 :])
            for item in arguments
        ]
        path = tmp_path / "reference.py"
        path.write_text(reference, encoding="utf-8")
        written = [item.name for item in made if item.role in ("output", "inout")]
        return KernelSpec(
            name="example",
            path=tmp_path / "example.yaml",
            source=tmp_path / "example.cu",
            reference=path,
            template=tmp_path / "example.cu.j2",
            axes=axes,
            arguments=tuple(made),
            tuned=(),
            held_out=(),
            min_bytes=Expression.parse("1"),
            baseline=(),
            launch=(),
            tolerances=tolerances or {name: Tolerance(8e-3, 1e-6) for name in written},
        )

    return make
