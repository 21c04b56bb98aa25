"""What cannot be tuned here is said in one sentence, with what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuner.model.errors import KernelError
from tuner.source.reader import parse_source, read_source
from tuner.source.unsupported import require_arguments, require_body, require_closed

KERNEL = "__global__ void k(float* x) { x[0] = 1; }\n"


@pytest.mark.parametrize(
    ("name", "text", "line", "what"),
    [
        ("k.cl", "\n__kernel void k(__global float* x) {}\n", 2, "is OpenCL"),
        ("k.cu", "kernel void k(global float* x) { x[get_global_id(0)] = 1; }", 1, "is OpenCL"),
        ("k.py", "import torch\n\n@triton.jit\ndef k(x): pass\n", 3, "is a kernel of Triton"),
        ("k.py", "from numba import cuda\n@cuda.jit\ndef k(x): pass\n", 2, "of Numba"),
        ("k.cu", f"#include <hip/hip_runtime.h>\n{KERNEL}int main() {{ hipMalloc(0, 4); }}\n", 1,
         "is HIP"),
        ("k.metal", "kernel void k() {}", None, "is Metal"),
        ("k.ptx", ".version 8.5\n.target sm_90\n", 1, "is PTX"),
    ],
)  # fmt: skip
def test_a_file_in_another_language_is_told_with_what_to_do(
    tmp_path: Path, name: str, text: str, line: int | None, what: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(KernelError) as told:
        read_source(tmp_path / name)
    assert what in told.value.message
    assert told.value.line == line
    assert told.value.remedy


def test_a_file_in_hip_is_read_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "k.hip"
    path.write_text(f"#include <hip/hip_runtime.h>\n{KERNEL}int main() {{ hipMalloc(0, 4); }}\n")
    assert read_source(path).kernels[0].name == "k"


def test_a_cuda_file_that_is_built_for_amd_as_well_is_cuda(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(f"#ifdef USE_ROCM\n#include <hip/hip_runtime.h>\n#endif\n{KERNEL}")
    assert read_source(path).kernels[0].name == "k"


@pytest.mark.parametrize(
    ("parameter", "what"),
    [
        ("const __grid_constant__ CUtensorMap map", "a CUtensorMap"),
        ("cudaTextureObject_t picture", "a texture or surface"),
        ("torch::PackedTensorAccessor32<float, 2> x", "an accessor of PyTorch"),
        ("curandStatePhilox4_32_10_t* states", "the state of random numbers"),
    ],
)
def test_an_argument_that_no_search_space_can_hold_is_told(parameter: str, what: str) -> None:
    source = parse_source(f"\n__global__ void k(float* y, {parameter}) {{}}\n", Path("k.cu"))
    with pytest.raises(KernelError, match=f"kernel 'k' takes {what}") as told:
        require_arguments(source.kernels[0])
    assert told.value.line == 2
    assert told.value.remedy


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("x[0] = curand_uniform(&state);", "draws random numbers"),
        ("auto g = cg::this_grid();\n  g.sync();", "waits for all blocks of the grid"),
        ("x[0] = tex2D<float>(picture, 0, 0);", "uses a texture"),
        ("if (threadIdx.x == 0) other<<<1, 32>>>(x);", "launches a kernel from the device"),
    ],
)
def test_device_code_that_cannot_be_tuned_is_told_with_its_line(row: str, what: str) -> None:
    with pytest.raises(KernelError, match=what) as told:
        require_body("k", Path("k.cu"), 3, f"__global__ void k(float* x) {{\n  {row}\n}}")
    assert told.value.line == 4
    assert told.value.remedy


def test_a_block_by_the_name_that_the_grid_had_may_be_waited_for() -> None:
    body = "auto g = cg::this_grid(); int i = g.thread_rank();"
    body += " { auto g = cg::this_thread_block(); g.sync(); }"
    require_body("k", Path("k.cu"), 3, f"__global__ void k(float* x) {{ {body} }}")


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("void f() {\n  if (x) {\n}\n", 1, "`{` is never closed"),
        ("void f() {\n  g(1;\n}\n", 2, "`(` is never closed"),
        ("void f() {\n}\n}\n", 3, "`}` opens nowhere"),
    ],
)
def test_a_bracket_without_its_other_half_has_its_line(text: str, line: int, what: str) -> None:
    with pytest.raises(KernelError, match=re.escape(what)) as told:
        require_closed(Path("k.cu"), text)
    assert told.value.line == line


def test_branches_that_each_open_a_bracket_are_fine() -> None:
    text = "#ifdef A\nvoid f(int x) {\n#else\nvoid f() { // (\n#endif\n  g(')');\n}\n"
    require_closed(Path("k.cu"), text)
