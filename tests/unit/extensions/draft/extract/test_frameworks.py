"""Names of PyTorch, CUB and CUDA in sources of their style: the unit compiles on both compilers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.compiler.base import CompileRequest
from tuner.compiler.cache import Cache
from tuner.compiler.pool import NvrtcPool
from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.draft.drafting import draft_source
from tuner.extensions.draft.extract.extraction import Extraction, Wanted, extract
from tuner.extensions.draft.extract.failures import failure
from tuner.model.errors import KernelError

DATA = Path(__file__).parent / "data/frameworks"


@pytest.fixture(scope="module")
def pool() -> Iterator[NvrtcPool]:
    with NvrtcPool(1, cache=Cache()) as compiler:
        yield compiler


@pytest.fixture(scope="module")
def host() -> Iterator[HostCompiler]:
    compiler = HostCompiler(1, cache=Cache())
    yield compiler
    compiler.close()


def source_of(name: str) -> str:
    return (DATA / f"{name}.cu").read_text(encoding="utf-8")


def extracted(folder: Path, text: str) -> Extraction:
    path = folder / "source.cu"
    path.write_text(text)
    return extract(path, folder / "unit.cu")


def errors_of(unit: Extraction, *compilers: NvrtcPool | HostCompiler) -> list[str]:
    request = CompileRequest(unit.unit, unit.names, "sm_90a")
    results = [compiler.submit(request).result() for compiler in compilers]
    return [result.error for result in results if not result.ok]


def space_of(folder: Path, pool: NvrtcPool) -> str:
    made = draft_source(folder / "source.cu", folder, compiler=lambda: pool)
    assert made.space is not None
    return made.space.read_text()


@pytest.mark.parametrize(
    "name",
    [
        "traits",
        "native",
        "helped",
        "helped, older",
        "overlapped",
        "stated",
        "made",
        "dialect",
        "special",
    ],
)
def test_a_unit_of_a_framework_compiles_for_the_gpu_and_for_the_cpu(
    tmp_path: Path, pool: NvrtcPool, host: HostCompiler, name: str
) -> None:
    text = source_of(name.removesuffix(", older"))
    if name.endswith("older"):
        text = text.replace("CUB_VERSION >= 200800", "0")
    unit = extracted(tmp_path, text)
    assert errors_of(unit, pool, host) == [], unit.unit


def test_one_of_two_definitions_is_left_where_types_of_pytorch_and_cuda_become_one(
    pool: NvrtcPool, host: HostCompiler, tmp_path: Path
) -> None:
    path = tmp_path / "leaky.cu"
    path.write_text(source_of("computing"))
    made = draft_source(path, tmp_path, compiler=lambda: pool)
    assert "instantiation: leaky_kernel<__half>" in made.notes
    unit = (tmp_path / "kernels/leaky.cu").read_text()
    for compiler in (pool, host):
        request = CompileRequest(unit, ("leaky_kernel<__half>",), "sm_90a")
        assert not compiler.submit(request).result().error


def test_only_the_stand_ins_that_a_kernel_uses_come_along(tmp_path: Path) -> None:
    unit = extracted(tmp_path, source_of("native")).unit
    assert "WarpReduceMax" in unit
    assert "WarpReduceSum" not in unit
    assert "load_vector" not in unit
    assert "stand_ins" not in unit


def test_a_definition_of_the_projects_own_comes_before_ours(tmp_path: Path) -> None:
    own = (
        "template <typename To, typename From>\n__device__ To scalar_cast(From x) { return To(x); }"
    )
    kernel = "__global__ void k(float* x) { *x = scalar_cast<float>(1); }\n"
    unit = extracted(tmp_path, f"#include <torch/extension.h>\n{own}\n{kernel}").unit
    assert unit.count("scalar_cast(") == 1


def test_a_name_has_one_stand_in_within_the_namespace_that_has_its_own(
    tmp_path: Path, pool: NvrtcPool
) -> None:
    kernel = (
        "template <typename T> __global__ void k(T* x) { *x = scalar_cast<T>(1.f); }\n"
        "void run(float* x) { k<float><<<1, 1>>>(x); }\n"
    )
    kernel = f"namespace at {{ namespace native {{ namespace {{\n{kernel}}}}}}}\n"
    unit = extracted(tmp_path, f"#include <ATen/ATen.h>\n{kernel}")
    assert unit.unit.count("To scalar_cast(") == 1
    assert errors_of(unit, pool) == []


def test_an_alias_in_a_struct_that_is_opened_is_what_it_stands_for(tmp_path: Path) -> None:
    unit = extracted(tmp_path, source_of("overlapped"))
    declared = [one.declaration for one in unit.source.kernel("double_kernel").parameters]
    assert declared[2] == "int64_t row_stride"


def test_members_of_a_base_come_first_and_a_type_of_the_kernels_own_is_spelled_out(
    tmp_path: Path,
) -> None:
    declared = [one.name for one in extracted(tmp_path, source_of("traits")).opened[0].members]
    assert declared == ["row_stride", "columns", "x_ptr", "out_stride", "out_ptr"]
    types = [one.c_type for one in extracted(tmp_path, source_of("traits")).opened[0].members]
    assert types[:2] == ["uint32_t", "int"]
    assert types[4] == "typename Ktraits::input_t* __restrict__"


def test_a_text_in_a_macro_that_makes_a_kernel_is_kept(tmp_path: Path) -> None:
    unit = extracted(tmp_path, source_of("stated")).unit
    assert 'static_assert(128 % 4 == 0, "a width, in fours; not " "");' in unit
    assert 'printf("copied {%d}, of "' in unit


def test_arithmetic_of_16_bit_floats_with_others_is_added_where_a_unit_needs_it(
    tmp_path: Path, pool: NvrtcPool, host: HostCompiler
) -> None:
    unit = extracted(tmp_path, source_of("mixed"))
    (error,) = errors_of(unit, pool)
    assert "more than one operator" in error
    assert failure(unit, error).is_mixed
    mixed = extract(tmp_path / "source.cu", tmp_path / "unit.cu", Wanted(mixed=True))
    assert errors_of(mixed, pool, host) == []


def test_an_accessor_becomes_a_pointer_and_sizes(tmp_path: Path, pool: NvrtcPool) -> None:
    unit = extracted(tmp_path, source_of("cell"))
    code = " ".join(unit.unit.split())
    assert "scalar_t* __restrict__ gates, int gates_n0, int gates_n1, int gates_n2" in code
    assert "int64_t* order, int64_t order_n0" in code
    assert "if (c < gates_n2)" in code
    assert "out[order[n] * out_n1 + c]".replace("order[n]", "(order[n])") in code
    assert "gates[(n * gates_n1 + 1) * gates_n2 + c]" in code
    assert unit.names == ("gate_kernel<float>",)
    assert errors_of(unit, pool) == []
    text = space_of(tmp_path, pool)
    assert (
        "{name: gates, dtype: float32, shape: [gates_n0, gates_n1, gates_n2], role: input}" in text
    )
    assert "{name: out, dtype: float32, shape: [out_n0, out_n1], role:" in text


def test_an_accessor_that_is_handed_on_stays_and_is_told(tmp_path: Path) -> None:
    text = source_of("cell").replace("gates[n][0][c] /", "first(gates, n, c) /")
    with pytest.raises(KernelError, match="takes an accessor of PyTorch"):
        extracted(tmp_path, text)


def test_a_half_is_added_to_a_float_and_converted_by_name(tmp_path: Path, pool: NvrtcPool) -> None:
    (tmp_path / "source.cu").write_text(source_of("summed"))
    assert "sums<__half>" in space_of(tmp_path, pool)


def test_prototypes_of_other_overloads_are_left_out(tmp_path: Path, pool: NvrtcPool) -> None:
    text = (
        '#include "kit.h"\n'
        "__global__ void shift(float* y, const float* x, int n) { y[n] = x[n]; }\n"
        "template <typename T> __global__ void shift(T* y, const T* x, T by, int n);\n"
        "template <> __global__ void shift<float>(float* y, const float* x, float by, int n) {}\n"
        "void run(float* y, float* x) { shift<<<1, 32>>>(y, x, 4); }\n"
    )
    (tmp_path / "kit.h").write_text("")
    unit = extracted(tmp_path, text)
    assert unit.unit.count("__global__") == 1
    assert errors_of(unit, pool) == []


def test_a_macros_loop_over_the_grid_is_written_out(tmp_path: Path) -> None:
    text = (
        '#include "loops.h"\n'
        "__global__ void twice(int n, const float* x, float* y) {\n"
        "  EACH(i, n) { y[i] = 2 * x[i]; }\n}\n"
    )
    (tmp_path / "loops.h").write_text(
        "#define EACH(i, n) for (int i = blockIdx.x * blockDim.x + threadIdx.x; \\\n"
        "  i < (n); i += blockDim.x * gridDim.x)\n"
    )
    assert "threadIdx.x; i < (n); i +=" in extracted(tmp_path, text).unit


def test_macros_in_the_head_of_a_host_function_are_written_out(tmp_path: Path) -> None:
    (tmp_path / "kit.h").write_text("#define GRID(a, rows, cols) a[rows][cols]\n#define ROWS 8\n")
    text = (
        "#include <kit.h>\n"
        "__global__ void clear(float* x, int rows) "
        "{ if (threadIdx.x < rows) x[threadIdx.x] = 0; }\n"
        "void run(int rows, float GRID(host, ROWS, rows)) { clear<<<1, 32>>>(x, rows); }\n"
        "int main() { int rows = ROWS; run(rows, x); }\n"
    )
    unit = extracted(tmp_path, text)
    assert "float host[ROWS][rows]" in unit.source.text


def test_a_struct_by_value_becomes_its_members(tmp_path: Path, pool: NvrtcPool) -> None:
    (tmp_path / "source.cu").write_text(
        "struct Rows { int count; float* values; };\n"
        "__global__ void clear(Rows all) "
        "{ if (threadIdx.x < all.count) all.values[threadIdx.x] = 0; }\n"
        "void run(Rows all) { clear<<<1, 32>>>(all); }\n"
    )
    assert "{name: values, dtype: float32, shape: [count], role: output}" in space_of(
        tmp_path, pool
    )


def test_a_frameworks_own_header_that_is_there_needs_no_stand_in(tmp_path: Path) -> None:
    folder = tmp_path / "include" / "ATen"
    folder.mkdir(parents=True)
    (folder / "Numbers.h").write_text(
        "namespace at {\ntemplate <typename T> C10_HOST_DEVICE bool _isnan(T x) "
        "{ return x != x; }\n}\n"
    )
    text = "#include <ATen/Numbers.h>\n"
    text += "__global__ void k(float* x) { if (at::_isnan(x[0])) x[0] = 0; }\n"
    assert extracted(tmp_path, text).unit.count("bool _isnan") == 1


def test_floats_of_8_bits_convert_by_themselves_where_a_unit_needs_it(
    tmp_path: Path, pool: NvrtcPool, host: HostCompiler
) -> None:
    unit = extracted(tmp_path, source_of("small"))
    (error,) = errors_of(unit, pool)
    assert failure(unit, error).is_mixed
    # what limits alone does not bring
    assert "#include <cuda/std/cmath>" in unit.unit
    mixed = extract(tmp_path / "source.cu", tmp_path / "unit.cu", Wanted(mixed=True))
    assert errors_of(mixed, pool, host) == []
