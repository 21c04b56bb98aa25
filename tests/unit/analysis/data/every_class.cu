#include <cuda_fp16.h>
#include <mma.h>
#include <cuda_pipeline.h>

template <class T>
__global__ void copy(T* __restrict__ out, const T* __restrict__ in) {
  out[threadIdx.x] = in[threadIdx.x];
}

extern "C" __global__ void arithmetic(float* o, const float* a, const int* b, double* d, half2* h) {
  const int i = threadIdx.x;
  const float x = a[i], y = b[i];
  float z = fmaf(x, y, __expf(x)) + x / y + sinf(y) + fminf(x, y) + rsqrtf(x) + floorf(y);
  int n = b[i] * b[i + 1] + (b[i] >> 3) + __popc(b[i + 2]) + max(b[i], 7) + b[i] / 9;
  o[i] = z + (float)n + (float)(b[i + 1] / b[i + 2]);
  d[i] = d[i] * d[i + 1] + sqrt(d[i + 2]) + (double)n;
  h[i] = __hfma2(h[i], h[i + 1], __float2half2_rn(3.0f)) + __hmax2(h[i], h[i + 2]);
}

extern "C" __global__ void __launch_bounds__(1024, 2) spill(float* out, const float* in, int n) {
  float v[64] = {};
  for (int k = 0; k < n; ++k) {
#pragma unroll
    for (int i = 0; i < 64; ++i)
      v[i] += in[(k * 64 + i) * 1024 + threadIdx.x] * v[(i * 7 + 1) % 64];
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) out[i * 1024 + threadIdx.x] = v[i];
}

extern "C" __global__ void together(int* out, const int* in, int n) {
  __shared__ int part[1024];
  __shared__ float4 wide[64];
  part[threadIdx.x] = in[threadIdx.x];
  wide[threadIdx.x % 64].x = in[threadIdx.x];
  __syncthreads();
  for (int d = n; d > 0; d /= 2) {
    if (threadIdx.x < d) part[threadIdx.x] += part[threadIdx.x + d];
    __syncthreads();
  }
  int x = part[n] + __shfl_xor_sync(~0u, part[threadIdx.x], 1) + __ballot_sync(~0u, n > 3);
  atomicAdd(&part[n], x);
  x += atomicAdd(out, (int)wide[n].x) + __any_sync(~0u, x > n);
  __threadfence();
  int* either = n & 1 ? part : out;
  either[n] = x + __ldcs(in + n);
  if (x == 77) __nanosleep(100);
}

extern "C" __global__ void multiply(float* out, const half* a, const half* b) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, half, row_major> x;
  fragment<matrix_b, 16, 16, 16, half, col_major> y;
  fragment<accumulator, 16, 16, 16, float> sum;
  fill_fragment(sum, 0.0f);
  __shared__ half part[256];
  __pipeline_memcpy_async(part + 8 * threadIdx.x, a + 8 * threadIdx.x, 16);
  __pipeline_memcpy_async(part + 8 * threadIdx.x, a + 2 * threadIdx.x, 4);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  load_matrix_sync(x, part, 16);
  load_matrix_sync(y, b, 16);
  mma_sync(sum, x, y, sum);
  store_matrix_sync(out, sum, 16, mem_row_major);
}

__device__ __noinline__ double far(double x, int n) { return n > 0 ? far(x * x, n - 1) + x : x; }

extern "C" __global__ void calling(double* out, int n) { out[1] = far(out[0], n); }

#if __CUDA_ARCH__ >= 1000
extern "C" __global__ void widest(float* o, const float* a) {
  float v[8];
  asm volatile("ld.global.v8.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8];"
    : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7])
    : "l"(a + 8 * threadIdx.x));
  asm volatile("st.global.v8.f32 [%0], {%1,%2,%3,%4,%5,%6,%7,%8};"
    :: "l"(o + 8 * threadIdx.x), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]),
       "f"(v[6]), "f"(v[7]));
}
#endif

#if __CUDA_ARCH__ == 900
extern "C" __global__ void bulk(float* o, const float* a) {
  extern __shared__ __align__(128) float part[];
  __shared__ unsigned long long bar;
  const unsigned p = __cvta_generic_to_shared(part), b = __cvta_generic_to_shared(&bar);
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(b));
  asm volatile("fence.proxy.async;");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1], 4096, [%2];" :: "r"(p), "l"(a), "r"(b));
  asm volatile("griddepcontrol.wait;");
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;");
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
               " {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(p + 64ull), "l"(p + 128ull));
  asm volatile("wgmma.commit_group.sync.aligned;");
  asm volatile("wgmma.wait_group.sync.aligned 0;");
  o[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
#endif
