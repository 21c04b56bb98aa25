"""Strides: what they are where arrays are contiguous, and what stays an axis."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.draft.drafting import draft
from tuner.source import parse_source


def space(body: str, parameters: str, passed: str) -> str:
    text = (
        f"__global__ void k(float* y, const float* x, {parameters})\n{{ {body} }}\n"
        "void f(Tensor x, float* y, int rows, int heads, int d)\n"
        f"{{ k<<<dim3(rows, heads), d>>>(y, x, {passed}); }}\n"
    )
    return draft(parse_source(text, Path("k.cu"))).space_yaml


LOOP = "for (int c = threadIdx.x; c < d; c += blockDim.x)"


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        ("blockIdx.x * stride + c", "[rows, d]"),
        ("(int64_t)blockIdx.x * stride + c", "[rows, d]"),
        ("c + stride * blockIdx.x", "[rows, d]"),
    ],
)
def test_a_stride_of_rows_is_their_width(index: str, shape: str) -> None:
    text = space(
        f"{LOOP} y[blockIdx.x * d + c] = x[{index}];", "int64_t stride, int d", "x.stride(0), d"
    )
    assert "stride" not in text.partition("arguments:")[0]
    row = (
        "{name: stride, dtype: int64, value: d}  # likely: of a contiguous array, as it is indexed"
    )
    assert row in text
    assert f"name: x, dtype: float32, shape: {shape}" in text


def test_a_stride_around_another_is_a_product() -> None:
    body = f"{LOOP} y[0] = x[blockIdx.x * outer_stride + blockIdx.y * head_stride + c];"
    text = space(
        body,
        "int outer_stride, int head_stride, int heads, int d",
        "x.stride(0), x.stride(1), heads, d",
    )
    assert "name: outer_stride, dtype: int32, value: heads * d}" in text
    assert "name: head_stride, dtype: int32, value: d}" in text


def test_a_stride_that_nothing_tells_stays_an_axis() -> None:
    text = space("y[0] = x[blockIdx.x * stride];", "int stride, int d", "x.stride(0), d")
    assert "axes: [stride, d, rows" in text


def test_indices_that_do_not_agree_leave_an_axis() -> None:
    body = f"{LOOP} y[0] = x[blockIdx.x * stride + c];"
    body += "if (threadIdx.x < 3) y[1] = x[stride + threadIdx.x];"
    assert "stride, " in space(body, "int stride, int d", "x.stride(0), d").partition("\narg")[0]
