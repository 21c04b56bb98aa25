// What kernels use of PyTorch and of older CUBs, written anew: a definition that a unit needs is
// copied into it, unless the project has its own. What macros stand for is in frameworks.h.
#pragma once

namespace c10 {

struct Float8_e4m3fnuz {
  struct from_bits_t {};
  unsigned char x;
  static __host__ __device__ constexpr from_bits_t from_bits() { return {}; }
  __host__ __device__ constexpr Float8_e4m3fnuz(unsigned char bits, from_bits_t) : x(bits) {}
};

struct Float8_e5m2fnuz {
  struct from_bits_t {};
  unsigned char x;
  static __host__ __device__ constexpr from_bits_t from_bits() { return {}; }
  __host__ __device__ constexpr Float8_e5m2fnuz(unsigned char bits, from_bits_t) : x(bits) {}
};

template <typename T>
struct complex {
  using value_type = T;
  T real_ = T(0);
  T imag_ = T(0);
  constexpr complex() = default;
  __host__ __device__ constexpr complex(const T& real, const T& imag = T())
      : real_(real), imag_(imag) {}
  __host__ __device__ constexpr T real() const { return real_; }
  __host__ __device__ constexpr T imag() const { return imag_; }
  __host__ __device__ constexpr complex& operator+=(const complex& other) {
    real_ += other.real_;
    imag_ += other.imag_;
    return *this;
  }
  __host__ __device__ constexpr complex& operator-=(const complex& other) {
    real_ -= other.real_;
    imag_ -= other.imag_;
    return *this;
  }
  __host__ __device__ constexpr complex& operator*=(const complex& other) {
    const T real = real_ * other.real_ - imag_ * other.imag_;
    imag_ = real_ * other.imag_ + imag_ * other.real_;
    real_ = real;
    return *this;
  }
  friend __host__ __device__ constexpr complex operator+(complex a, const complex& b) { return a += b; }
  friend __host__ __device__ constexpr complex operator-(complex a, const complex& b) { return a -= b; }
  friend __host__ __device__ constexpr complex operator*(complex a, const complex& b) { return a *= b; }
  friend __host__ __device__ constexpr bool operator==(const complex& a, const complex& b) {
    return a.real_ == b.real_ && a.imag_ == b.imag_;
  }
};

template <typename T>
struct is_complex { static constexpr bool value = false; };

template <typename T>
struct is_complex<complex<T>> { static constexpr bool value = true; };

template <typename To, typename From>
__host__ __device__ __forceinline__ To convert(From value) { return static_cast<To>(value); }

template <typename T>
__host__ __device__ __forceinline__ T load(const T* from) { return *from; }

template <typename T>
__host__ __device__ constexpr T div_floor_integer(T a, T b) {
  return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}

}  // namespace c10

// Functions of float and of double by one name.
namespace c10::cuda::compat {

template <typename T>
__device__ __forceinline__ T abs(T x) { return ::fabs(x); }

template <typename T>
__device__ __forceinline__ T ceil(T x) { return ::ceil(x); }

template <typename T>
__device__ __forceinline__ T cos(T x) { return ::cos(x); }

template <typename T>
__device__ __forceinline__ T cosh(T x) { return ::cosh(x); }

template <typename T>
__device__ __forceinline__ T erf(T x) { return ::erf(x); }

template <typename T>
__device__ __forceinline__ T erfc(T x) { return ::erfc(x); }

template <typename T>
__device__ __forceinline__ T exp(T x) { return ::exp(x); }

template <typename T>
__device__ __forceinline__ T floor(T x) { return ::floor(x); }

template <typename T>
__device__ __forceinline__ T log(T x) { return ::log(x); }

template <typename T>
__device__ __forceinline__ T log1p(T x) { return ::log1p(x); }

template <typename T>
__device__ __forceinline__ T rsqrt(T x) { return ::rsqrt(x); }

template <typename T>
__device__ __forceinline__ T sin(T x) { return ::sin(x); }

template <typename T>
__device__ __forceinline__ T sqrt(T x) { return ::sqrt(x); }

template <typename T>
__device__ __forceinline__ T tan(T x) { return ::tan(x); }

template <typename T>
__device__ __forceinline__ T tanh(T x) { return ::tanh(x); }

template <typename T>
__device__ __forceinline__ T normcdf(T x) { return ::normcdf(x); }

template <typename T>
__device__ __forceinline__ T copysign(T x, T y) { return ::copysign(x, y); }

template <typename T>
__device__ __forceinline__ T fmod(T x, T y) { return ::fmod(x, y); }

template <typename T>
__device__ __forceinline__ T max(T x, T y) { return ::max(x, y); }

template <typename T>
__device__ __forceinline__ T min(T x, T y) { return ::min(x, y); }

template <typename T>
__device__ __forceinline__ T pow(T x, T y) { return ::pow(x, y); }

}  // namespace c10::cuda::compat

namespace at {

template <typename T>
__host__ __device__ constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }

template <typename T>
__host__ __device__ constexpr T round_up(T a, T b) { return (a + b - 1) / b * b; }

