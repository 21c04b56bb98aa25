// Arithmetic of PyTorch's floats of 8 and 16 bits with other numbers, which CUDA's types leave
// ambiguous: it is that of float.
#pragma once

// PyTorch's floats of 8 bits turn into float and back without being asked, CUDA's do not.
#ifndef __CUDA_ON_HOST__
struct implicit_fp8_e4m3 : __nv_fp8_e4m3 {
  implicit_fp8_e4m3() = default;
  __host__ __device__ constexpr implicit_fp8_e4m3(__nv_fp8_e4m3 other) : __nv_fp8_e4m3(other) {}
  __host__ __device__ implicit_fp8_e4m3(float value) : __nv_fp8_e4m3(value) {}
  __host__ __device__ operator float() const {
    return static_cast<float>(static_cast<const __nv_fp8_e4m3&>(*this));
  }
};

struct implicit_fp8_e5m2 : __nv_fp8_e5m2 {
  implicit_fp8_e5m2() = default;
  __host__ __device__ constexpr implicit_fp8_e5m2(__nv_fp8_e5m2 other) : __nv_fp8_e5m2(other) {}
  __host__ __device__ implicit_fp8_e5m2(float value) : __nv_fp8_e5m2(value) {}
  __host__ __device__ operator float() const {
    return static_cast<float>(static_cast<const __nv_fp8_e5m2&>(*this));
  }
};

template <>
class cuda::std::numeric_limits<implicit_fp8_e4m3> : public cuda::std::numeric_limits<__nv_fp8_e4m3> {};

template <>
class cuda::std::numeric_limits<implicit_fp8_e5m2> : public cuda::std::numeric_limits<__nv_fp8_e5m2> {};

#define __nv_fp8_e4m3 implicit_fp8_e4m3
#define __nv_fp8_e5m2 implicit_fp8_e5m2
#else
template <>
struct cuda_on_host::Implicit<__NV_E4M3> : std::true_type {};
template <>
struct cuda_on_host::Implicit<__NV_E5M2> : std::true_type {};
#endif

template <typename A, typename B, typename Result>
struct mixed_arithmetic {};

template <typename Result>
struct mixed_arithmetic<__half, float, Result> { using type = Result; };

template <typename Result>
struct mixed_arithmetic<float, __half, Result> { using type = Result; };

template <typename Result>
struct mixed_arithmetic<__half, double, Result> { using type = Result; };

template <typename Result>
struct mixed_arithmetic<double, __half, Result> { using type = Result; };

template <typename Result>
struct mixed_arithmetic<__half, int, Result> { using type = Result; };

template <typename Result>
struct mixed_arithmetic<int, __half, Result> { using type = Result; };

template <typename Result>
struct mixed_arithmetic<__nv_bfloat16, float, Result> { using type = Result; };

template <typename Result>
struct mixed_arithmetic<float, __nv_bfloat16, Result> { using type = Result; };

template <typename Result>
struct mixed_arithmetic<__nv_bfloat16, double, Result> { using type = Result; };

template <typename Result>
struct mixed_arithmetic<double, __nv_bfloat16, Result> { using type = Result; };

template <typename Result>
struct mixed_arithmetic<__nv_bfloat16, int, Result> { using type = Result; };

template <typename Result>
struct mixed_arithmetic<int, __nv_bfloat16, Result> { using type = Result; };

template <typename A, typename B>
__host__ __device__ __forceinline__ typename mixed_arithmetic<A, B, float>::type operator+(A a, B b) {
  return static_cast<float>(a) + static_cast<float>(b);
}

template <typename A, typename B>
__host__ __device__ __forceinline__ typename mixed_arithmetic<A, B, float>::type operator-(A a, B b) {
  return static_cast<float>(a) - static_cast<float>(b);
}

template <typename A, typename B>
__host__ __device__ __forceinline__ typename mixed_arithmetic<A, B, float>::type operator*(A a, B b) {
  return static_cast<float>(a) * static_cast<float>(b);
}

template <typename A, typename B>
__host__ __device__ __forceinline__ typename mixed_arithmetic<A, B, float>::type operator/(A a, B b) {
  return static_cast<float>(a) / static_cast<float>(b);
}

template <typename A, typename B>
__host__ __device__ __forceinline__ typename mixed_arithmetic<A, B, bool>::type operator<(A a, B b) {
  return static_cast<float>(a) < static_cast<float>(b);
}

template <typename A, typename B>
__host__ __device__ __forceinline__ typename mixed_arithmetic<A, B, bool>::type operator>(A a, B b) {
  return static_cast<float>(a) > static_cast<float>(b);
}

template <typename A, typename B>
__host__ __device__ __forceinline__ typename mixed_arithmetic<A, B, bool>::type operator<=(A a, B b) {
  return static_cast<float>(a) <= static_cast<float>(b);
}

template <typename A, typename B>
__host__ __device__ __forceinline__ typename mixed_arithmetic<A, B, bool>::type operator>=(A a, B b) {
  return static_cast<float>(a) >= static_cast<float>(b);
}

template <typename A, typename B>
__host__ __device__ __forceinline__ typename mixed_arithmetic<A, B, bool>::type operator==(A a, B b) {
  return static_cast<float>(a) == static_cast<float>(b);
}

template <typename A, typename B>
__host__ __device__ __forceinline__ typename mixed_arithmetic<A, B, bool>::type operator!=(A a, B b) {
  return static_cast<float>(a) != static_cast<float>(b);
}

template <typename B>
__host__ __device__ __forceinline__ typename mixed_arithmetic<float, B, float>::type& operator+=(float& a, B b) {
  return a = a + static_cast<float>(b);
}

template <typename B>
__host__ __device__ __forceinline__ typename mixed_arithmetic<float, B, float>::type& operator-=(float& a, B b) {
  return a = a - static_cast<float>(b);
}

template <typename B>
__host__ __device__ __forceinline__ typename mixed_arithmetic<float, B, float>::type& operator*=(float& a, B b) {
  return a = a * static_cast<float>(b);
}

template <typename B>
__host__ __device__ __forceinline__ typename mixed_arithmetic<float, B, float>::type& operator/=(float& a, B b) {
  return a = a / static_cast<float>(b);
}

template <typename B>
__host__ __device__ __forceinline__ typename mixed_arithmetic<double, B, double>::type& operator+=(double& a, B b) {
  return a = a + static_cast<float>(b);
}

template <typename B>
__host__ __device__ __forceinline__ typename mixed_arithmetic<double, B, double>::type& operator*=(double& a, B b) {
  return a = a * static_cast<float>(b);
}
