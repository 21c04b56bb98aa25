#pragma once

#include <cstdio>
#include <cstdlib>

constexpr float kZero = 0.0f;

#define CHECK_LAUNCH()                                              \
  do {                                                              \
    cudaError_t status = cudaGetLastError();                        \
    if (status != cudaSuccess) {                                    \
      std::fprintf(stderr, "%s\n", cudaGetErrorString(status));     \
      std::abort();                                                 \
    }                                                               \
  } while (0)
