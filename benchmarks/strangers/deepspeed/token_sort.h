#pragma once

#include <stdint.h>
#include "ds_kernel_utils.h"

void launch_token_rank(const int32_t* data, int32_t* ranks, int32_t* counts, int rows, int row_len,
                       cudaStream_t stream);
