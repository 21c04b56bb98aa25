#include <cuda_bf16.h>
#include <cuda_fp8.h>

extern "C" __global__ void accumulate(float* sum, __nv_fp8_storage_t* q, const __nv_bfloat16* x,
                                      long long N, float factor) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i >= N) return;
  const float total = fmaf(factor, __bfloat162float(x[i]), sum[i]);
  sum[i] = total;
  q[i] = __nv_cvt_float_to_fp8(total, __NV_SATFINITE, __NV_E4M3);
}
