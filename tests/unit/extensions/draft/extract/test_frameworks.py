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
from tuner.extensions.draft.extract.extraction import Extraction, extract
from tuner.extensions.draft.extract.failures import failure
from tuner.model.errors import KernelError


@pytest.fixture(scope="module")
def pool() -> Iterator[NvrtcPool]:
    with NvrtcPool(1, cache=Cache()) as compiler:
        yield compiler


@pytest.fixture(scope="module")
def host() -> Iterator[HostCompiler]:
    compiler = HostCompiler(1, cache=Cache())
    yield compiler
    compiler.close()


def extracted(folder: Path, text: str) -> Extraction:
    path = folder / "source.cu"
    path.write_text(text)
    return extract(path, folder / "unit.cu")


NATIVE = """\
#include <ATen/ATen.h>
#include <ATen/AccumulateType.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/native/cuda/block_reduce.cuh>
#include <c10/macros/Macros.h>

namespace at::native {
namespace {

template <typename scalar_t>
C10_LAUNCH_BOUNDS_1(num_threads())
__global__ void row_max_kernel(scalar_t* out, const scalar_t* in, int64_t columns) {
  using opmath_t = at::opmath_type<scalar_t>;
  using Vec = memory::aligned_vector<scalar_t, 4>;
  __shared__ opmath_t shared[C10_WARP_SIZE];
  CUDA_KERNEL_ASSERT(columns % 4 == 0 && "columns, in fours");
  opmath_t most = at::numeric_limits<opmath_t>::lower_bound();
  const Vec* row = reinterpret_cast<const Vec*>(in + blockIdx.x * columns);
  CUDA_KERNEL_LOOP_TYPE(i, columns / 4, int64_t) {
    Vec four = row[i];
    for (scalar_t value : four.val) most = max(most, c10::convert<opmath_t>(value));
  }
  most = cuda_utils::BlockReduceMax(most, shared);
  if (threadIdx.x == 0) out[blockIdx.x] = scalar_cast<scalar_t>(most);
}

}  // namespace

void row_max(const Tensor& in, Tensor& out) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, in.scalar_type(), "row_max", [&] {
    row_max_kernel<scalar_t><<<in.size(0), num_threads(), 0, at::cuda::getCurrentCUDAStream()>>>(
        out.data_ptr<scalar_t>(), in.data_ptr<scalar_t>(), in.size(1));
  });
}

}  // namespace at::native
"""
HELPED = """\
#include <torch/all.h>
#include <c10/cuda/CUDAGuard.h>
#ifndef USE_ROCM
  #include <cub/cub.cuh>
  #if CUB_VERSION >= 200800
    #include <cuda/std/functional>
using AddOp = cuda::std::plus<>;
  #else
using AddOp = cub::Sum;
  #endif
#else
  #include <hipcub/hipcub.hpp>
namespace cub = hipcub;
#endif
#include <cstdint>

template <typename scalar_t>
__global__ void sum_squares_kernel(float* __restrict__ out, const scalar_t* __restrict__ x,
                                   const int64_t width) {
  using BlockReduce = cub::BlockReduce<float, 1024>;
  __shared__ typename BlockReduce::TempStorage storage;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float value = static_cast<float>(x[blockIdx.x * width + i]);
    sum += value * value;
  }
  sum = BlockReduce(storage).Reduce(sum, AddOp{}, blockDim.x);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

void sum_squares(torch::Tensor& out, torch::Tensor& x) {
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  sum_squares_kernel<c10::BFloat16><<<x.size(0), 256>>>(
      out.data_ptr<float>(), x.data_ptr<c10::BFloat16>(), x.size(1));
}
"""
OLDER = HELPED.replace("CUB_VERSION >= 200800", "0")
OVERLAPPED = """\
#include <cutlass/util/packed_stride.hpp>
#include <cstdint>

struct Params {
  using index_t = int64_t;
  const float* __restrict__ x;
  float* __restrict__ out;
  index_t row_stride;
  uint columns;
};

__global__ void double_kernel(const Params params) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  const Params::index_t start = blockIdx.x * params.row_stride;
  for (uint c = threadIdx.x; c < params.columns; c += blockDim.x)
    params.out[start + c] = 2.0f * params.x[start + c];
  cudaTriggerProgrammaticLaunchCompletion();
}

void run(Params params, int rows, cudaStream_t stream) {
  double_kernel<<<rows, 128, 0, stream>>>(params);
}
"""
STATED = """\
#include <torch/extension.h>

#define DEFINE_COPY(T, N)                                                              \\
  __global__ void copy_##T(T* out, const T* in) {                                      \\
    static_assert(N % 4 == 0, "a width, in fours; not " #N);                           \\
    if (threadIdx.x == 0) printf("copied {%d}, of " #T "\\n", N);                       \\
    out[blockIdx.x * N + threadIdx.x] = in[blockIdx.x * N + threadIdx.x];              \\
  }
DEFINE_COPY(float, 128)

void copy(torch::Tensor out, torch::Tensor in) {
  copy_float<<<8, 128>>>(out.data_ptr<float>(), in.data_ptr<float>());
}
"""


