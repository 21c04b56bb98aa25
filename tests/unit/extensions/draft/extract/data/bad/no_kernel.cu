#include <torch/all.h>

torch::Tensor twice(torch::Tensor x) { return x + x; }
