"""Which language a file is in, and that a template is in its kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.model.errors import KernelError
from tuner.model.languages import CUDA, HIP, OPENCL, PYTHON, language_of, require_same_language


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("silu.cu", CUDA),
        ("silu.cu.j2", CUDA),
        ("softmax.py", PYTHON),
        ("sum.cl.j2", OPENCL),
        ("sum.hip", HIP),
        ("template", CUDA),
    ],
)
def test_the_end_of_a_name_tells_the_language(name: str, language: object) -> None:
    assert language_of(Path("kernels.d") / name) is language


def test_a_template_of_another_language_is_refused() -> None:
    require_same_language(Path("sum.cl"), Path("t/sum.cl.j2"))
    with pytest.raises(KernelError) as told:
        require_same_language(Path("sum.cl"), Path("t/sum.cu.j2"))
    assert str(told.value) == (
        "t/sum.cu.j2: is CUDA, and sum.cl is OpenCL\n  a template of it ends in .cl.j2"
    )
