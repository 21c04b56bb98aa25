// Each wrapper by itself. Operands are rows of 32 bytes; `y` is what the test reads.
#include <tune/wgmma.h>

using u32 = unsigned int;

template <class T>
__global__ void mma_of(float* y, const u32* a, const u32* b) {
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  const u32 ra[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4]};
  const u32 rb[2] = {b[g * 8 + t], b[g * 8 + t + 4]};
  float d[4] = {1, 1, 1, 1};
  tune::mma<T>(d, ra, rb);
  for (int i = 0; i < 4; ++i) y[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = d[i];
}

// y: what each lane gets of one, two and four matrices, plain and transposed.
__global__ void matrices(u32* y, const u32* a) {
  __shared__ __align__(16) u32 s[32 * 4];
  for (int i = 0; i < 4; ++i) s[threadIdx.x * 4 + i] = a[threadIdx.x * 4 + i];
  __syncwarp();
  const u32 row = tune::shared_address(s + threadIdx.x * 4);
  u32 one[1], two[2], four[4];
  u32* at = y + threadIdx.x * 14;
  tune::ldmatrix(one, row), tune::ldmatrix(two, row), tune::ldmatrix(four, row);
  *at++ = one[0], *at++ = two[0], *at++ = two[1];
  for (int i = 0; i < 4; ++i) *at++ = four[i];
  tune::ldmatrix_trans(one, row), tune::ldmatrix_trans(two, row), tune::ldmatrix_trans(four, row);
  *at++ = one[0], *at++ = two[0], *at++ = two[1];
  for (int i = 0; i < 4; ++i) *at++ = four[i];
}

// y: 64 bytes, copied 4, 8 and 16 at a time, each with one part that is filled with zeros.
__global__ void pieces(unsigned char* y, const unsigned char* x) {
  __shared__ __align__(16) unsigned char s[64];
  const u32 to = tune::shared_address(s);
  if (threadIdx.x == 0) {
    tune::cp_async<4>(to, x), tune::cp_async<4>(to + 4, x + 4, 1);
    tune::cp_async<8>(to + 8, x + 8), tune::cp_async<8>(to + 16, x + 16, 3);
    tune::cp_async<16>(to + 32, x + 32), tune::cp_async<16>(to + 48, x + 48, 0);
    tune::cp_async_commit();
    y[64] = s[0];
    tune::cp_async_wait<0>();
    s[24] = s[25] = s[26] = s[27] = s[28] = s[29] = s[30] = s[31] = 7;
    for (int i = 0; i < 64; ++i) y[i] = s[i];
  }
}

// a is 64 rows, b is N; each 32 bytes of K, laid out with a swizzle by the threads themselves.
template <int kSwizzle>
__device__ u32 place(u32 row, u32 chunk) {
  if (kSwizzle == 0) return row / 8 * 256 + chunk * 128 + row % 8 * 16;
  const u32 at = row * kSwizzle + chunk * 16;
  return kSwizzle == 0 ? at : at ^ (at >> 7 & (kSwizzle / 16 - 1)) << 4;
}
template <class T, int N, int kSwizzle, bool kRegisters>
__global__ void __launch_bounds__(128) wgmma_of(float* y, const uint4* a, const uint4* b) {
  extern __shared__ __align__(1024) unsigned char s[];
  constexpr u32 kBytes = kSwizzle ? kSwizzle : 32;
  const u32 t = threadIdx.x, g = t / 32 * 16 + t % 32 / 4;
  for (u32 i = t; i < 128; i += 128) *(uint4*)(s + place<kSwizzle>(i / 2, i % 2)) = a[i];
  for (u32 i = t; i < 2 * N; i += 128) *(uint4*)(s + 64 * kBytes + place<kSwizzle>(i / 2, i % 2)) = b[i];
  tune::fence_proxy_async();
  __syncthreads();
  const auto matrix = [&](u32 start) {
    return kSwizzle ? tune::matrix_descriptor<kSwizzle>(start) : tune::matrix_descriptor<0>(start, 256, 128);
  };
  const auto word = [&](u32 row, u32 w) { return reinterpret_cast<const u32*>(a)[row * 8 + w]; };
  const u32 ra[4] = {word(g, t % 4), word(g + 8, t % 4), word(g, t % 4 + 4), word(g + 8, t % 4 + 4)};
  const u32 from = tune::shared_address(s);
  float d[N / 2];
  tune::wgmma_fence();
  for (int twice = 0; twice < 2; ++twice) {
    if constexpr (kRegisters)
      tune::wgmma<T>(d, ra, matrix(from + 64 * kBytes), twice > 0);
    else
      tune::wgmma<T>(d, matrix(from), matrix(from + 64 * kBytes), twice > 0);
  }
  tune::wgmma_commit();
  tune::wgmma_wait<0>();
  tune::wgmma_keep(d);
  for (int i = 0; i < N / 2; ++i) y[(g + i / 2 % 2 * 8) * N + i / 4 * 8 + t % 4 * 2 + i % 2] = d[i];
}

