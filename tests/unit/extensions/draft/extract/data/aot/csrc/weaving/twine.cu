// Two ropes are twined into one: at every knot each of them has as large a part as it is twisted.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <optional>

#include "workshop.h"

inline __device__ float loosened(const float fibre) { return fibre; }
inline __device__ float loosened(const half fibre) { return __half2float(fibre); }
inline __device__ float loosened(const __nv_bfloat16 fibre) { return __bfloat162float(fibre); }
inline __device__ void tighten(float& fibre, const float loose) { fibre = loose; }
inline __device__ void tighten(half& fibre, const float loose) { fibre = __float2half(loose); }
inline __device__ void tighten(__nv_bfloat16& fibre, const float loose) { fibre = __float2bfloat16(loose); }

template <typename fibre_t, const uint NUM_THREADS>
__global__ void twine_ropes(
    fibre_t* rope, float* tension, const fibre_t* over, const float* over_twist, const fibre_t* under,
    const float* under_twist, const uint spools, const uint knots, const uint girth) {
  // As many fibres as a thread holds in one hand: 4 of 32 bits, or 8 of 16.
  const uint hand = sizeof(uint4) / sizeof(fibre_t);
  const uint hands = girth / hand;
  const uint mine = threadIdx.x + NUM_THREADS * blockIdx.x;
  if (mine >= spools * knots * hands) return;

  const uint knot = mine / hands;
  const uint grip = (mine % hands) * hand;
  const float o = fabsf(over_twist[knot]), u = fabsf(under_twist[knot]);
  const float stronger = o > u ? o : u;
  const float weaker = o > u ? u : o;
  const float ratio = stronger > 0.0f ? weaker / stronger : 1.0f;
  const float minor = ratio / (1.0f + ratio);
  const float share = o > u ? 1.0f - minor : minor;

  if (grip < girth) {
    const uint4 above = reinterpret_cast<const uint4*>(&over[knot * girth])[grip / hand];
    const uint4 below = reinterpret_cast<const uint4*>(&under[knot * girth])[grip / hand];
    uint4 twined;
#pragma unroll
    for (uint f = 0; f < hand; ++f) {
      const float upper = loosened(reinterpret_cast<const fibre_t*>(&above)[f]);
      const float lower = loosened(reinterpret_cast<const fibre_t*>(&below)[f]);
      tighten(reinterpret_cast<fibre_t*>(&twined)[f], share * upper + (1.0f - share) * lower);
    }
    reinterpret_cast<uint4*>(&rope[knot * girth])[grip / hand] = twined;
  }
  if (grip == 0 && tension != nullptr) tension[knot] = stronger - weaker;
}

#define TWINE(fibre_t, NUM_THREADS)                                                           \
  {                                                                                           \
    twine_ropes<fibre_t, NUM_THREADS><<<spindles, crew, 0, ropewalk>>>(                       \
        reinterpret_cast<fibre_t*>(rope.data_ptr()),                                          \
        reinterpret_cast<float*>(tension.data_ptr()),                                         \
        reinterpret_cast<fibre_t*>(over.data_ptr()),                                          \
        reinterpret_cast<float*>(over_twist.data_ptr()),                                      \
        reinterpret_cast<fibre_t*>(under.data_ptr()),                                         \
        reinterpret_cast<float*>(under_twist.data_ptr()), spools, knots, girth);              \
  }

template <typename fibre_t>
void twine_on_spindles(
    at::Tensor& rope, at::Tensor& tension, const at::Tensor& over, const at::Tensor& over_twist,
    const at::Tensor& under, const at::Tensor& under_twist) {
  constexpr uint NUM_THREADS = 128;
  const uint spools = rope.size(0);
  const uint knots = rope.size(1);
  const uint girth = rope.size(2);
  const uint hand = 16 / sizeof(fibre_t);
  TORCH_CHECK(girth % hand == 0, "a rope is as thick as a number of hands");
  const uint hands = girth / hand;
  const uint grips = spools * knots * hands;
  dim3 crew(NUM_THREADS);
  dim3 spindles((grips + NUM_THREADS - 1) / NUM_THREADS);
  const c10::cuda::OptionalCUDAGuard at_home(over.device());
  auto ropewalk = at::cuda::getCurrentCUDAStream();
  TWINE(fibre_t, NUM_THREADS);
}

void twine(
    at::Tensor rope, at::Tensor tension, at::Tensor over, at::Tensor over_twist, at::Tensor under,
    at::Tensor under_twist) {
  if (rope.dtype() == at::ScalarType::Half) {
    twine_on_spindles<half>(rope, tension, over, over_twist, under, under_twist);
  } else {
    twine_on_spindles<__nv_bfloat16>(rope, tension, over, over_twist, under, under_twist);
  }
}
