// nvcuda::wmma of 16 x 16 x 16, half or bfloat16 to float or half, on the CPU.
#pragma once

#include "cuda_bf16.h"

namespace nvcuda {
namespace wmma {

struct row_major;
struct col_major;
struct matrix_a;
struct matrix_b;
struct accumulator;
enum layout_t { mem_row_major, mem_col_major };

// Which element a lane holds is left open by CUDA: here each has eight that follow each other.
template <class Use, int kM, int kN, int kK, class T, class Layout = void>
struct fragment {
  static_assert(kM == 16 && kN == 16 && kK == 16, "the `host` device has wmma of 16 x 16 x 16 alone");
  static constexpr int num_elements = 8;
  T x[num_elements];
};

}  // namespace wmma
}  // namespace nvcuda

namespace cuda_on_host {

inline unsigned wmma_place(int i, unsigned leading, bool by_row) {
  const unsigned at = lane_of(current) * 8 + static_cast<unsigned>(i);
  return by_row ? at / 16 * leading + at % 16 : at % 16 * leading + at / 16;
}

template <class D, class A>
struct WmmaOperands {
  D* d;
  const A *a, *b;
  const D* c;
};

template <class D, class A>
void finish_wmma(Thread* lanes, Lanes present) {
  const auto of = [&](unsigned at) {
    return *reinterpret_cast<const WmmaOperands<D, A>*>(static_cast<uintptr_t>(lanes[at / 8].value));
  };
  if (present != ~0u) trap("calls mma_sync without a whole warp", lanes[__builtin_ctz(present)].line);
  float sums[256];
  for (unsigned at = 0; at < 256; ++at) {
    double sum = static_cast<float>(of(at).c[at % 8]);
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned left = at / 16 * 16 + k, right = k * 16 + at % 16;
      sum += double(float(of(left).a[left % 8])) * double(float(of(right).b[right % 8]));
    }
    sums[at] = static_cast<float>(sum);
  }
  for (unsigned at = 0; at < 256; ++at) of(at).d[at % 8] = D(sums[at]);
}

}  // namespace cuda_on_host

namespace nvcuda {
namespace wmma {

template <class Use, int kM, int kN, int kK, class T, class Layout, class Value>
void fill_fragment(fragment<Use, kM, kN, kK, T, Layout>& f, const Value& value) {
  for (T& one : f.x) one = T(value);
}

template <class Use, int kM, int kN, int kK, class T, class Layout>
void load_matrix_sync(fragment<Use, kM, kN, kK, T, Layout>& f, const T* from, unsigned leading) {
  __syncwarp();
  for (int i = 0; i < 8; ++i)
    f.x[i] = from[cuda_on_host::wmma_place(i, leading, std::is_same<Layout, row_major>::value)];
}
template <int kM, int kN, int kK, class T>
void load_matrix_sync(fragment<accumulator, kM, kN, kK, T>& f, const T* from, unsigned leading,
                      layout_t layout) {
  __syncwarp();
  for (int i = 0; i < 8; ++i)
    f.x[i] = from[cuda_on_host::wmma_place(i, leading, layout == mem_row_major)];
}
template <int kM, int kN, int kK, class T>
void store_matrix_sync(T* to, const fragment<accumulator, kM, kN, kK, T>& f, unsigned leading,
                       layout_t layout) {
  for (int i = 0; i < 8; ++i)
    to[cuda_on_host::wmma_place(i, leading, layout == mem_row_major)] = f.x[i];
  __syncwarp();
}

template <int kM, int kN, int kK, class D, class T, class LayoutA, class LayoutB>
void mma_sync(fragment<accumulator, kM, kN, kK, D>& d,
              const fragment<matrix_a, kM, kN, kK, T, LayoutA>& a,
              const fragment<matrix_b, kM, kN, kK, T, LayoutB>& b,
              const fragment<accumulator, kM, kN, kK, D>& c, ON_HOST_LINE) {
  cuda_on_host::WmmaOperands<D, T> mine = {d.x, a.x, b.x, c.x};
  cuda_on_host::in_warp("mma_sync", cuda_on_host::finish_wmma<D, T>, ~0u,
                        reinterpret_cast<uintptr_t>(&mine), 0, line);
}

}  // namespace wmma
}  // namespace nvcuda
