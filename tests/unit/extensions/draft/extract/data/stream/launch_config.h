#pragma once
#include <cuda_runtime.h>

#include <functional>

namespace launch {

template <typename F>
cudaError_t with_attributes(cudaLaunchConfig_t& config, cudaLaunchAttribute* attributes, F launch) {
  config.attrs = attributes;
  config.numAttrs = 1;
  return launch();
}

}  // namespace launch
