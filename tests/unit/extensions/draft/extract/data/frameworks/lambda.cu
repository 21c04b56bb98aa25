template <bool kGate, int kTaps>
__global__ void filter(float* y, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = kGate ? x[i] * kTaps : x[i];
}

void run(float* y, const float* x, int n, int taps) {
  auto launch = [&](auto TAPS) {
    constexpr int count = decltype(TAPS)::value;
    filter<true, count><<<(n + 127) / 128, 128>>>(y, x, n);
  };
  switch (taps) {
    case 5: launch(std::integral_constant<int, 5>{}); break;
    case 7: launch(std::integral_constant<int, 7 >{}); break;
  }
}
