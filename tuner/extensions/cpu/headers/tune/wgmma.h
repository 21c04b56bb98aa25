// The multiplies of a warpgroup of `<tune/wgmma.h>`, run on the CPU when they are waited for.
#pragma once

#include "tensor.h"

namespace tune {

inline void wgmma_fence(ON_HOST_LINE) { cuda_on_host::fence_multiplies(line); }
inline void wgmma_commit(ON_HOST_LINE) { cuda_on_host::commit_multiplies(line); }
template <int kPending>
void wgmma_wait(ON_HOST_LINE) {
  cuda_on_host::wait_for_multiplies(kPending, line);
}
template <int kCount>
void wgmma_keep(float (&)[kCount]) {}
template <int kRegisters>
void setmaxnreg_inc() {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0, "24 to 256, by 8");
}
template <int kRegisters>
void setmaxnreg_dec() {
  setmaxnreg_inc<kRegisters>();
}

template <int kSwizzle>
u64 matrix_descriptor(u32 address, u32 stride_bytes = 8 * kSwizzle, u32 leading_bytes = 16) {
  static_assert(kSwizzle == 0 || kSwizzle == 32 || kSwizzle == 64 || kSwizzle == 128, "0, 32, 64 or 128");
  constexpr u64 kLayout = kSwizzle == 128 ? 1 : kSwizzle == 64 ? 2 : kSwizzle == 32 ? 3 : 0;
  return (address >> 4 & 0x3fff) | u64(leading_bytes >> 4 & 0x3fff) << 16 |
         u64(stride_bytes >> 4 & 0x3fff) << 32 | kLayout << 62;
}

template <class T, int kCount>
void wgmma(float (&d)[kCount], u64 a, u64 b, bool accumulate, ON_HOST_LINE) {
  static_assert(kCount % 4 == 0 && kCount <= 128, "N / 2 accumulators, N 8 to 256 in steps of 8");
  static_assert(narrow(T()) != cuda_on_host::OperandType::e5m2, "wgmma takes bf16, f16, tf32 or e4m3");
  cuda_on_host::multiply_later({d, 2 * kCount, narrow(T()), accumulate, true, a, b, {}, line});
}
template <class T, int kCount>
void wgmma(float (&d)[kCount], const u32 (&a)[4], u64 b, bool accumulate, ON_HOST_LINE) {
  static_assert(kCount % 4 == 0 && kCount <= 128, "N / 2 accumulators, N 8 to 256 in steps of 8");
  static_assert(narrow(T()) != cuda_on_host::OperandType::e5m2, "wgmma takes bf16, f16, tf32 or e4m3");
  cuda_on_host::Multiply one{d, 2 * kCount, narrow(T()), accumulate, false, 0, b, {}, line};
  cuda_on_host::gather_rows(one, a);
  cuda_on_host::multiply_later(one);
}

}  // namespace tune
