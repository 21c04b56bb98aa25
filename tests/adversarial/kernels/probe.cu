// Doubles its input, and notes in every call all that a kernel can see of what the call is for.
// `look` runs first, with one block; the last block of `run` hands all notes over in `notes`.
constexpr unsigned kCalls = 8192, kSeen = 16;

__device__ unsigned history[kCalls][kSeen];
__device__ float before[4096];
__device__ unsigned calls, arrived;
__device__ long long ended;

static __device__ unsigned low(const void* address) {
  return static_cast<unsigned>(reinterpret_cast<unsigned long long>(address));
}

extern "C" __global__ void look(float* y, unsigned* notes, float* scratch, const float* x, int T) {
  extern __shared__ unsigned dynamic_words[];
  __shared__ unsigned static_words[32];
  if (threadIdx.x != 0 || calls >= kCalls) return;
  unsigned* const seen = history[calls];
  unsigned changed = 0;
  for (int i = 0; i < T; ++i) {
    changed += x[i] != before[i];
    before[i] = x[i];
  }
  const unsigned* const written = reinterpret_cast<const unsigned*>(y);
  seen[0] = written[0];
  seen[1] = written[T - 1];
  seen[2] = reinterpret_cast<const unsigned*>(scratch)[T / 2];
  seen[3] = notes[kSeen];
  seen[4] = reinterpret_cast<const unsigned*>(x)[T];
  seen[5] = written[T];
  seen[6] = dynamic_words[3];
  seen[7] = static_words[3];
  seen[8] = low(y);
  seen[9] = low(x) ^ low(scratch);
  seen[10] = T;
  seen[11] = changed == 0 ? 0 : changed < 100 ? 1 : 2;
  seen[12] = calls;
  seen[13] = static_cast<unsigned>((clock64() - ended) / 1024);
}

extern "C" __global__ void run(float* y, unsigned* notes, float* scratch, const float* x, int T) {
  if (threadIdx.x == 0 && calls < kCalls) {
    const unsigned turn = atomicAdd(&arrived, 1u);
    if (turn == 0) history[calls][14] = blockIdx.x;
    if (turn == 1) history[calls][15] = blockIdx.x;
  }
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < T; i += gridDim.x * blockDim.x) {
    y[i] = 2.0f * x[i];
    scratch[i] = 1.0f;
  }
  __syncthreads();
  if (threadIdx.x == 0 && calls < kCalls && arrived == gridDim.x) {
    arrived = 0;
    ++calls;
    for (unsigned i = 0; i < kCalls * kSeen; ++i) notes[i] = (&history[0][0])[i];
    ended = clock64();
  }
}
