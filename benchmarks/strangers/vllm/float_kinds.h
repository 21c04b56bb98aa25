#pragma once

#include <torch/all.h>

#define ONE_FLOAT_KIND(KIND, ...) AT_DISPATCH_CASE(at::ScalarType::KIND, __VA_ARGS__)

// Runs a lambda with `scalar_t` as the element's type: one of the three that a model's weights come in.
#define FOR_FLOAT_KINDS(TENSOR, WHO, ...)                    \
  AT_DISPATCH_SWITCH((TENSOR).scalar_type(), WHO,            \
                     ONE_FLOAT_KIND(BFloat16, __VA_ARGS__)   \
                     ONE_FLOAT_KIND(Half, __VA_ARGS__)       \
                     ONE_FLOAT_KIND(Float, __VA_ARGS__))
