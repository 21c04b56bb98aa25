// y = 2 + 2 * a * b of 16 x 16, where a and b are by rows or by columns.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda::wmma;

template <class T, class A, class B>
__global__ void multiply(float* y, const T* a, const T* b) {
  __shared__ float s[16 * 20];
  fragment<matrix_a, 16, 16, 16, T, A> left;
  fragment<matrix_b, 16, 16, 16, T, B> right;
  fragment<accumulator, 16, 16, 16, float> sums;
  fill_fragment(sums, 1.0f);
  load_matrix_sync(left, a, 16);
  load_matrix_sync(right, b, 16);
  mma_sync(sums, left, right, sums);
  for (int i = 0; i < sums.num_elements; ++i) sums.x[i] *= 2;
  store_matrix_sync(s, sums, 20, mem_col_major);
  load_matrix_sync(sums, s, 20, mem_col_major);
  store_matrix_sync(y, sums, 16, mem_row_major);
}
