#include <cstdio>
#include <vector>
#include <cuda_runtime.h>

#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { printf("%s\n", cudaGetErrorString(e)); return 1; } } while (0)

// z = a x + b y
__global__ void axpby(int n, float a, float* x, float b, float* y, float* z)
{
    int stride = blockDim.x * gridDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        z[i] = a * x[i] + b * y[i];
}

int main()
{
    const int N = 1 << 18;
    const size_t bytes = N * sizeof(float);
    std::vector<float> h(N, 1.0f);
    float *x, *y, *z;
    CHECK(cudaMalloc((void**)&x, bytes));
    CHECK(cudaMalloc((void**)&y, bytes));
    CHECK(cudaMalloc((void**)&z, bytes));
    CHECK(cudaMemcpy(x, h.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(y, h.data(), bytes, cudaMemcpyHostToDevice));

    const int threads = 256;
    const int blocks = (N + threads - 1) / threads;
    axpby<<<blocks, threads>>>(N, 2.5f, x, -0.5f, y, z);
    CHECK(cudaDeviceSynchronize());
    return 0;
}
