namespace kit {
constexpr int threads = 256;
}
template <int kTaps, bool kIsCircularBuffer>
__global__ void k(float* x, int rows, int width) {
  if (threadIdx.x < width) x[threadIdx.x] = kTaps;
}
void run(float* x, int rows, int width) {
  const int lanes = ceil_to_power(width);
  const int per_block = kit::threads / lanes;
  const int threads = std::min(width, kit::threads);
  k<3, true><<<(rows + per_block - 1) / per_block, threads>>>(x, rows, width);
}
