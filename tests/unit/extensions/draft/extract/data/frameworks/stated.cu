#include <torch/extension.h>

#define DEFINE_COPY(T, N)                                                              \
  __global__ void copy_##T(T* out, const T* in) {                                      \
    static_assert(N % 4 == 0, "a width, in fours; not " #N);                           \
    if (threadIdx.x == 0) printf("copied {%d}, of " #T "\n", N);                       \
    out[blockIdx.x * N + threadIdx.x] = in[blockIdx.x * N + threadIdx.x];              \
  }
DEFINE_COPY(float, 128)

void copy(torch::Tensor out, torch::Tensor in) {
  copy_float<<<8, 128>>>(out.data_ptr<float>(), in.data_ptr<float>());
}