TRAITS = """\
#include <c10/util/BFloat16.h>
#include <cub/block/block_load.cuh>
#include <cub/block/block_store.cuh>

struct BaseParams {
  using index_t = uint32_t;
  index_t row_stride;
  int columns;
  void* __restrict__ x_ptr;
};

struct GeluParams : public BaseParams {
  index_t out_stride;
  void* __restrict__ out_ptr;
};

template <int kNThreads_, typename input_t_>
struct Gelu_kernel_traits {
  using input_t = input_t_;
  static constexpr int kNThreads = kNThreads_;
  static constexpr int kNElts = 4;
  using Load = cub::BlockLoad<input_t, kNThreads, kNElts, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
  using Store = cub::BlockStore<input_t, kNThreads, kNElts, cub::BLOCK_STORE_WARP_TRANSPOSE>;
};

template <typename Ktraits>
__global__ __launch_bounds__(Ktraits::kNThreads) void gelu_kernel(GeluParams params) {
  using input_t = typename Ktraits::input_t;
  constexpr int kNElts = Ktraits::kNElts;
  extern __shared__ char smem_[];
  auto& load = reinterpret_cast<typename Ktraits::Load::TempStorage&>(smem_);
  auto& store = reinterpret_cast<typename Ktraits::Store::TempStorage&>(smem_);
  input_t* x = reinterpret_cast<input_t*>(params.x_ptr) + blockIdx.x * params.row_stride;
  input_t* out = reinterpret_cast<input_t*>(params.out_ptr) + blockIdx.x * params.out_stride;
  input_t values[kNElts];
  typename Ktraits::Load(load).Load(x, values, params.columns, input_t(0.f));
  for (int i = 0; i < kNElts; ++i) {
    const float value = float(values[i]);
    values[i] = input_t(0.5f * value * (1.0f + erff(value * float(M_SQRT1_2))));
  }
  __syncthreads();
  typename Ktraits::Store(store).Store(out, values, params.columns);
}

void gelu(GeluParams& params, int rows, cudaStream_t stream) {
  using Traits = Gelu_kernel_traits<128, at::BFloat16>;
  gelu_kernel<Traits><<<rows, Traits::kNThreads, 8192, stream>>>(params);
}
"""


MADE = """\
#include <torch/headeronly/util/Float8_e4m3fnuz.h>
#include <cmath>

template <typename T>
struct Named {};

#define ALSO(OTHER) static __device__ T of(const OTHER& x) { return static_cast<T>(x); } \\
  static_assert(true)
#define NAMED(TYPE, ...)                   \\
  template <>                              \\
  struct Named<TYPE> {                     \\
    using T = TYPE;                        \\
    static constexpr bool is_named = true; \\
    __VA_ARGS__                            \\
  }

#define EVERYWHERE C10_HOST_DEVICE
template <typename T>
EVERYWHERE static constexpr bool is_wide = sizeof(T) > 4;

NAMED(double);
NAMED(float, static_assert(true); ALSO(double); ALSO(int););
#undef NAMED

template <typename T>
struct Least { static constexpr float value = float{-INFINITY}; };
template <>
struct Least<torch::headeronly::Float8_e4m3fnuz> { static constexpr float value = -240.0f; };

__global__ void floor_kernel(float* out, const double* x, int n) {
  static_assert(Named<double>::is_named && Named<float>::is_named && is_wide<double>);
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const c10::Half one = c10::Half(static_cast<uint16_t>(0x3c00), c10::Half::from_bits());
  if (i < n) out[i] = max(Named<float>::of(x[i]), Least<float>::value) * static_cast<float>(one);
}

void floored(float* out, const double* x, int n) {
  floor_kernel<<<(n + 255) / 256, 256>>>(out, x, n);
}
"""