#ifdef __CUDA_ON_HOST__
// x is 5 x 6 x 24 bytes; boxes of 2 x 4 x 16 from corner to corner + 8, 16, 32: the box with its
// swizzle (y), then the box stored back one further (z).
template <int kSwizzle, int kRank>
__global__ void boxes(unsigned char* y, unsigned char* z, unsigned char* x, const int* corner) {
  extern __shared__ __align__(1024) unsigned char s[];
  constexpr unsigned kRow = kSwizzle ? kSwizzle : 16, kBytes = kRow * 4 * (kRank == 3 ? 2 : 1);
  const auto map = [&](unsigned char* at) {
    if constexpr (kRank == 3)
      return tune::make_tensor_map<3>(at, 2, {64, 6, 5}, {128, 6 * 128}, {kRow / 2, 4, 2}, kSwizzle);
    else
      return tune::make_tensor_map<2>(at, 2, {64, 30}, {128}, {kRow / 2, 4}, kSwizzle);
  };
  const u32 to = tune::shared_address(s), full = to + 4096;
  if (threadIdx.x == 0) {
    tune::mbarrier_init(full, 1);
    tune::fence_mbarrier_init();
    tune::mbarrier_arrive_expect_tx(full, kBytes);
    if constexpr (kRank == 3)
      tune::tensor_load_3d(to, map(x), corner[0], corner[1], corner[2], full);
    else
      tune::tensor_load_2d(to, map(x), corner[0], corner[1], full);
    while (!tune::mbarrier_try_wait(full, 0)) {
    }
    for (unsigned i = 0; i < kBytes; ++i) y[i] = s[i];
    if constexpr (kRank == 3)
      tune::tensor_store_3d(map(z), to, corner[0], corner[1], corner[2]);
    else
      tune::tensor_store_2d(map(z), to, corner[0], corner[1]);
    tune::bulk_commit();
    tune::bulk_wait<0>();
    tune::mbarrier_inval(full);
  }
}
#endif

// y = x in three ranges, by way of shared memory; two warps meet at a named barrier.
__global__ void ranges(u32* y, const u32* x) {
  __shared__ __align__(16) u32 s[96];
  __shared__ unsigned long long full[3];
  if (threadIdx.x == 0) {
    for (int i = 0; i < 3; ++i) tune::mbarrier_init(tune::shared_address(full + i), 2);
    tune::fence_mbarrier_init();
    for (int i = 0; i < 3; ++i) {
      tune::mbarrier_arrive_expect_tx(tune::shared_address(full + i), 128);
      tune::bulk_load(tune::shared_address(s + 32 * i), x + 32 * i, 128, tune::shared_address(full + i));
    }
  }
  tune::named_barrier_sync(2, 64);
  if (threadIdx.x == 32)
    for (int i = 0; i < 3; ++i) tune::mbarrier_arrive(tune::shared_address(full + i));
  if (threadIdx.x == 0) {
    for (int i = 0; i < 3; ++i) {
      tune::mbarrier_wait(tune::shared_address(full + i), 0);
      tune::bulk_store(y + 32 * i, tune::shared_address(s + 32 * i), 128);
      tune::bulk_commit();
    }
    tune::bulk_wait_read<0>();
  }
  tune::griddepcontrol_wait();
  tune::griddepcontrol_launch_dependents();
}

__global__ void semaphores(u32* y) {
  if (threadIdx.x) return;
  tune::add_release(y, 5);
  tune::store_release(y + 1, tune::atomic_add_acq_rel(y, 3));
  y[2] = tune::load_acquire(y);
}
