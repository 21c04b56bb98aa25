// Sums every row of a matrix; the shared memory's size comes with the launch.
template <typename T, typename Acc>
__device__ Acc to(T value) { return static_cast<Acc>(value); }

template <typename T, int kThreads, int kItems = 4>
__global__ void row_sum(const T* in, float* out, unsigned int cols)
{
    extern __shared__ __align__(16) unsigned char scratch[];
    float* partial = reinterpret_cast<float*>(scratch);
    const T* row = in + static_cast<size_t>(blockIdx.x) * cols;
    float sum = 0.f;
    for (unsigned int c = threadIdx.x; c < cols; c += kThreads * kItems) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
            if (c + i * kThreads < cols) sum += to<T, float>(row[c + i * kThreads]);
        }
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int half = kThreads / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}

void launch_row_sum(const float* in, float* out, int rows, int cols, cudaStream_t stream)
{
    constexpr int threads = 256;
    const size_t bytes = threads * sizeof(float);
    row_sum<float, threads><<<rows, threads, bytes, stream>>>(in, out, cols);
}