# what nvcc with a host compiler knows: GNU's dialect, and what C++17 took out of <functional>
DIALECT = """\
#include <functional>
#include <torch/extension.h>

namespace kit {}
namespace kit::maths {
using namespace kit;
}  // namespace kit::maths

namespace kit {
template <typename To, typename From>
struct Cast : public std::unary_function<From, To> {
  __host__ __device__ To operator()(From value) const { return static_cast<To>(value); }
};

__extension__ typedef struct {
  __extension__ union {
    struct { half scale, sum; } parts;
    half2 both;
  } head;
  int8_t codes[32];
} Block;
}  // namespace kit

namespace kit::maths {
__device__ float scaled(const Block& block, int i) {
  return Cast<float, half>()(block.head.parts.scale) * block.codes[i];
}
}  // namespace kit::maths

__global__ void unpack(const kit::Block* blocks, float* out) {
  out[blockIdx.x * 32 + threadIdx.x] = kit::maths::scaled(blocks[blockIdx.x], threadIdx.x);
}
"""

# specialisations that a macro makes, of code that it is passed, for PyTorch's type and CUDA's
SPECIAL = """\
#include <cuda_fp16.h>
#include <torch/extension.h>

using at::Half;

template <typename T, int N>
struct Wide;
template <typename To, typename From>
struct Changed;

#define WIDE(T, N, AS, PARAMETERS...) \\
  template <PARAMETERS>               \\
  struct Wide<T, N> {                 \\
    using Type = AS;                  \\
  };
#define CHANGED(TO, FROM, BODY) \\
  template <>                   \\
  struct Changed<TO, FROM> {    \\
    __device__ TO operator()(FROM value) BODY \\
  };

WIDE(T, 1, T, typename T)
WIDE(at::Half, 2, half2)
WIDE(half, 2, half2);
CHANGED(float2, half2, {
#if __CUDA_ARCH__ < 530
  assert(false && "no halves");
#endif
  const float2 both = __half22float2(value);
  return make_float2(both.x, both.y);
})

#undef WIDE
#undef CHANGED

template <typename T>
__global__ void halves(const T* x, float2* out) {
  using Two = typename Wide<T, 2>::Type;
  out[threadIdx.x] = Changed<float2, Two>()(reinterpret_cast<const Two*>(x)[threadIdx.x]);
}

void run(torch::Tensor x, torch::Tensor out) {
  halves<at::Half><<<1, 256>>>(x.data_ptr<at::Half>(), (float2*)out.data_ptr<float>());
}
"""


@pytest.mark.parametrize(
    "text",
    [TRAITS, NATIVE, HELPED, OLDER, OVERLAPPED, STATED, MADE, DIALECT, SPECIAL],
    ids=[
        *("traits", "native", "helped", "older", "overlapped", "stated"),
        *("made", "dialect", "special"),
    ],
)
def test_a_unit_of_a_framework_compiles_for_the_gpu_and_for_the_cpu(
    tmp_path: Path, pool: NvrtcPool, host: HostCompiler, text: str
) -> None:
    unit = extracted(tmp_path, text)
    for compiler in (pool, host):
        request = CompileRequest(unit.unit, unit.names, "sm_90a")
        assert not compiler.submit(request).result().error, unit.unit


COMPUTING = """\
#include <torch/extension.h>
#include <cuda_fp16.h>

template <typename T> struct Pair;
template <> struct Pair<__half> { using Type = __half2; };
template <> struct Pair<torch::headeronly::Half> { using Type = __half2; };

template <typename scalar_t>
__global__ void leaky_kernel(scalar_t* y, const scalar_t* x, float slope, int n) {
  static_assert(sizeof(typename Pair<scalar_t>::Type) == 4, "two of them");
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  scalar_t value = x[i];
  value += 1;
  if (value < 0 || !(value > 0.5f)) value = value * slope - 2 * value;
  y[i] = -value;
}

void leaky(torch::Tensor y, torch::Tensor x, double slope) {
  AT_DISPATCH_SWITCH(x.scalar_type(), "leaky", AT_DISPATCH_CASE(at::ScalarType::Half, [&] {
    leaky_kernel<scalar_t><<<(x.numel() + 255) / 256, 256>>>(
        y.data_ptr<scalar_t>(), x.data_ptr<scalar_t>(), slope, x.numel());
  }));
}
"""


