#include <ATen/ATen.h>
#include "compat.h"

#define DISPATCH_FLOAT_HALF_AND_BFLOAT(TYPE, LEVEL, NAME, ...)       \
  switch (TYPE) {                                                    \
    case at::ScalarType::Float: {                                    \
      using scalar_t_##LEVEL = float;                                \
      __VA_ARGS__;                                                   \
      break;                                                         \
    }                                                                \
    case at::ScalarType::Half: {                                     \
      using scalar_t_##LEVEL = at::Half;                             \
      __VA_ARGS__;                                                   \
      break;                                                         \
    }                                                                \
    case at::ScalarType::BFloat16: {                                 \
      using scalar_t_##LEVEL = at::BFloat16;                         \
      __VA_ARGS__;                                                   \
      break;                                                         \
    }                                                                \
    default:                                                         \
      AT_ERROR(#NAME, " not implemented for '", toString(TYPE), "'"); \
  }
