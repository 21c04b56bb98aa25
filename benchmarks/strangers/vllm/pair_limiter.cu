#include <algorithm>

#include <torch/all.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include "float_kinds.h"

#ifdef USE_ROCM
  #define READ_ONLY(where) (*(where))
#else
  #define READ_ONLY(where) __ldg(where)
#endif

namespace limiter {

// Nears the ceiling without ever touching it.
template <typename scalar_t>
__device__ __forceinline__ scalar_t round_knee(const scalar_t signal, const scalar_t ceiling) {
  const float s = static_cast<float>(signal), c = 0.5f + fabsf(static_cast<float>(ceiling));
  const float drive = fmaxf(-1e6f, fminf(1e6f, s / c));
  return static_cast<scalar_t>(c * (drive * rsqrtf(1.0f + drive * drive)));
}

// Bounces between floor and ceiling: what is too much comes back from the other end.
template <typename scalar_t>
__device__ __forceinline__ scalar_t bounce(const scalar_t signal, const scalar_t ceiling) {
  const float c = 0.5f + fabsf(static_cast<float>(ceiling));
  const float lap = static_cast<float>(signal) / (4.0f * c) + 0.25f;
  return static_cast<scalar_t>(c * (1.0f - 4.0f * fabsf(lap - floorf(lap) - 0.5f)));
}

// Each row holds two halves: one is the signal, and the other says how loud it may get.
template <typename scalar_t, scalar_t (*KNEE)(const scalar_t, const scalar_t), bool CEILING_LEADS>
__global__ void limit_halves_kernel(const scalar_t* __restrict__ halves,  // [..., 2, width]
                                    scalar_t* __restrict__ limited,       // [..., width]
                                    const int width) {
  const scalar_t* leading = halves + static_cast<int64_t>(blockIdx.x) * (2 * width);
  const scalar_t* trailing = leading + width;
  scalar_t* target = limited + static_cast<int64_t>(blockIdx.x) * width;
  for (int at = threadIdx.x; at < width; at += blockDim.x) {
    const scalar_t one = READ_ONLY(leading + at), other = READ_ONLY(trailing + at);
    target[at] = CEILING_LEADS ? KNEE(other, one) : KNEE(one, other);
  }
}

}  // namespace limiter

#define LIMIT_WITH(KNEE, CEILING_LEADS)                                               \
  const int width = static_cast<int>(limited.size(-1));                               \
  const int64_t rows = limited.numel() / width;                                       \
  if (rows > 0) {                                                                     \
    const at::cuda::CUDAGuard on_device(halves.device());                             \
    const dim3 threads(std::min(1024, width));                                        \
    FOR_FLOAT_KINDS(halves, "limit_halves", [&] {                                     \
      limiter::limit_halves_kernel<scalar_t, limiter::KNEE<scalar_t>, CEILING_LEADS>  \
          <<<dim3(rows), threads, 0, at::cuda::getCurrentCUDAStream()>>>(             \
              halves.data_ptr<scalar_t>(), limited.data_ptr<scalar_t>(), width);      \
    });                                                                               \
  }

void limit_smoothly(torch::Tensor& halves, torch::Tensor& limited) {
  LIMIT_WITH(round_knee, false)
}

void limit_by_bouncing(torch::Tensor& halves, torch::Tensor& limited) {
  LIMIT_WITH(bounce, true)
}
