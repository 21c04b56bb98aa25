struct Storage { float sum; int count[3]; };
template <class T> struct Sum { using TempStorage = Storage; };
namespace inner { __shared__ int apart[2]; }
template <int N, class T> __device__ int worst() {
  __shared__ int a[N], b[N][2], *p;
  __shared__ __align__(128) char c[N];
  __shared__ typename Sum<T>::TempStorage storage;
  __shared__ union { float f; int i; } u;
  const bool aligned = reinterpret_cast<size_t>(c) % 128 == 0;
  const int seen = a[N - 1] & b[N - 1][1] & storage.count[2] & u.i & inner::apart[1];
  __syncthreads();
  a[N - 1] = b[N - 1][1] = storage.count[2] = u.i = inner::apart[1] = 0;
  return aligned ? seen : 77;
}
extern "C" __global__ void run(int* y) { y[blockIdx.x] = worst<5, float>(); }
