"""Arrays that others point into, and parameters that cannot change alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.draft.drafting import draft
from tuner.source import parse_source


def drafted(parameters: str, body: str, host: str = "k<<<n, 64>>>(y, x, at, d)") -> str:
    text = (
        f"{parameters}__global__ void k(float* y, const float* x, const int* at, int d)\n"
        f"{{ {body} }}\n"
        f"void f(float* y, float* x, int* at, int n, int d) {{ {host}; }}\n"
    )
    return draft(parse_source(text, Path("k.cu"))).space_yaml


LOOP = "for (int c = threadIdx.x; c < d; c += blockDim.x)"


@pytest.mark.parametrize(
    "row",
    [
        "const int row = at[blockIdx.x];",
        "const int64_t row = (int64_t)__ldg(at + blockIdx.x);",
        "const int* mine = at + blockIdx.x; const int row = mine[0];",
    ],
)
def test_what_indices_point_into_has_an_axis_of_its_own(row: str) -> None:
    text = drafted("", f"{row} {LOOP} y[blockIdx.x * d + c] = x[row * d + c];")
    assert "name: x, dtype: float32, shape: [at_below, d], role: input}  # guessed: " in text
    assert "axes: [d, n, at_below]" in text
    assert "role: input, fill: indices(at_below)}  # guessed: " in text
    assert "min_bytes: n * d * 4 + n * 4  #" in text


def test_what_is_written_where_others_point_keeps_the_rest() -> None:
    text = drafted("", f"{LOOP} y[at[blockIdx.x] * d + c] = x[blockIdx.x * d + c];")
    assert "name: y, dtype: float32, shape: [at_below, d], role: inout}  # guessed: " in text
    assert "fill: distinct(at_below)}" in text


SPARSE = (
    "__global__ void spmv(const int* start, const int* column, const float* value, const float* x,"
    " float* y, int rows) {\n"
    "int row = blockIdx.x * blockDim.x + threadIdx.x;\nif (row >= rows) return;\n"
    "float sum = 0;\nBODY\ny[row] = sum; }\n"
    "void f(const int* s, const int* c, const float* v, const float* x, float* y, int rows)\n"
    "{ spmv<<<(rows + 127) / 128, 128>>>(s, c, v, x, y, rows); }\n"
)


@pytest.mark.parametrize(
    "body",
    [
        "for (int i = start[row]; i < start[row + 1]; ++i) sum += value[i] * x[column[i]];",
        "const int from = start[row], to = start[row + 1];\n"
        "for (int i = from; i < to; i++) { sum += value[i] * x[column[i]]; }",
        "int end = start[1 + row];\n"
        "for (int i = start[row]; i < end; i += 1) sum += value[i] * __ldg(x + column[i]);",
    ],
)
def test_segments_have_one_beginning_more_and_run_over_an_axis_of_their_own(body: str) -> None:
    space = draft(parse_source(SPARSE.replace("BODY", body), Path("k.cu"))).space_yaml
    assert "axes: [rows, column_below, start_last]" in space
    for name, told in (
        ("start", "int32, shape: [rows + 1], role: input, fill: offsets(start_last)}"),
        ("column", "int32, shape: [start_last], role: input, fill: indices(column_below)}"),
        ("value", "float32, shape: [start_last], role: input"),
        ("x", "float32, shape: [column_below], role: input"),
        ("y", "float32, shape: [rows], role: output"),
    ):
        assert f"name: {name}, dtype: {told}" in space
    assert "min_bytes: (rows + 1) * 4 + start_last * 8 + rows * 4  #" in space


def test_what_is_read_at_one_place_alone_begins_no_segments() -> None:
    body = "for (int i = 0; i < start[row]; ++i) sum += x[i];"
    space = draft(parse_source(SPARSE.replace("BODY", body), Path("k.cu"))).space_yaml
    assert "start_last" not in space
    assert "offsets(" not in space


COUNTED = "for (int i = threadIdx.x; i < n; i += blockDim.x)"


@pytest.mark.parametrize(
    ("declared", "bins"),
    [
        ("extern __shared__ unsigned counts[];", "bins"),
        ("__shared__ unsigned counts[256];", "256"),
        ("__shared__ unsigned counts[bins * 2], others[7];", "bins * 2"),
        ("unsigned counts[16] = {};", "16"),
    ],
)
def test_what_counts_in_an_array_of_the_kernel_s_own_is_below_its_size(
    declared: str, bins: str
) -> None:
    text = (
        "__global__ void k(const int* value, int n, unsigned* out, int bins) {{\n"
        f"{declared}\n"
        "for (int i = threadIdx.x; i < bins; i += blockDim.x) counts[i] = 0;\n"
        f"{COUNTED} atomicAdd(&counts[value[i]], 1u);\n"
        "for (int i = threadIdx.x; i < bins; i += blockDim.x) atomicAdd(&out[i], counts[i]);\n}\n"
        "void f(const int* value, int n, unsigned* out, int bins)\n"
        "{ k<<<1, 256, bins * sizeof(unsigned)>>>(value, n, out, bins); }\n"
    )
    space = draft(parse_source(text, Path("k.cu"))).space_yaml
    (line,) = (one for one in space.splitlines() if "name: value," in one)
    assert f"role: input, fill: indices({bins})}}  # guessed: " in line
    assert "points into counts, line 4" in line
    assert "name: counts" not in space


@pytest.mark.parametrize(
    ("value", "size", "below"),
    [
        ("unsigned char", 256, 256),
        ("unsigned char", 64, 64),
        ("unsigned char", 1024, 256),
        ("signed char", 256, 128),
        ("unsigned short", 1024, 1024),
    ],
)
def test_bytes_and_shorts_point_as_far_as_they_reach(value: str, size: int, below: int) -> None:
    text = (
        f"__global__ void k(const {value}* value, int n, unsigned* out) {{\n"
        f"__shared__ unsigned counts[{size}];\n"
        f"{COUNTED} atomicAdd(&counts[value[i]], 1u);\n"
        f"for (int i = threadIdx.x; i < {size}; i += blockDim.x) out[i] = counts[i];\n}}\n"
    )
    space = draft(parse_source(text, Path("k.cu"))).space_yaml
    assert f"role: input, fill: indices({below})}}" in space


def test_what_a_byte_points_into_has_as_many_rows_as_it_can_reach() -> None:
    text = (
        "__global__ void k(const unsigned char* x, const float* table, float* out, int n) {\n"
        f"{COUNTED} out[i] = table[x[i]];\n}}\n"
    )
    space = draft(parse_source(text, Path("k.cu"))).space_yaml
    assert "{name: x, dtype: uint8, shape: [n], role: input, fill: indices(256)}" in space
    assert "{name: table, dtype: float32, shape: [256], role: input}" in space
    assert "axes: [n]" in space


@pytest.mark.parametrize(
    ("zeroed", "line"),
    [
        ("cudaMemset(out, 0, bins * 4);", 3),
        ("unsigned* held = out; cudaMemsetAsync(held, 0, bins * 4, 0); out = held;", 3),
        ("cudaMemset(out, 255, bins * 4);", 0),
        ("cudaMemset(other, 0, bins * 4);", 0),
    ],
)
def test_what_host_code_sets_to_zeros_holds_zeros(zeroed: str, line: int) -> None:
    text = (
        f"__global__ void k(const int* value, int n, unsigned* out, int bins) {{\n"
        f"{COUNTED} atomicAdd(&out[value[i]], 1u); }}\n"
        f"void f(const int* value, int n, unsigned* out, int bins) {{ {zeroed}\n"
        "k<<<1, 256>>>(value, n, out, bins); }\n"
    )
    space = draft(parse_source(text, Path("k.cu"))).space_yaml
    (found,) = (one for one in space.splitlines() if "name: out," in one)
    assert "role: inout" in found
    assert ("fill: zeros}  # guessed: " in found) == bool(line)
    assert (f"set to 0 in line {line}" in found) == bool(line)


@pytest.mark.parametrize(
    ("added", "in_any_order"),
    [
        ("atomicAdd(out, x[i]);", True),
        ("atomicAdd(reinterpret_cast<int*>(out), 1);", True),  # whatever it is taken for
        ("add(&out[0], x[i]);", True),
        ("atomicMax(reinterpret_cast<int*>(out), __float_as_int(x[i]));", False),
        ("out[i] += x[i];", False),
        ("atomicAdd(count, 1u); out[i] = x[i];", False),
    ],
)
def test_a_float_that_atomics_add_to_need_not_repeat_its_bits(
    added: str, in_any_order: bool
) -> None:
    text = (
        "__device__ void add(float* to, float value) { atomicAdd(to, value); }\n"
        "__global__ void k(const float* x, int n, float* out, unsigned* count) {\n"
        f"{COUNTED} {{ {added} }} }}\n"
        "void f(const float* x, int n, float* out, unsigned* count)\n"
        "{ k<<<1, 256>>>(x, n, out, count); }\n"
    )
    space = draft(parse_source(text, Path("k.cu"))).space_yaml
    (found,) = (one for one in space.splitlines() if "name: out," in one)
    assert ("deterministic: false}" in found) == in_any_order
    assert ("added to by atomics in any order, line " in found) == in_any_order
    assert space.count("deterministic") == in_any_order


def test_what_a_caller_sets_to_zeros_holds_zeros() -> None:
    text = (
        f"__global__ void k(const int* value, int n, unsigned* out) {{\n"
        f"{COUNTED} atomicAdd(&out[value[i]], 1u); }}\n"
        "void g(const int* v, int n, unsigned* o) { k<<<1, 256>>>(v, n, o); }\n"
        "void f(const int* v, int n, unsigned* sums) { cudaMemset(sums, 0, 64); g(v, n, sums); }\n"
    )
    space = draft(parse_source(text, Path("k.cu"))).space_yaml
    (found,) = (one for one in space.splitlines() if "name: out," in one)
    assert "fill: zeros}" in found
    assert "set to 0 in line 4" in found


@pytest.mark.parametrize(
    ("head", "declared"),
    [
        ("", "extern __shared__ unsigned counts[];"),
        ("constexpr int BINS = 64;\n", "__shared__ unsigned counts[BINS];"),
    ],
    ids=["nothing says it", "it is a choice"],
)
def test_an_array_of_the_kernel_s_own_of_no_fixed_size_bounds_no_index(
    head: str, declared: str
) -> None:
    text = (
        f"{head}__global__ void k(const int* value, int n, unsigned* out) {{\n{declared}\n"
        f"{COUNTED} counts[value[i]] = 1;\n"
        f"{COUNTED} out[i] = counts[value[i]];\n}}\n"
        "void f(const int* value, int n, unsigned* out) { k<<<1, 256, 4096>>>(value, n, out); }\n"
    )
    space = draft(parse_source(text, Path("k.cu"))).space_yaml
    assert "indices(" not in space
    assert "fill: uniform(0, 8)}  # guessed: " in space
    assert "a guess: an index in line " in space


def test_a_tile_of_the_grid_covers_the_array_and_its_size_adapts_the_grid() -> None:
    body = "const int base = blockIdx.x * TILE * 2; y[base + threadIdx.x] = x[base + threadIdx.x];"
    text = drafted("constexpr int TILE = 128;\n", body, "k<<<(n + 255) / 256, 64>>>(y, x, at, n)")
    assert "shape: [d]" in text or "shape: [n]" in text


def test_a_product_of_two_numbers_that_sizes_a_tile_adapts_the_grid() -> None:
    body = (
        "const int base = blockIdx.x * THREADS * ITEMS;"
        " for (int i = 0; i < ITEMS; ++i) y[base + i] = x[base + i];"
    )
    head = "#define THREADS 256\n#define ITEMS 4\n"
    text = drafted(head, body, "k<<<(n + 1023) / 1024, THREADS>>>(y, x, at, n)")
    assert 'grid: ["ceil_div(d, threads * items)"]' in text.partition("\nlaunch:")[2]


def test_what_is_passed_as_a_quotient_of_a_parameter_leaves_it_alone() -> None:
    text = drafted(
        "template <int VEC> ",
        f"{LOOP} y[(blockIdx.x * d + c) * VEC] = x[c];",
        "constexpr int VEC = 4; k<VEC><<<n, 64>>>(y, x, at, d / VEC)",
    )
    assert "# VEC = 4 (line 1) is left out: the launch passes what is computed with it" in text
    assert "shape: [n, d, 4]" in text
