// wgmma: multiplies of a warpgroup, with operands of rows along K ("K-major") in shared memory.
//
// The shape is 64 x N, N 8 to 256 in steps of 8, and 16 of K for 16-bit types, 32 for fp8, 8 for TF32. A header
// of its own, for it takes time to compile. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tune/tensor.h>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define TUNE_HAS_WGMMA true
#else
#define TUNE_HAS_WGMMA false
#endif
#define TUNE_SM90A template <bool kThere = TUNE_HAS_WGMMA> TUNE_DEVICE
#define TUNE_NEEDS_WGMMA static_assert(kThere, "wgmma and setmaxnreg are instructions of sm_90a alone: use mma elsewhere")

namespace tune {

// Before the first multiply, and after other instructions used its registers.
TUNE_SM90A void wgmma_fence() {
  TUNE_NEEDS_WGMMA;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
TUNE_SM90A void wgmma_commit() {
  TUNE_NEEDS_WGMMA;
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// All groups but the last `kPending` have read their operands and written their results.
template <int kPending, bool kThere = TUNE_HAS_WGMMA>
TUNE_DEVICE void wgmma_wait() {
  TUNE_NEEDS_WGMMA;
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keep the compiler from reading results before the wait that stands here.
template <int kCount>
TUNE_DEVICE void wgmma_keep(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kRegisters, bool kThere = TUNE_HAS_WGMMA>
TUNE_DEVICE void setmaxnreg_inc() {
  TUNE_NEEDS_WGMMA;
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters, bool kThere = TUNE_HAS_WGMMA>
TUNE_DEVICE void setmaxnreg_dec() {
  TUNE_NEEDS_WGMMA;
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Where a matrix lies whose rows are `kSwizzle` bytes long (128, 64, 32), as tensor_load writes it:
// eight rows follow eight others after `stride_bytes`. With swizzle 0, 8 rows of 16 bytes lie
// together, and the next 16 bytes of K follow after `leading_bytes`. Advance along K by adding
// bytes to the address.
template <int kSwizzle>
TUNE_DEVICE u64 matrix_descriptor(u32 address, u32 stride_bytes = 8 * kSwizzle, u32 leading_bytes = 16) {
  static_assert(kSwizzle == 0 || kSwizzle == 32 || kSwizzle == 64 || kSwizzle == 128, "0, 32, 64 or 128");
  constexpr u64 kLayout = kSwizzle == 128 ? 1 : kSwizzle == 64 ? 2 : kSwizzle == 32 ? 3 : 0;
  return (address >> 4 & 0x3fff) | u64(leading_bytes >> 4 & 0x3fff) << 16 |
         u64(stride_bytes >> 4 & 0x3fff) << 32 | kLayout << 62;
}

// The accumulators as a text and as operands, four by four.
#define TUNE_OUT(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TUNE_D8 "%0, %1, %2, %3"
#define TUNE_D16 TUNE_D8 ", %4, %5, %6, %7"
#define TUNE_D24 TUNE_D16 ", %8, %9, %10, %11"
#define TUNE_D32 TUNE_D24 ", %12, %13, %14, %15"
#define TUNE_D40 TUNE_D32 ", %16, %17, %18, %19"
#define TUNE_D48 TUNE_D40 ", %20, %21, %22, %23"
#define TUNE_D56 TUNE_D48 ", %24, %25, %26, %27"
#define TUNE_D64 TUNE_D56 ", %28, %29, %30, %31"
#define TUNE_D72 TUNE_D64 ", %32, %33, %34, %35"
#define TUNE_D80 TUNE_D72 ", %36, %37, %38, %39"
#define TUNE_D88 TUNE_D80 ", %40, %41, %42, %43"
#define TUNE_D96 TUNE_D88 ", %44, %45, %46, %47"
#define TUNE_D104 TUNE_D96 ", %48, %49, %50, %51"
#define TUNE_D112 TUNE_D104 ", %52, %53, %54, %55"
#define TUNE_D120 TUNE_D112 ", %56, %57, %58, %59"
#define TUNE_D128 TUNE_D120 ", %60, %61, %62, %63"
#define TUNE_D136 TUNE_D128 ", %64, %65, %66, %67"
#define TUNE_D144 TUNE_D136 ", %68, %69, %70, %71"
#define TUNE_D152 TUNE_D144 ", %72, %73, %74, %75"
#define TUNE_D160 TUNE_D152 ", %76, %77, %78, %79"
#define TUNE_D168 TUNE_D160 ", %80, %81, %82, %83"
#define TUNE_D176 TUNE_D168 ", %84, %85, %86, %87"
#define TUNE_D184 TUNE_D176 ", %88, %89, %90, %91"
#define TUNE_D192 TUNE_D184 ", %92, %93, %94, %95"
#define TUNE_D200 TUNE_D192 ", %96, %97, %98, %99"
#define TUNE_D208 TUNE_D200 ", %100, %101, %102, %103"
#define TUNE_D216 TUNE_D208 ", %104, %105, %106, %107"
#define TUNE_D224 TUNE_D216 ", %108, %109, %110, %111"
#define TUNE_D232 TUNE_D224 ", %112, %113, %114, %115"
#define TUNE_D240 TUNE_D232 ", %116, %117, %118, %119"
#define TUNE_D248 TUNE_D240 ", %120, %121, %122, %123"
#define TUNE_D256 TUNE_D248 ", %124, %125, %126, %127"
#define TUNE_O8 TUNE_OUT(0)
#define TUNE_O16 TUNE_O8, TUNE_OUT(4)
#define TUNE_O24 TUNE_O16, TUNE_OUT(8)
#define TUNE_O32 TUNE_O24, TUNE_OUT(12)
#define TUNE_O40 TUNE_O32, TUNE_OUT(16)
#define TUNE_O48 TUNE_O40, TUNE_OUT(20)
#define TUNE_O56 TUNE_O48, TUNE_OUT(24)
#define TUNE_O64 TUNE_O56, TUNE_OUT(28)
#define TUNE_O72 TUNE_O64, TUNE_OUT(32)
#define TUNE_O80 TUNE_O72, TUNE_OUT(36)
#define TUNE_O88 TUNE_O80, TUNE_OUT(40)
#define TUNE_O96 TUNE_O88, TUNE_OUT(44)
#define TUNE_O104 TUNE_O96, TUNE_OUT(48)
#define TUNE_O112 TUNE_O104, TUNE_OUT(52)
#define TUNE_O120 TUNE_O112, TUNE_OUT(56)
#define TUNE_O128 TUNE_O120, TUNE_OUT(60)
#define TUNE_O136 TUNE_O128, TUNE_OUT(64)
#define TUNE_O144 TUNE_O136, TUNE_OUT(68)
#define TUNE_O152 TUNE_O144, TUNE_OUT(72)
#define TUNE_O160 TUNE_O152, TUNE_OUT(76)
#define TUNE_O168 TUNE_O160, TUNE_OUT(80)
#define TUNE_O176 TUNE_O168, TUNE_OUT(84)
#define TUNE_O184 TUNE_O176, TUNE_OUT(88)
#define TUNE_O192 TUNE_O184, TUNE_OUT(92)
#define TUNE_O200 TUNE_O192, TUNE_OUT(96)
#define TUNE_O208 TUNE_O200, TUNE_OUT(100)
#define TUNE_O216 TUNE_O208, TUNE_OUT(104)
#define TUNE_O224 TUNE_O216, TUNE_OUT(108)
#define TUNE_O232 TUNE_O224, TUNE_OUT(112)
#define TUNE_O240 TUNE_O232, TUNE_OUT(116)
#define TUNE_O248 TUNE_O240, TUNE_OUT(120)
#define TUNE_O256 TUNE_O248, TUNE_OUT(124)

#define TUNE_ISSUE(N, KIND, ADD, A, MAJOR, ...)                                                   \
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #ADD ", 0;\n\t"                           \
               "wgmma.mma_async.sync.aligned.m64n" #N KIND " {" TUNE_D##N "}, " A                 \
               ", p, 1, 1" MAJOR ";\n\t}" : TUNE_O##N : __VA_ARGS__)
#define TUNE_EACH(N, ADD, A, MAJOR, ...)                                                          \
  TUNE_NEEDS_WGMMA;                                                                               \
  static_assert(is<T, bf16> || is<T, f16> || is<T, tf32> || is<T, e4m3>,                          \
                "wgmma takes bf16, f16, tf32 or e4m3");                                           \
  if constexpr (is<T, bf16>) TUNE_ISSUE(N, "k16.f32.bf16.bf16", ADD, A, MAJOR, __VA_ARGS__);      \
  if constexpr (is<T, f16>) TUNE_ISSUE(N, "k16.f32.f16.f16", ADD, A, MAJOR, __VA_ARGS__);         \
  if constexpr (is<T, tf32>) TUNE_ISSUE(N, "k8.f32.tf32.tf32", ADD, A, "", __VA_ARGS__);          \
  if constexpr (is<T, e4m3>) TUNE_ISSUE(N, "k32.f32.e4m3.e4m3", ADD, A, "", __VA_ARGS__)
// N, and the numbers of the operands that follow its N / 2 accumulators.
#define TUNE_WGMMA(N, I, J, K, L, M, O)                                                           \
  template <class T, bool kThere = TUNE_HAS_WGMMA>                                                \
  TUNE_DEVICE void wgmma(float (&d)[N / 2], u64 a, u64 b, bool accumulate) {                      \
    TUNE_EACH(N, K, "%" #I ", %" #J, ", 0, 0", "l"(a), "l"(b), "r"(int(accumulate)));             \
  }                                                                                               \
  template <class T, bool kThere = TUNE_HAS_WGMMA>                                                \
  TUNE_DEVICE void wgmma(float (&d)[N / 2], const u32 (&a)[4], u64 b, bool accumulate) {          \
    TUNE_EACH(N, O, "{%" #I ", %" #J ", %" #K ", %" #L "}, %" #M, ", 0", "r"(a[0]), "r"(a[1]),    \
              "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));                                \
  }

template <class A, class B>
constexpr bool is = false;
template <class A>
constexpr bool is<A, A> = true;

// d = a * b, and + d where `accumulate`, of a warpgroup: a in shared memory or in registers, b in
// shared memory, by their descriptors. No register of d or a may be touched before the wait.
TUNE_WGMMA(8, 4, 5, 6, 7, 8, 9)
TUNE_WGMMA(16, 8, 9, 10, 11, 12, 13)
TUNE_WGMMA(24, 12, 13, 14, 15, 16, 17)
TUNE_WGMMA(32, 16, 17, 18, 19, 20, 21)
TUNE_WGMMA(40, 20, 21, 22, 23, 24, 25)
TUNE_WGMMA(48, 24, 25, 26, 27, 28, 29)
TUNE_WGMMA(56, 28, 29, 30, 31, 32, 33)
TUNE_WGMMA(64, 32, 33, 34, 35, 36, 37)
TUNE_WGMMA(72, 36, 37, 38, 39, 40, 41)
TUNE_WGMMA(80, 40, 41, 42, 43, 44, 45)
TUNE_WGMMA(88, 44, 45, 46, 47, 48, 49)
TUNE_WGMMA(96, 48, 49, 50, 51, 52, 53)
TUNE_WGMMA(104, 52, 53, 54, 55, 56, 57)
TUNE_WGMMA(112, 56, 57, 58, 59, 60, 61)
TUNE_WGMMA(120, 60, 61, 62, 63, 64, 65)
TUNE_WGMMA(128, 64, 65, 66, 67, 68, 69)
TUNE_WGMMA(136, 68, 69, 70, 71, 72, 73)
TUNE_WGMMA(144, 72, 73, 74, 75, 76, 77)
TUNE_WGMMA(152, 76, 77, 78, 79, 80, 81)
TUNE_WGMMA(160, 80, 81, 82, 83, 84, 85)
TUNE_WGMMA(168, 84, 85, 86, 87, 88, 89)
TUNE_WGMMA(176, 88, 89, 90, 91, 92, 93)
TUNE_WGMMA(184, 92, 93, 94, 95, 96, 97)
TUNE_WGMMA(192, 96, 97, 98, 99, 100, 101)
TUNE_WGMMA(200, 100, 101, 102, 103, 104, 105)
TUNE_WGMMA(208, 104, 105, 106, 107, 108, 109)
TUNE_WGMMA(216, 108, 109, 110, 111, 112, 113)
TUNE_WGMMA(224, 112, 113, 114, 115, 116, 117)
TUNE_WGMMA(232, 116, 117, 118, 119, 120, 121)
TUNE_WGMMA(240, 120, 121, 122, 123, 124, 125)
TUNE_WGMMA(248, 124, 125, 126, 127, 128, 129)
TUNE_WGMMA(256, 128, 129, 130, 131, 132, 133)

}  // namespace tune
