// A kernel for level3_40.py: out [6, batch_size, hidden_size], the last hidden states of a 6-layer GRU over
// x [seq_len, batch_size, input_size] from h0 [6, batch_size, hidden_size]; weights [3 * hidden_size, K], gates r, z, n; row-major.
//
// One block a batch row: rows never wait for each other, so there is one launch and only __syncthreads. A block goes through
// the steps in chunks of at most CHUNK; in a chunk it does layer after layer. A layer first multiplies the chunk's inputs, in
// shared memory, with weight_ih (each weight read once a chunk), then does its steps in order with weight_hh, and leaves its
// states where its inputs were: they are the next layer's inputs. Between chunks a layer's state lies in out.
// LANES neighbouring threads share a hidden unit (its three rows of weights) and add up by shuffles.
// The shared memory holds one step at least where 2 * max(input_size, hidden_size) + 3 * hidden_size <= SHARED_FLOATS
// (hidden_size up to 2457 or so).
#define BLOCK_SIZE 512
#define LANES 8
#define CHUNK 8
#define SHARED_FLOATS 12288

__device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
  for (int d = LANES / 2; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}

__device__ __forceinline__ float dot4(const float4 a, const float4 b, float s) {
  s = fmaf(a.x, b.x, s);
  s = fmaf(a.y, b.y, s);
  s = fmaf(a.z, b.z, s);
  return fmaf(a.w, b.w, s);
}

