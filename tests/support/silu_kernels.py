"""A plain kernel for silu_and_mul, with places to spoil it."""

from __future__ import annotations

from pathlib import Path
from string import Template

from tuner.model.kernel import Launch, Workload

TEMPLATE = Template(Path(__file__).with_name("silu_and_mul.cu").read_text(encoding="utf-8"))
WORKLOAD = Workload.of({"T": 16, "D": 1024})
LAUNCH = Launch("silu_and_mul", (16, 1, 1), (256, 1, 1))


def silu(*, before: str = "", each: str = "", after: str = "") -> str:
    """Write the kernel with statements before, in and after its loop."""
    return TEMPLATE.substitute(before=before, each=each, after=after)


# One kernel in two launches: each writes every second element.
ODD = silu(each="if (i % 2 == 0) continue;").replace("silu_and_mul", "odd")
EVEN_AND_ODD = silu(each="if (i % 2 == 1) continue;") + ODD.replace("launches_so_far", "unused")
