extern "C" __global__ void __launch_bounds__(1024, 2) copy(float* to, const float* from) {
    __shared__ float tile[1024];
    extern __shared__ float dynamic[];
    float value[48];
    for (int i = 0; i < 48; i++) value[i] = from[i * 1024 + threadIdx.x];
    tile[threadIdx.x] = dynamic[threadIdx.x] = value[0];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 48; i++)
        to[i * 1024 + threadIdx.x] = value[i] * tile[i] * dynamic[i];
}