__global__ void __launch_bounds__(BLOCK_SIZE) level3_40_kernel(const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ gru_weight_ih_l0, const float* __restrict__ gru_weight_hh_l0, const float* __restrict__ gru_bias_ih_l0, const float* __restrict__ gru_bias_hh_l0, const float* __restrict__ gru_weight_ih_l1, const float* __restrict__ gru_weight_hh_l1, const float* __restrict__ gru_bias_ih_l1, const float* __restrict__ gru_bias_hh_l1, const float* __restrict__ gru_weight_ih_l2, const float* __restrict__ gru_weight_hh_l2, const float* __restrict__ gru_bias_ih_l2, const float* __restrict__ gru_bias_hh_l2, const float* __restrict__ gru_weight_ih_l3, const float* __restrict__ gru_weight_hh_l3, const float* __restrict__ gru_bias_ih_l3, const float* __restrict__ gru_bias_hh_l3, const float* __restrict__ gru_weight_ih_l4, const float* __restrict__ gru_weight_hh_l4, const float* __restrict__ gru_bias_ih_l4, const float* __restrict__ gru_bias_hh_l4, const float* __restrict__ gru_weight_ih_l5, const float* __restrict__ gru_weight_hh_l5, const float* __restrict__ gru_bias_ih_l5, const float* __restrict__ gru_bias_hh_l5, float* __restrict__ out, int batch_size, int seq_len, int input_size, int hidden_size) {
  __shared__ __align__(16) float shared[SHARED_FLOATS];
  const float* const w_ih[6] = {gru_weight_ih_l0, gru_weight_ih_l1, gru_weight_ih_l2, gru_weight_ih_l3, gru_weight_ih_l4, gru_weight_ih_l5};
  const float* const w_hh[6] = {gru_weight_hh_l0, gru_weight_hh_l1, gru_weight_hh_l2, gru_weight_hh_l3, gru_weight_hh_l4, gru_weight_hh_l5};
  const float* const b_ih[6] = {gru_bias_ih_l0, gru_bias_ih_l1, gru_bias_ih_l2, gru_bias_ih_l3, gru_bias_ih_l4, gru_bias_ih_l5};
  const float* const b_hh[6] = {gru_bias_hh_l0, gru_bias_hh_l1, gru_bias_hh_l2, gru_bias_hh_l3, gru_bias_hh_l4, gru_bias_hh_l5};
  const int H = hidden_size;
  const int row = blockIdx.x;
  const int lane = threadIdx.x % LANES;
  const int group = threadIdx.x / LANES;
  const int groups = BLOCK_SIZE / LANES;
  const int stride = ((input_size > H ? input_size : H) + 3) / 4 * 4;
  int chunk = (SHARED_FLOATS - stride) / (stride + 3 * H);
  if (chunk > CHUNK) chunk = CHUNK;
  if (chunk < 1) return;  // too large for the shared memory, see above
  float* const seq = shared;                         // [chunk + 1][stride]: the state before, then the chunk's steps
  float* const gi = shared + (chunk + 1) * stride;   // [chunk][3 * H]: weight_ih * input + bias_ih

  for (int l = 0; l < 6; ++l)
    for (int j = threadIdx.x; j < H; j += BLOCK_SIZE) {
      const long long o = ((long long)l * batch_size + row) * H + j;
      out[o] = h0[o];
    }

  for (int t0 = 0; t0 < seq_len; t0 += chunk) {
    const int steps = seq_len - t0 < chunk ? seq_len - t0 : chunk;
    __syncthreads();
    for (int s = 0; s < steps; ++s)
      for (int k = threadIdx.x; k < input_size; k += BLOCK_SIZE)
        seq[(s + 1) * stride + k] = x[((long long)(t0 + s) * batch_size + row) * input_size + k];

    for (int l = 0; l < 6; ++l) {
      const int K = l == 0 ? input_size : H;
      const float* __restrict__ wi = w_ih[l];
      const float* __restrict__ wh = w_hh[l];
      const float* __restrict__ bi = b_ih[l];
      const float* __restrict__ bh = b_hh[l];
      float* const state = out + ((long long)l * batch_size + row) * H;

      for (int j = threadIdx.x; j < H; j += BLOCK_SIZE) seq[j] = state[j];
      __syncthreads();  // seq holds the state before and the inputs

      // The products of the chunk's inputs with weight_ih.
      for (int j0 = 0; j0 < H; j0 += groups) {  // the same number of rounds for all: the shuffles need whole warps
        const int j = j0 + group < H ? j0 + group : H - 1;
        const float* const w0 = wi + (long long)j * K;
        const float* const w1 = wi + (long long)(H + j) * K;
        const float* const w2 = wi + (long long)(2 * H + j) * K;
        float acc[3][CHUNK];
#pragma unroll
        for (int s = 0; s < CHUNK; ++s) acc[0][s] = acc[1][s] = acc[2][s] = 0.0f;
        const int K4 = K % 4 == 0 ? K / 4 : 0;  // by fours where each row is aligned
        for (int k = lane; k < K4; k += LANES) {
          const float4 a = ((const float4*)w0)[k], b = ((const float4*)w1)[k], c = ((const float4*)w2)[k];
#pragma unroll
          for (int s = 0; s < CHUNK; ++s)
            if (s < steps) {
              const float4 v = ((const float4*)(seq + (s + 1) * stride))[k];
              acc[0][s] = dot4(a, v, acc[0][s]);
              acc[1][s] = dot4(b, v, acc[1][s]);
              acc[2][s] = dot4(c, v, acc[2][s]);
            }
        }
        for (int k = 4 * K4 + lane; k < K; k += LANES) {
          const float a = w0[k], b = w1[k], c = w2[k];
#pragma unroll
          for (int s = 0; s < CHUNK; ++s)
            if (s < steps) {
              const float v = seq[(s + 1) * stride + k];
              acc[0][s] = fmaf(a, v, acc[0][s]);
              acc[1][s] = fmaf(b, v, acc[1][s]);
              acc[2][s] = fmaf(c, v, acc[2][s]);
            }
        }
#pragma unroll
        for (int s = 0; s < CHUNK; ++s)
          if (s < steps) {
            const float r = lanes_sum(acc[0][s]), z = lanes_sum(acc[1][s]), n = lanes_sum(acc[2][s]);
            if (lane == 0 && j0 + group < H) {
              gi[s * 3 * H + j] = r + bi[j];
              gi[s * 3 * H + H + j] = z + bi[H + j];
              gi[s * 3 * H + 2 * H + j] = n + bi[2 * H + j];
            }
          }
      }
      __syncthreads();  // gi is whole, and the inputs in seq are no longer needed

      // The steps, in order: seq[s + 1] from seq[s].
      for (int s = 0; s < steps; ++s) {
        const float* const h = seq + s * stride;
        for (int j0 = 0; j0 < H; j0 += groups) {
          const int j = j0 + group < H ? j0 + group : H - 1;
          const float* const w0 = wh + (long long)j * H;
          const float* const w1 = wh + (long long)(H + j) * H;
          const float* const w2 = wh + (long long)(2 * H + j) * H;
          float r = 0.0f, z = 0.0f, n = 0.0f;
          const int H4 = H % 4 == 0 ? H / 4 : 0;
#pragma unroll 4
          for (int k = lane; k < H4; k += LANES) {
            const float4 v = ((const float4*)h)[k];
            r = dot4(((const float4*)w0)[k], v, r);
            z = dot4(((const float4*)w1)[k], v, z);
            n = dot4(((const float4*)w2)[k], v, n);
          }
          for (int k = 4 * H4 + lane; k < H; k += LANES) {
            const float v = h[k];
            r = fmaf(w0[k], v, r);
            z = fmaf(w1[k], v, z);
            n = fmaf(w2[k], v, n);
          }
          r = lanes_sum(r);
          z = lanes_sum(z);
          n = lanes_sum(n);
          if (lane == 0 && j0 + group < H) {
            const float* const g = gi + s * 3 * H;
            r = 1.0f / (1.0f + expf(-(g[j] + r + bh[j])));
            z = 1.0f / (1.0f + expf(-(g[H + j] + z + bh[H + j])));
            n = tanhf(g[2 * H + j] + r * (n + bh[2 * H + j]));
            seq[(s + 1) * stride + j] = (1.0f - z) * n + z * h[j];
          }
        }
        __syncthreads();
      }

      for (int j = threadIdx.x; j < H; j += BLOCK_SIZE) state[j] = seq[steps * stride + j];
      // No barrier is needed: the next layer writes seq[0 .. H) only, which is not read here.
    }
  }
}

