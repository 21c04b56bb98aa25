#include <torch/headeronly/util/Float8_e4m3fnuz.h>
#include <cmath>

template <typename T>
struct Named {};

#define ALSO(OTHER) static __device__ T of(const OTHER& x) { return static_cast<T>(x); } \
  static_assert(true)
#define NAMED(TYPE, ...)                   \
  template <>                              \
  struct Named<TYPE> {                     \
    using T = TYPE;                        \
    static constexpr bool is_named = true; \
    __VA_ARGS__                            \
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