def test_one_of_two_definitions_is_left_where_types_of_pytorch_and_cuda_become_one(
    pool: NvrtcPool, host: HostCompiler, tmp_path: Path
) -> None:
    path = tmp_path / "leaky.cu"
    path.write_text(COMPUTING)
    made = draft_source(path, tmp_path, compiler=lambda: pool)
    assert "instantiation: leaky_kernel<__half>" in made.notes
    unit = (tmp_path / "kernels/leaky.cu").read_text()
    for compiler in (pool, host):
        request = CompileRequest(unit, ("leaky_kernel<__half>",), "sm_90a")
        assert not compiler.submit(request).result().error


def test_only_the_stand_ins_that_a_kernel_uses_come_along(tmp_path: Path) -> None:
    unit = extracted(tmp_path, NATIVE).unit
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


def test_an_alias_in_a_struct_that_is_opened_is_what_it_stands_for(tmp_path: Path) -> None:
    unit = extracted(tmp_path, OVERLAPPED)
    declared = [one.declaration for one in unit.source.kernel("double_kernel").parameters]
    assert declared[2] == "int64_t row_stride"


def test_members_of_a_base_come_first_and_a_type_of_the_kernels_own_is_spelled_out(
    tmp_path: Path,
) -> None:
    declared = [one.name for one in extracted(tmp_path, TRAITS).opened[0].members]
    assert declared == ["row_stride", "columns", "x_ptr", "out_stride", "out_ptr"]
    types = [one.c_type for one in extracted(tmp_path, TRAITS).opened[0].members]
    assert types[:2] == ["uint32_t", "int"]
    assert types[4] == "typename Ktraits::input_t* __restrict__"


def test_a_text_in_a_macro_that_makes_a_kernel_is_kept(tmp_path: Path) -> None:
    unit = extracted(tmp_path, STATED).unit
    assert 'static_assert(128 % 4 == 0, "a width, in fours; not " "");' in unit
    assert 'printf("copied {%d}, of "' in unit


MIXED = """#include <c10/cuda/CUDAMathCompat.h>
#include <torch/extension.h>

template <typename scalar_t>
__global__ void lerp_kernel(const scalar_t* a, const scalar_t* b, scalar_t* out, float w, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n || a[i] == 0.5f) return;
  out[i] = a[i] * (1.0f - w) + 2 * b[i] / c10::cuda::compat::exp(w);
}

void lerp(torch::Tensor a, torch::Tensor b, torch::Tensor out, float w) {
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(a.type(), "lerp", ([&] {
    lerp_kernel<scalar_t><<<1, 64>>>(
        a.data<scalar_t>(), b.data<scalar_t>(), out.data<scalar_t>(), w, a.numel());
  }));
}
"""


def test_arithmetic_of_16_bit_floats_with_others_is_added_where_a_unit_needs_it(
    tmp_path: Path, pool: NvrtcPool, host: HostCompiler
) -> None:
    unit = extracted(tmp_path, MIXED)
    request = CompileRequest(unit.unit, unit.names, "sm_90a")
    error = pool.submit(request).result().error
    assert "more than one operator" in error
    assert failure(unit, error).is_mixed
    mixed = extract(tmp_path / "source.cu", tmp_path / "unit.cu", mixed=True)
    for compiler in (pool, host):
        again = CompileRequest(mixed.unit, mixed.names, "sm_90a")
        assert not compiler.submit(again).result().error


CELL = """\
#include <torch/extension.h>
#define ACC2 torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits>

template <typename scalar_t>
__global__ void gate_kernel(const torch::PackedTensorAccessor32<
                                scalar_t, 3, torch::RestrictPtrTraits> gates,
                            const torch::PackedTensorAccessor64<int64_t, 1> order, ACC2 out) {
  const int n = blockIdx.y;  // a row
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < gates.size(2)) {
    out[order[n]][c] = gates[n][0][c] / (scalar_t(1) + exp(-gates[n][1][c]));
  }
}

void gate(torch::Tensor gates, torch::Tensor order, torch::Tensor out) {
  auto out_a = out.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>();
  const dim3 blocks((gates.size(2) + 127) / 128, gates.size(0));
  AT_DISPATCH_FLOATING_TYPES(gates.scalar_type(), "gate", ([&] {
    gate_kernel<scalar_t><<<blocks, 128>>>(
        gates.packed_accessor32<scalar_t, 3, torch::RestrictPtrTraits>(),
        order.packed_accessor64<int64_t, 1>(), out_a);
  }));
}
"""


