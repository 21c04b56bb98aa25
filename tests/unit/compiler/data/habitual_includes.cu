#include <cstdint>
#include <cmath>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <assert.h>
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
extern "C" __global__ void copy(__nv_fp8_e4m3* to, const __nv_bfloat16* from, int32_t n) {
    assert(n < INT32_MAX);
    const float value = __bfloat162float(from[threadIdx.x]);
    to[threadIdx.x] = __nv_fp8_e4m3(std::sqrt(value) + expf(value) + float(half(value)));
    if (std::uint32_t(n) == threadIdx.x && isinf(value)) printf("%f\n", value);
}