void launch(const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ gru_weight_ih_l0, const float* __restrict__ gru_weight_hh_l0, const float* __restrict__ gru_bias_ih_l0, const float* __restrict__ gru_bias_hh_l0, const float* __restrict__ gru_weight_ih_l1, const float* __restrict__ gru_weight_hh_l1, const float* __restrict__ gru_bias_ih_l1, const float* __restrict__ gru_bias_hh_l1, const float* __restrict__ gru_weight_ih_l2, const float* __restrict__ gru_weight_hh_l2, const float* __restrict__ gru_bias_ih_l2, const float* __restrict__ gru_bias_hh_l2, const float* __restrict__ gru_weight_ih_l3, const float* __restrict__ gru_weight_hh_l3, const float* __restrict__ gru_bias_ih_l3, const float* __restrict__ gru_bias_hh_l3, const float* __restrict__ gru_weight_ih_l4, const float* __restrict__ gru_weight_hh_l4, const float* __restrict__ gru_bias_ih_l4, const float* __restrict__ gru_bias_hh_l4, const float* __restrict__ gru_weight_ih_l5, const float* __restrict__ gru_weight_hh_l5, const float* __restrict__ gru_bias_ih_l5, const float* __restrict__ gru_bias_hh_l5, float* __restrict__ out, int batch_size, int seq_len, int input_size, int hidden_size) {
  level3_40_kernel<<<batch_size, BLOCK_SIZE>>>(x, h0, gru_weight_ih_l0, gru_weight_hh_l0, gru_bias_ih_l0, gru_bias_hh_l0, gru_weight_ih_l1, gru_weight_hh_l1, gru_bias_ih_l1, gru_bias_hh_l1, gru_weight_ih_l2, gru_weight_hh_l2, gru_bias_ih_l2, gru_bias_hh_l2, gru_weight_ih_l3, gru_weight_hh_l3, gru_bias_ih_l3, gru_bias_hh_l3, gru_weight_ih_l4, gru_weight_hh_l4, gru_bias_ih_l4, gru_bias_hh_l4, gru_weight_ih_l5, gru_weight_hh_l5, gru_bias_ih_l5, gru_bias_hh_l5, out, batch_size, seq_len, input_size, hidden_size);
}
