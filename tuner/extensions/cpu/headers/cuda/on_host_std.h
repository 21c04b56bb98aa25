// `cuda::std` is the C++ library's own on the CPU.
#pragma once
#include "cuda_on_host.h"
namespace cuda {
namespace std {
using namespace ::std;
}
}  // namespace cuda
