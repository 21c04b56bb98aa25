#include <cuda_runtime.h>
#include <stdlib.h>

#define WIDTH  640
#define HEIGHT 480
#define BX 32
#define BY 8
#define DIV_UP(a, b) (((a) + (b) - 1) / (b))
#define AT(p, r, c) (p)[(r) * WIDTH + (c)]

/* The mean of the pixel and its two neighbours in the row, in 16 bits. */
__global__ void blur(const unsigned char *src, unsigned short *dst)
{
    const int c = blockIdx.x * BX + threadIdx.x;
    const int r = blockIdx.y * BY + threadIdx.y;
    if (c >= WIDTH || r >= HEIGHT) return;
    const int left = c > 0 ? c - 1 : 0, right = c < WIDTH - 1 ? c + 1 : WIDTH - 1;
    dst[r * WIDTH + c] = (AT(src, r, left) + AT(src, r, c) + AT(src, r, right)) / 3;
}

int main(void)
{
    unsigned char *src;
    unsigned short *dst;
    cudaMalloc((void **)&src, WIDTH * HEIGHT);
    cudaMalloc((void **)&dst, WIDTH * HEIGHT * sizeof(unsigned short));
    blur<<<dim3(DIV_UP(WIDTH, BX), DIV_UP(HEIGHT, BY)), dim3(BX, BY)>>>(src, dst);
    return cudaDeviceSynchronize();
}
