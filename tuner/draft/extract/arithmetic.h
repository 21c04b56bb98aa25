// Arithmetic of PyTorch's Half and BFloat16 with other numbers, which CUDA's types leave ambiguous:
// it is that of float.
#pragma once

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
