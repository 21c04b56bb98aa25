// One tile of a product, in the style of kernels that write their tensor cores by hand: cp.async to
// shared memory, ldmatrix, mma; and a bulk copy that an mbarrier counts.

__device__ unsigned in_shared(const void* p) {
  unsigned address;
  asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }" : "=r"(address) : "l"(p));
  return address;
}

// kWords of 4 bytes are a row: 4 or 8.
template <int kWords>
__device__ void fetch(unsigned (*tile)[kWords], const unsigned* from, int rows) {
  for (int i = threadIdx.x; i < rows * kWords / 4; i += 32)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], %2;" ::"r"(in_shared(&tile[0][0] + 4 * i)),
                 "l"(from + 4 * i), "n"(16));
  asm volatile("cp.async.commit_group;\n" ::);
  asm volatile("cp.async.wait_group %0;\n" ::"n"(0));
  __syncwarp();
}

#define MMA_OF_32_BYTES(NAME, SHAPE)                                                                      \
  extern "C" __global__ void NAME(float* y, const unsigned* x, const unsigned* w) {                       \
    __shared__ __align__(16) unsigned xs[16][8], ws[8][8];                                                \
    fetch<8>(xs, x, 16);                                                                                  \
    fetch<8>(ws, w, 8);                                                                                   \
    const int lane = threadIdx.x;                                                                         \
    unsigned a[4], b[2];                                                                                  \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"                       \
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])                                         \
                 : "r"(in_shared(&xs[lane % 16][lane / 16 * 4])));                                        \
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"                               \
                 : "=r"(b[0]), "=r"(b[1])                                                                 \
                 : "r"(in_shared(&ws[lane % 8][lane / 8 % 2 * 4])));                                      \
    float d[4];                                                                                           \
    asm volatile("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "              \
                 "{%10, %11, %12, %13};"                                                                  \
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.f), "f"(0.f), \
                   "f"(0.f), "f"(0.f));                                                                   \
    for (int i = 0; i < 4; ++i) y[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];              \
  }
MMA_OF_32_BYTES(tile_bf16_16, "m16n8k16.row.col.f32.bf16.bf16.f32")
MMA_OF_32_BYTES(tile_e4m3_32, "m16n8k32.row.col.f32.e4m3.e4m3.f32")
MMA_OF_32_BYTES(tile_tf32_8, "m16n8k8.row.col.f32.tf32.tf32.f32")

extern "C" __global__ void tile_f16_8(float* y, const unsigned* x, const unsigned* w) {
  const int group = threadIdx.x / 4, word = threadIdx.x % 4;
  float d[4] = {};
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(x[group * 4 + word]), "r"(x[(group + 8) * 4 + word]), "r"(w[group * 4 + word]));
  for (int i = 0; i < 4; ++i) y[(group + i / 2 * 8) * 8 + word * 2 + i % 2] = d[i];
}

extern "C" __global__ void landed(float* y, const float* x) {
  __shared__ __align__(128) float tile[64];
  __shared__ unsigned long long barrier;
  const unsigned at = in_shared(&barrier);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(1));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(256));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     in_shared(tile)),
                 "l"(x), "r"(256), "r"(at)
                 : "memory");
  }
  __syncwarp();
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}\n" ::"r"(at),
      "r"(0));
  for (int i = threadIdx.x; i < 64; i += 32) y[i] = 2 * tile[i];
}
