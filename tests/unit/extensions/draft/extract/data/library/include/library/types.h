#ifndef LIBRARY_TYPES_H_
#define LIBRARY_TYPES_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <stdexcept>
#include <vector>

namespace library {

#if defined(__HIPCC__) || defined(USE_MUSA)
using bf16 = hip_bfloat16;
#else
using bf16 = __nv_bfloat16;
#endif

enum class Rounding { kNearest, kTowardZero };

struct Shape {
  std::vector<long> dims;
  long rows() const { return dims.at(0); }
};

template <typename T>
struct Traits;

template <>
struct Traits<float> {
  using Wide = float;
  static constexpr int kPerAccess = 4;
  static __device__ __forceinline__ float narrow(float x) { return x; }
};

template <>
struct Traits<bf16> {
  using Wide = float;
  static constexpr int kPerAccess = 8;
  static __device__ __forceinline__ bf16 narrow(float x) { return __float2bfloat16(x); }
  static void check(const Shape& shape) {
    if (shape.rows() == 0) throw std::runtime_error("nothing to do");
  }
};

inline void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

}  // namespace library

#endif
