// output[y, x] = the sum of image[y + i, x + j] * filter[i, j]: each item has a tile of the output.
#ifndef tile_size_x
#define tile_size_x 1
#define tile_size_y 1
#endif

__kernel void convolution(__global float* output, __global const float* image,
                          __constant float* filter, int height, int width, int size) {
  const int first_x = get_group_id(0) * get_local_size(0) * tile_size_x + get_local_id(0);
  const int first_y = get_group_id(1) * get_local_size(1) * tile_size_y + get_local_id(1);
  const int row = width + size - 1;
  for (int v = 0; v < tile_size_y; ++v) {
    for (int u = 0; u < tile_size_x; ++u) {
      const int x = first_x + u * (int)get_local_size(0);
      const int y = first_y + v * (int)get_local_size(1);
      if (x >= width || y >= height) continue;
      float sum = 0.0f;
      for (int i = 0; i < size; ++i) {
        for (int j = 0; j < size; ++j) sum += image[(y + i) * row + x + j] * filter[i * size + j];
      }
      output[y * width + x] = sum;
    }
  }
}