def test_an_accessor_becomes_a_pointer_and_sizes(tmp_path: Path, pool: NvrtcPool) -> None:
    unit = extracted(tmp_path, CELL)
    code = " ".join(unit.unit.split())
    assert "scalar_t* __restrict__ gates, int gates_n0, int gates_n1, int gates_n2" in code
    assert "int64_t* order, int64_t order_n0" in code
    assert "if (c < gates_n2)" in code
    assert "out[order[n] * out_n1 + c]".replace("order[n]", "(order[n])") in code
    assert "gates[(n * gates_n1 + 1) * gates_n2 + c]" in code
    assert unit.names == ("gate_kernel<float>",)
    assert pool.submit(CompileRequest(unit.unit, unit.names, "sm_90")).result().ok
    path = tmp_path / "source.cu"
    made = draft_source(path, tmp_path, compiler=lambda: pool)
    assert made.space is not None
    text = made.space.read_text()
    assert (
        "{name: gates, dtype: float32, shape: [gates_n0, gates_n1, gates_n2], role: input}" in text
    )
    assert "{name: out, dtype: float32, shape: [out_n0, out_n1], role:" in text


def test_an_accessor_that_is_handed_on_stays_and_is_told(tmp_path: Path) -> None:
    text = CELL.replace("gates[n][0][c] /", "first(gates, n, c) /")
    with pytest.raises(KernelError, match="takes an accessor of PyTorch"):
        extracted(tmp_path, text)


SUMMED = """\
#include <c10/util/Half.h>
#include <cmath>
template <typename T>
__device__ T warp_sum(T value) { return value; }
template <>
__device__ c10::Half warp_sum(c10::Half value) {
  return __shfl_down_sync(0xffffffff, value.operator __half(), 1);
}
template <typename T>
__global__ void sums(const T* x, float* out, int n) {
  float total = 0;
  for (int i = 0; i < n; ++i) total += x[i];
  total += warp_sum(x[0]);
  out[threadIdx.x] = std::asin(total);
}
template __global__ void sums<c10::Half>(const c10::Half*, float*, int);
"""


def test_a_half_is_added_to_a_float_and_converted_by_name(tmp_path: Path, pool: NvrtcPool) -> None:
    (tmp_path / "source.cu").write_text(SUMMED)
    made = draft_source(tmp_path / "source.cu", tmp_path, compiler=lambda: pool)
    assert made.space is not None
    assert "sums<__half>" in made.space.read_text()


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
    assert pool.submit(CompileRequest(unit.unit, unit.names, "sm_90")).result().ok


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
    made = draft_source(tmp_path / "source.cu", tmp_path, compiler=lambda: pool)
    assert made.space is not None
    assert "{name: values, dtype: float32, shape: [count], role: output}" in made.space.read_text()


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


SMALL = """\
#include <torch/extension.h>
#include <cuda/std/limits>
template <typename T> constexpr T most = T{};
template <>
inline constexpr float most<float> = 1.0f;
template <typename T>
__global__ void quantize(T* y, const float* x, const T* other) {
  constexpr T largest = std::numeric_limits<T>::max();
  float const end = other[0] + largest;
  float value = x[threadIdx.x] / end;
  if (cuda::std::isfinite(value))
    y[threadIdx.x] = value > 1.0f ? T(value) : static_cast<T>(other[1]);
}
void run(torch::Tensor y, torch::Tensor x, torch::Tensor o) {
  quantize<<<1, 32>>>(
      y.data_ptr<c10::Float8_e4m3fn>(), x.data_ptr<float>(), o.data_ptr<c10::Float8_e4m3fn>());
}
"""


def test_floats_of_8_bits_convert_by_themselves_where_a_unit_needs_it(
    tmp_path: Path, pool: NvrtcPool, host: HostCompiler
) -> None:
    unit = extracted(tmp_path, SMALL)
    error = pool.submit(CompileRequest(unit.unit, unit.names, "sm_90a")).result().error
    assert failure(unit, error).is_mixed
    # what limits alone does not bring
    assert "#include <cuda/std/cmath>" in unit.unit
    mixed = extract(tmp_path / "source.cu", tmp_path / "unit.cu", mixed=True)
    for compiler in (pool, host):
        again = CompileRequest(mixed.unit, mixed.names, "sm_90a")
        assert not compiler.submit(again).result().error
