// A kernel for level1_60.py: out [batch_size, out_channels, width - 2, height - 4, depth - 6] from x [batch_size, in_channels, width, height, depth], conv3d_weight [out_channels, in_channels, 3, 5, 7], row-major.
// A block does TILE_Y x TILE_Z outputs of one (batch, width) plane for OC output channels; a thread
// does one position of them for all OC channels. x and the weights are staged one input channel at a time.
#define BLOCK_SIZE 256
#define TILE_Z 64
#define TILE_Y (BLOCK_SIZE / TILE_Z)
#define OC 8
#define KX 3
#define KY 5
#define KZ 7
#define TAPS (KX * KY * KZ)
#define IN_Y (TILE_Y + KY - 1)
#define IN_Z (TILE_Z + KZ - 1)

__global__ void level1_60_kernel(const float* __restrict__ x, const float* __restrict__ conv3d_weight, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int width, int height, int depth) {
  __shared__ float sx[KX * IN_Y * IN_Z];
  __shared__ __align__(16) float sw[TAPS * OC];  // [tap][channel]

  const int ow = width - (KX - 1), oh = height - (KY - 1), od = depth - (KZ - 1);
  const int tiles_z = (od + TILE_Z - 1) / TILE_Z;
  const int tiles_y = (oh + TILE_Y - 1) / TILE_Y;
  const int groups = (out_channels + OC - 1) / OC;

  int b = blockIdx.x;
  const int z0 = (b % tiles_z) * TILE_Z;
  b /= tiles_z;
  const int y0 = (b % tiles_y) * TILE_Y;
  b /= tiles_y;
  const int px = b % ow;
  b /= ow;
  const int c0 = (b % groups) * OC;
  const int n = b / groups;
  if (n >= batch_size) return;

  const int tz = threadIdx.x % TILE_Z;
  const int ty = threadIdx.x / TILE_Z;

  float acc[OC];
#pragma unroll
  for (int c = 0; c < OC; ++c) acc[c] = 0.0f;

  for (int ic = 0; ic < in_channels; ++ic) {
    __syncthreads();
#pragma unroll 2
    for (int i = threadIdx.x; i < KX * IN_Y * IN_Z; i += BLOCK_SIZE) {
      const int z = z0 + i % IN_Z;
      const int y = y0 + i / IN_Z % IN_Y;
      const int w = px + i / (IN_Z * IN_Y);
      float v = 0.0f;
      if (z < depth && y < height) v = x[((((long long)n * in_channels + ic) * width + w) * height + y) * depth + z];
      sx[i] = v;
    }
#pragma unroll 2
    for (int i = threadIdx.x; i < TAPS * OC; i += BLOCK_SIZE) {
      const int tap = i % TAPS;
      const int c = i / TAPS;
      float v = 0.0f;
      if (c0 + c < out_channels) v = conv3d_weight[((long long)(c0 + c) * in_channels + ic) * TAPS + tap];
      sw[tap * OC + c] = v;
    }
    __syncthreads();

    for (int kx = 0; kx < KX; ++kx) {
#pragma unroll 1
      for (int ky = 0; ky < KY; ++ky) {
        const float* row = sx + (kx * IN_Y + ty + ky) * IN_Z + tz;
        const float* wrow = sw + (kx * KY + ky) * KZ * OC;
#pragma unroll
        for (int kz = 0; kz < KZ; ++kz) {
          const float v = row[kz];
#pragma unroll
          for (int c = 0; c < OC; ++c) acc[c] = fmaf(v, wrow[kz * OC + c], acc[c]);
        }
      }
    }
  }

  const int py = y0 + ty, pz = z0 + tz;
  if (py >= oh || pz >= od) return;
#pragma unroll
  for (int c = 0; c < OC; ++c) {
    if (c0 + c < out_channels) out[((((long long)n * out_channels + c0 + c) * ow + px) * oh + py) * od + pz] = acc[c];
  }
}

void launch(const float* __restrict__ x, const float* __restrict__ conv3d_weight, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int width, int height, int depth) {
  const int tiles_z = (depth - 6 + TILE_Z - 1) / TILE_Z;
  const int tiles_y = (height - 4 + TILE_Y - 1) / TILE_Y;
  const int groups = (out_channels + OC - 1) / OC;
  const int blocks = batch_size * groups * (width - 2) * tiles_y * tiles_z;
  level1_60_kernel<<<blocks, BLOCK_SIZE>>>(x, conv3d_weight, out, batch_size, in_channels, out_channels, width, height, depth);
}
