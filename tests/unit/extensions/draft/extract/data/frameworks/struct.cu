#include <torch/extension.h>
struct Args { void* out; const void* in; int rows, cols; };
template <typename T>
__global__ void copy_rows(Args args) {
  T* out = reinterpret_cast<T*>(args.out);
  const T* in = reinterpret_cast<const T*>(args.in);
  const int c = threadIdx.x;
  if (c < args.cols) out[blockIdx.x * args.cols + c] = in[blockIdx.x * args.cols + c];
}
void run(Args args) { copy_rows<__half><<<args.rows, 64>>>(args); }
