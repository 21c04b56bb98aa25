#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>

#define BLOCK_SIZE 128

__device__ float block_max(float v, float* shared);
__device__ float block_sum(float v, float* shared);

__global__ void row_softmax(const float* __restrict__ logits, float* __restrict__ probs, float scale, int cols)
{
    __shared__ float scratch[BLOCK_SIZE];
    const float* row = logits + (size_t)blockIdx.x * cols;
    float* out = probs + (size_t)blockIdx.x * cols;

    float top = -INFINITY;
    for (int c = threadIdx.x; c < cols; c += BLOCK_SIZE)
        top = fmaxf(top, row[c] * scale);
    top = block_max(top, scratch);

    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK_SIZE)
        sum += expf(row[c] * scale - top);
    sum = block_sum(sum, scratch);

    for (int c = threadIdx.x; c < cols; c += BLOCK_SIZE)
        out[c] = expf(row[c] * scale - top) / sum;
}

__device__ float block_max(float v, float* shared)
{
    shared[threadIdx.x] = v;
    __syncthreads();
    for (int half = BLOCK_SIZE / 2; half > 0; half >>= 1) {
        if (threadIdx.x < half) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + half]);
        __syncthreads();
    }
    float result = shared[0];
    __syncthreads();
    return result;
}

__device__ float block_sum(float v, float* shared)
{
    shared[threadIdx.x] = v;
    __syncthreads();
    for (int half = BLOCK_SIZE / 2; half > 0; half >>= 1) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    float result = shared[0];
    __syncthreads();
    return result;
}

void softmax(const float* logits, float* probs, int rows, int cols, cudaStream_t stream)
{
    row_softmax<<<rows, BLOCK_SIZE, 0, stream>>>(logits, probs, 0.5f, cols);
}

static float* on_device(size_t count)
{
    float* p = nullptr;
    cudaMalloc(&p, count * sizeof(float));
    return p;
}

int main()
{
    float* a = on_device(256 * 1000);
    float* b = on_device(256 * 1000);
    softmax(a, b, 64, 1000, 0);
    softmax(a, b, 256, 128, 0);
    cudaDeviceSynchronize();
    return 0;
}
