#define BM 64
#define BN 64
#define BK 8   /* depth of one step */
#define TM 4
#define TN 4
#define WARP_SIZE 32

// C = A B, row major; sizes are multiples of the tiles.
extern "C" __global__ void __launch_bounds__((BM / TM) * (BN / TN))
sgemm(const float* A, const float* B, float* C, int M, int N, int K)
{
    __shared__ float As[BK][BM];
    __shared__ float Bs[BK][BN];
    const int threads = (BM / TM) * (BN / TN);
    const int tid = threadIdx.y * (BN / TN) + threadIdx.x;
    float acc[TM][TN] = {};
    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = tid; i < BM * BK; i += threads)
            As[i % BK][i / BK] = A[(blockIdx.y * BM + i / BK) * K + k0 + i % BK];
        for (int i = tid; i < BK * BN; i += threads)
            Bs[i / BN][i % BN] = B[(k0 + i / BN) * N + blockIdx.x * BN + i % BN];
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < BK; ++k)
            for (int m = 0; m < TM; ++m)
                for (int n = 0; n < TN; ++n)
                    acc[m][n] += As[k][threadIdx.y * TM + m] * Bs[k][threadIdx.x * TN + n];
        __syncthreads();
    }
    for (int m = 0; m < TM; ++m)
        for (int n = 0; n < TN; ++n)
            C[(blockIdx.y * BM + threadIdx.y * TM + m) * N + blockIdx.x * BN + threadIdx.x * TN + n] = acc[m][n];
}

void run_sgemm(const float* A, const float* B, float* C, int M, int N, int K)
{
    dim3 block(BN / TN, BM / TM);
    dim3 grid((N + BN - 1) / BN, (M + BM - 1) / BM);
    sgemm<<<grid, block>>>(A, B, C, M, N, K);
}
