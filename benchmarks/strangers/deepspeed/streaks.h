#pragma once

#include <cstdint>
#include <cuda_runtime.h>

// `age` is how many equal labels stand right before each, `breaks` how often a row's label changes.
void find_streaks(cudaStream_t stream, int rows, int span, const int32_t* label, int32_t* age, int32_t* breaks);
