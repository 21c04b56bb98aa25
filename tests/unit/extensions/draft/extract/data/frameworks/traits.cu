#include <c10/util/BFloat16.h>
#include <cub/block/block_load.cuh>
#include <cub/block/block_store.cuh>

struct BaseParams {
  using index_t = uint32_t;
  index_t row_stride;
  int columns;
  void* __restrict__ x_ptr;
};

struct GeluParams : public BaseParams {
  index_t out_stride;
  void* __restrict__ out_ptr;
};

template <int kNThreads_, typename input_t_>
struct Gelu_kernel_traits {
  using input_t = input_t_;
  static constexpr int kNThreads = kNThreads_;
  static constexpr int kNElts = 4;
  using Load = cub::BlockLoad<input_t, kNThreads, kNElts, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
  using Store = cub::BlockStore<input_t, kNThreads, kNElts, cub::BLOCK_STORE_WARP_TRANSPOSE>;
};

template <typename Ktraits>
__global__ __launch_bounds__(Ktraits::kNThreads) void gelu_kernel(GeluParams params) {
  using input_t = typename Ktraits::input_t;
  constexpr int kNElts = Ktraits::kNElts;
  extern __shared__ char smem_[];
  auto& load = reinterpret_cast<typename Ktraits::Load::TempStorage&>(smem_);
  auto& store = reinterpret_cast<typename Ktraits::Store::TempStorage&>(smem_);
  input_t* x = reinterpret_cast<input_t*>(params.x_ptr) + blockIdx.x * params.row_stride;
  input_t* out = reinterpret_cast<input_t*>(params.out_ptr) + blockIdx.x * params.out_stride;
  input_t values[kNElts];
  typename Ktraits::Load(load).Load(x, values, params.columns, input_t(0.f));
  for (int i = 0; i < kNElts; ++i) {
    const float value = float(values[i]);
    values[i] = input_t(0.5f * value * (1.0f + erff(value * float(M_SQRT1_2))));
  }
  __syncthreads();
  typename Ktraits::Store(store).Store(out, values, params.columns);
}

void gelu(GeluParams& params, int rows, cudaStream_t stream) {
  using Traits = Gelu_kernel_traits<128, at::BFloat16>;
  gelu_kernel<Traits><<<rows, Traits::kNThreads, 8192, stream>>>(params);
}
