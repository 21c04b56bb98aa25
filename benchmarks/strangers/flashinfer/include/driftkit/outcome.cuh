#ifndef DRIFTKIT_OUTCOME_CUH_
#define DRIFTKIT_OUTCOME_CUH_
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

// Leaves a launch helper with the error of a call that went wrong.
#define DRIFTKIT_TRY(...)                                                                     \
  do {                                                                                        \
    if (const cudaError_t outcome = (__VA_ARGS__); outcome != cudaSuccess) {                  \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorName(outcome));     \
      return outcome;                                                                         \
    }                                                                                         \
  } while (false)

// Makes a number of elements known at compile time a constant of this name in what follows.
#define DRIFTKIT_WITH_LUMP(NUMBER, CONSTANT, ...)  \
  if ((NUMBER) == 8) {                             \
    constexpr uint32_t CONSTANT = 8;               \
    __VA_ARGS__                                    \
  } else if ((NUMBER) == 4) {                      \
    constexpr uint32_t CONSTANT = 4;               \
    __VA_ARGS__                                    \
  } else {                                         \
    return cudaErrorInvalidValue;                  \
  }

namespace driftkit {

__host__ __device__ constexpr uint32_t portions(uint32_t whole, uint32_t portion) {
  return whole / portion + (whole % portion != 0);
}

}  // namespace driftkit
#endif  // DRIFTKIT_OUTCOME_CUH_
