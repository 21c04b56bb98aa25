#pragma once

#include <ATen/ATen.h>
#include "old_torch.h"

// Runs what follows with `kind_SLOT` standing for the elements of a tensor of 32 or of 16 bits.
#define BY_ELEMENT_KIND(TENSOR_TYPE, SLOT, WHO, ...)                      \
  switch (const at::ScalarType given_##SLOT = (TENSOR_TYPE)) {            \
    case at::kBFloat16: {                                                 \
      typedef at::BFloat16 kind_##SLOT;                                   \
      __VA_ARGS__                                                         \
    } break;                                                              \
    case at::kHalf: {                                                     \
      typedef at::Half kind_##SLOT;                                       \
      __VA_ARGS__                                                         \
    } break;                                                              \
    case at::kFloat: {                                                    \
      typedef float kind_##SLOT;                                          \
      __VA_ARGS__                                                         \
    } break;                                                              \
    default:                                                              \
      TORCH_CHECK(false, WHO, ": no kernel for ", toString(given_##SLOT)); \
  }
