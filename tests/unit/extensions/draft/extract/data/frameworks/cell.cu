#include <torch/extension.h>
#define ACC2 torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits>

template <typename scalar_t>
__global__ void gate_kernel(const torch::PackedTensorAccessor32<
                                scalar_t, 3, torch::RestrictPtrTraits> gates,
                            const torch::PackedTensorAccessor64<int64_t, 1> order, ACC2 out) {
  const int n = blockIdx.y;  // a row
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < gates.size(2)) {
    out[order[n]][c] = gates[n][0][c] / (scalar_t(1) + exp(-gates[n][1][c]));
  }
}

void gate(torch::Tensor gates, torch::Tensor order, torch::Tensor out) {
  auto out_a = out.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>();
  const dim3 blocks((gates.size(2) + 127) / 128, gates.size(0));
  AT_DISPATCH_FLOATING_TYPES(gates.scalar_type(), "gate", ([&] {
    gate_kernel<scalar_t><<<blocks, 128>>>(
        gates.packed_accessor32<scalar_t, 3, torch::RestrictPtrTraits>(),
        order.packed_accessor64<int64_t, 1>(), out_a);
  }));
}
