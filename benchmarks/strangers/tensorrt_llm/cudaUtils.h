#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace tensorrt_llm::common
{

#define TLLM_CHECK(val)                                                                                                \
    do                                                                                                                 \
    {                                                                                                                  \
        if (!(val)) throw std::runtime_error(std::string("Assertion failed: ") + #val);                               \
    } while (0)

#define TLLM_CUDA_CHECK(stat)                                                                                          \
    do                                                                                                                 \
    {                                                                                                                  \
        tensorrt_llm::common::check((stat), #stat, __FILE__, __LINE__);                                                \
    } while (0)

inline void check(cudaError_t result, char const* func, char const* file, int line)
{
    if (result) throw std::runtime_error(std::string(func) + " at " + file + ":" + std::to_string(line));
}

template <typename T>
inline __device__ __host__ T divUp(T m, T n)
{
    return (m + n - 1) / n;
}

inline bool getEnvEnablePDL()
{
    return false;
}

} // namespace tensorrt_llm::common
