#pragma once

#ifdef USE_ROCM
  #include <hipcub/hipcub.hpp>
namespace blockwise = hipcub;
using TotalOp = blockwise::Sum;
#else
  #include <cub/cub.cuh>
namespace blockwise = cub;
  #if CUB_VERSION < 200800
using TotalOp = blockwise::Sum;
  #else
    #include <cuda/std/functional>
using TotalOp = cuda::std::plus<>;
  #endif
#endif
