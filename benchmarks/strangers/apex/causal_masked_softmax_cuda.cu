#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <torch/extension.h>

#include "causal_masked_softmax.h"
#include "type_shim.h"

namespace multihead_attn {
namespace fused_softmax {

torch::Tensor fwd_cuda(torch::Tensor const& input, float scale_factor) {
  const int attn_batches = input.size(0);
  const int seq_len = input.size(1);
  TORCH_INTERNAL_ASSERT(seq_len <= 512);

  torch::Tensor softmax_results = torch::empty({attn_batches, seq_len, seq_len}, input.options());

  void* input_ptr = static_cast<void*>(input.data_ptr());
  void* softmax_results_ptr = static_cast<void*>(softmax_results.data_ptr());

  DISPATCH_FLOAT_HALF_AND_BFLOAT(
      input.scalar_type(), 0, "causal_masked_softmax_forward",
      dispatch_causal_masked_softmax_forward<scalar_t_0, scalar_t_0, float>(
          reinterpret_cast<scalar_t_0*>(softmax_results_ptr),
          reinterpret_cast<const scalar_t_0*>(input_ptr), scale_factor, seq_len, seq_len, attn_batches););
  return softmax_results;
}
}  // namespace fused_softmax
}  // namespace multihead_attn

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &multihead_attn::fused_softmax::fwd_cuda, "causal masked softmax");
}
