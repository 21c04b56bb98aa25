// What macros of PyTorch stand for in device code.
#define C10_HOST_DEVICE __host__ __device__
#define C10_DEVICE __device__
#define C10_HOST __host__
#define C10_RESTRICT __restrict__
#define C10_ALWAYS_INLINE __forceinline__
#define C10_WARP_SIZE 32
#define C10_LAUNCH_BOUNDS_0 __launch_bounds__(256, 4)
#define C10_LAUNCH_BOUNDS_1(threads) __launch_bounds__(threads)
#define C10_LAUNCH_BOUNDS_2(threads, blocks) __launch_bounds__(threads, blocks)
#define CUDA_KERNEL_ASSERT(condition) assert(condition)
#define WARP_SHFL_XOR(value, lanes) __shfl_xor_sync(0xffffffff, value, lanes)
#define WARP_SHFL_DOWN(value, lanes) __shfl_down_sync(0xffffffff, value, lanes)
#define WARP_SHFL(value, lane) __shfl_sync(0xffffffff, value, lane)
#define CUDA_KERNEL_LOOP(i, n) \
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += blockDim.x * gridDim.x)
#define C10_UNUSED [[maybe_unused]]
#define C10_NOINLINE __noinline__
#define C10_LIKELY(condition) (condition)
#define C10_UNLIKELY(condition) (condition)
#define C10_UNROLL _Pragma("unroll")
#define GPU_LAMBDA __host__ __device__
#define CUDA_KERNEL_ASSERT_MSG(condition, text) assert(condition)
#define CUDA_KERNEL_LOOP_TYPE(i, n, type) \
  for (type i = blockIdx.x * (type)blockDim.x + threadIdx.x; i < (n); i += (type)blockDim.x * gridDim.x)
#define WARP_BALLOT(value) __ballot_sync(0xffffffff, value)
#define WARP_SYNC() __syncwarp()
