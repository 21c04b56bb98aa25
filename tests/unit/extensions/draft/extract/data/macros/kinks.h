#pragma once

#include <cstdio>
#include <cstdlib>

constexpr float kKnee = 0.25f;

#define OR_GIVE_UP()                                                          \
  do {                                                                        \
    if (const cudaError_t why = cudaPeekAtLastError(); why != cudaSuccess) {  \
      std::fprintf(stderr, "gave up: %s\n", cudaGetErrorName(why));           \
      std::exit(EXIT_FAILURE);                                                \
    }                                                                         \
  } while (false)
