#include <ATen/ATen.h>
#include <ATen/AccumulateType.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Exceptions.h>

#include <assert.h>

#include "type_shim.h"

#define BLOCK_SIZE 512
#define ILP 4

typedef enum {
  ADAM_MODE_0 = 0,  // L2 regularization
  ADAM_MODE_1 = 1   // decoupled weight decay
} adamMode_t;

using MATH_T = float;

template <typename T>
__global__ void flat_adam_kernel(const T* g, T* p, float* m, float* v, const float beta1, const float beta2,
                                 const float beta1_correction, const float beta2_correction,
                                 const float epsilon, const float lr, adamMode_t mode, const float decay,
                                 const int64_t n) {
  for (int64_t i_start = (int64_t)blockIdx.x * blockDim.x * ILP; i_start < n;
       i_start += (int64_t)gridDim.x * blockDim.x * ILP) {
#pragma unroll
    for (int ii = 0; ii < ILP; ii++) {
      const int64_t i = i_start + threadIdx.x + ii * blockDim.x;
      if (i < n) {
        MATH_T r_g = g[i], r_p = p[i], r_m = m[i], r_v = v[i];
        if (mode == ADAM_MODE_0) r_g = r_g + decay * r_p;
        r_m = beta1 * r_m + (1 - beta1) * r_g;
        r_v = beta2 * r_v + (1 - beta2) * r_g * r_g;
        MATH_T update = (r_m / beta1_correction) / (sqrtf(r_v / beta2_correction) + epsilon);
        if (mode == ADAM_MODE_1) update += decay * r_p;
        p[i] = r_p - lr * update;
        m[i] = r_m;
        v[i] = r_v;
      }
    }
  }
}

void flat_adam_cuda(at::Tensor& p, at::Tensor& m, at::Tensor& v, at::Tensor& g, float lr, float beta1,
                    float beta2, float eps, int step, int mode, float decay) {
  using namespace at;
  const int64_t tsize = p.numel();
  const int blocks = (tsize + BLOCK_SIZE * ILP - 1) / (BLOCK_SIZE * ILP);
  const float beta1_correction = 1 - std::pow(beta1, step);
  const float beta2_correction = 1 - std::pow(beta2, step);
  DISPATCH_FLOAT_HALF_AND_BFLOAT(
      g.scalar_type(), 0, "flat_adam",
      flat_adam_kernel<scalar_t_0><<<blocks, BLOCK_SIZE, 0, at::cuda::getCurrentCUDAStream()>>>(
          g.DATA_PTR<scalar_t_0>(), p.DATA_PTR<scalar_t_0>(), m.DATA_PTR<float>(), v.DATA_PTR<float>(), beta1,
          beta2, beta1_correction, beta2_correction, eps, lr, (adamMode_t)mode, decay, tsize);)
  AT_CUDA_CHECK(cudaGetLastError());
}
