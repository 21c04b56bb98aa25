#include "cudaUtils.h"

using namespace tensorrt_llm::common;

namespace tensorrt_llm
{
namespace kernels
{

template <typename T>
struct ReluActivation
{
    static __device__ __forceinline__ float apply(float const& val)
    {
        return val > 0.0f ? val : 0.0f;
    }
};

template <typename T>
struct GeluActivation
{
    static __device__ __forceinline__ float apply(float const& val)
    {
        float const cdf = 0.5f * (1.0f + tanhf((0.7978845608028654f * (val + 0.044715f * val * val * val))));
        return val * cdf;
    }
};

template <template <typename T> class Activation, typename T>
__global__ void addBiasActivation(T* out, T const* __restrict bias, int m, int n)
{
#if (defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 900))
    cudaGridDependencySynchronize();
#endif
    for (int id = blockIdx.x * blockDim.x + threadIdx.x; id < m * n; id += blockDim.x * gridDim.x)
    {
        float const val = static_cast<float>(out[id]) + static_cast<float>(bias[id % n]);
        out[id] = static_cast<T>(Activation<T>::apply(val));
    }
#if (defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 900))
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

template <template <typename T> class Activation, typename T>
void invokeAddBiasActivation(T* out, T const* bias, int const m, int const n, cudaStream_t stream)
{
    int const threads = 256;
    cudaLaunchConfig_t config;
    config.gridDim = dim3(divUp(m * n, threads * 4));
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = 0;
    config.stream = stream;
    cudaLaunchAttribute attrs[1];
    attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[0].val.programmaticStreamSerializationAllowed = getEnvEnablePDL();
    config.numAttrs = 1;
    config.attrs = attrs;
    TLLM_CUDA_CHECK(cudaLaunchKernelEx(&config, addBiasActivation<Activation, T>, out, bias, m, n));
}

#define INSTANTIATE_ADD_BIAS(ACT, T)                                                                                   \
    template void invokeAddBiasActivation<ACT, T>(T * out, T const* bias, int const m, int const n, cudaStream_t stream)

INSTANTIATE_ADD_BIAS(GeluActivation, float);
INSTANTIATE_ADD_BIAS(GeluActivation, half);
INSTANTIATE_ADD_BIAS(ReluActivation, float);
INSTANTIATE_ADD_BIAS(ReluActivation, half);
#undef INSTANTIATE_ADD_BIAS

} // namespace kernels
} // namespace tensorrt_llm
