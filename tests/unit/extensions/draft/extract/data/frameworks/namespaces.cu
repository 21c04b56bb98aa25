#include <cuda_runtime.h>
#include "not_there.h"
#define OPS_ABI_BEGIN inline namespace v1 {
#define OPS_BEGIN   \
  namespace ops {   \
  OPS_ABI_BEGIN
#define OPS_END } }

OPS_BEGIN

THEIR_NAMESPACE_BEGIN

__global__ void twice_kernel(float* y, const float* x) { y[threadIdx.x] = 2.0f * x[threadIdx.x]; }

THEIR_NAMESPACE_END

void run(float* y, const float* x) { twice_kernel<<<1, 128>>>(y, x); }

OPS_END