template <typename T>
__host__ __device__ __forceinline__ bool _isnan(T value) { return value != value; }

// The ends of a type's range, infinite where it has infinities.
template <typename T>
struct numeric_limits {
  using Limits = std::numeric_limits<T>;
  static __host__ __device__ __forceinline__ T lowest() { return Limits::lowest(); }
  static __host__ __device__ __forceinline__ T max() { return Limits::max(); }
  static __host__ __device__ __forceinline__ T lower_bound() {
    return Limits::has_infinity ? static_cast<T>(-Limits::infinity()) : Limits::lowest();
  }
  static __host__ __device__ __forceinline__ T upper_bound() {
    return Limits::has_infinity ? Limits::infinity() : Limits::max();
  }
};

}  // namespace at

namespace at::detail {

template <typename T, int SIZE>
struct Array {
  T data[SIZE];
  __host__ __device__ T operator[](int i) const { return data[i]; }
  __host__ __device__ T& operator[](int i) { return data[i]; }
};

}  // namespace at::detail

namespace at::cuda {

__host__ __device__ constexpr int warp_size() { return 32; }

}  // namespace at::cuda

namespace at::native {

template <typename To, typename From>
__host__ __device__ __forceinline__ To scalar_cast(From value) { return static_cast<To>(value); }

__host__ __device__ constexpr int num_threads() { return 128; }

__host__ __device__ constexpr int thread_work_size() { return 4; }

__host__ __device__ constexpr int block_work_size() { return 512; }

}  // namespace at::native

namespace at::native::memory {

template <typename T, int SIZE>
struct alignas(sizeof(T) * SIZE) aligned_vector {
  T val[SIZE];
};

template <int SIZE, typename T>
__device__ __forceinline__ aligned_vector<T, SIZE> load_vector(const T* from, uint32_t index) {
  return reinterpret_cast<const aligned_vector<T, SIZE>*>(from)[index];
}

}  // namespace at::native::memory

namespace at::native::cuda_utils {

constexpr int kCUDABlockReduceNumThreads = 512;
constexpr int kCUDABlockReduceMaxThreads = 1024;

// Every thread's value summed in the first lane of its warp.
template <typename T>
__device__ __forceinline__ T WarpReduceSum(T value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_down_sync(0xffffffff, value, lanes);
  return value;
}

template <typename T>
__device__ __forceinline__ T WarpReduceMax(T value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const T other = __shfl_down_sync(0xffffffff, value, lanes);
    value = value < other ? other : value;
  }
  return value;
}

// Summed in the first warp; `shared` holds one value for each warp.
template <typename T>
__device__ __forceinline__ T BlockReduceSum(T value, T* shared) {
  value = WarpReduceSum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x < blockDim.x / 32 ? shared[threadIdx.x] : T(0);
  if (threadIdx.x / 32 == 0) value = WarpReduceSum(value);
  return value;
}

template <typename T>
__device__ __forceinline__ T BlockReduceMax(T value, T* shared) {
  value = WarpReduceMax(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x < blockDim.x / 32 ? shared[threadIdx.x] : shared[0];
  if (threadIdx.x / 32 == 0) value = WarpReduceMax(value);
  return value;
}

}  // namespace at::native::cuda_utils

template <typename To, typename From>
__host__ __device__ __forceinline__ To scalar_cast(From value) { return static_cast<To>(value); }

template <typename T>
__device__ __forceinline__ T gpuAtomicAdd(T* address, T value) { return atomicAdd(address, value); }

template <typename T>
__device__ __forceinline__ void gpuAtomicAddNoReturn(T* address, T value) { atomicAdd(address, value); }

namespace at::native {

template <typename T, typename Index>
__device__ __forceinline__ void fastAtomicAdd(T* tensor, Index index, const Index, T value, bool) {
  atomicAdd(tensor + index, value);
}

}  // namespace at::native

// CUB 3 has these no more.
#if defined(__CUDACC_RTC__) || __CUDACC_VER_MAJOR__ >= 13
namespace cub {

struct Sum {
  template <typename T>
  __host__ __device__ __forceinline__ T operator()(const T& a, const T& b) const { return a + b; }
};

struct Max {
  template <typename T>
  __host__ __device__ __forceinline__ T operator()(const T& a, const T& b) const {
    return a < b ? b : a;
  }
};

struct Min {
  template <typename T>
  __host__ __device__ __forceinline__ T operator()(const T& a, const T& b) const {
    return b < a ? b : a;
  }
};

}  // namespace cub
#endif

// C++17 has these no more, and nvcc's libraries still do.
#ifndef __CUDA_ON_HOST__
namespace std {

template <typename Argument, typename Result>
struct unary_function {
  typedef Argument argument_type;
  typedef Result result_type;
};

template <typename First, typename Second, typename Result>
struct binary_function {
  typedef First first_argument_type;
  typedef Second second_argument_type;
  typedef Result result_type;
};

}  // namespace std
#endif

// Hides from compilers that take all numbers as finite that one may not be.
template <typename T>
__host__ __device__ __forceinline__ bool isfinite_ensure_cuda_math(T value) {
  return value - value == T(0);
}
