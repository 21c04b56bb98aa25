// The sum of every row, one block a row; the block's size is a template parameter.
#include <cuda_runtime.h>

#include <cstdlib>

template <unsigned BLOCK>
__global__ void row_sums(const float* g_in, float* g_out, unsigned n)
{
    __shared__ float s[BLOCK];
    const unsigned tid = threadIdx.x;
    const float* in = &g_in[blockIdx.x * n];
    float acc = 0.f;
    for (unsigned i = tid; i < n; i += BLOCK) acc += in[i];
    s[tid] = acc;
    __syncthreads();
    for (unsigned k = BLOCK / 2; k > 0; k >>= 1) {
        if (tid < k) s[tid] += s[tid + k];
        __syncthreads();
    }
    if (tid == 0) g_out[blockIdx.x] = s[0];
}

void run(const float* in, float* out, int rows, unsigned n)
{
    row_sums<256><<<rows, 256>>>(in, out, n);
}

int main()
{
    int rows = 200;
    unsigned n = 3000;
    float* in;
    float* out;
    cudaMalloc(&in, sizeof(float) * rows * n);
    cudaMalloc(&out, rows * sizeof(float));
    run(in, out, rows, n);
    cudaDeviceSynchronize();
}
