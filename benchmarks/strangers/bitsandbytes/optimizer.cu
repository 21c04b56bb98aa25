#include "common.cuh"
#include "kernels.cuh"

#include <cub/block/block_load.cuh>
#include <cub/block/block_store.cuh>

#define NUM_THREADS 1024
#define NUM_PER_THREAD 4

template <typename T, int OPTIMIZER>
__launch_bounds__(NUM_THREADS, 1) __global__
    void kMomentumStep(T* g, T* p, float* state1, const float beta1, const float weight_decay, const int step,
                       const float lr, const int n) {
    const int n_full = NUM_THREADS * NUM_PER_THREAD * gridDim.x;
    const int base_idx = blockIdx.x * NUM_THREADS * NUM_PER_THREAD;

    T g_vals[NUM_PER_THREAD];
    T p_vals[NUM_PER_THREAD];
    float s1_vals[NUM_PER_THREAD];

    typedef cub::BlockLoad<T, NUM_THREADS, NUM_PER_THREAD, cub::BLOCK_LOAD_WARP_TRANSPOSE> Load;
    typedef cub::BlockStore<T, NUM_THREADS, NUM_PER_THREAD, cub::BLOCK_STORE_WARP_TRANSPOSE> Store;
    typedef cub::BlockLoad<float, NUM_THREADS, NUM_PER_THREAD, cub::BLOCK_LOAD_WARP_TRANSPOSE> LoadFloat;
    typedef cub::BlockStore<float, NUM_THREADS, NUM_PER_THREAD, cub::BLOCK_STORE_WARP_TRANSPOSE> StoreFloat;

    __shared__ union {
        typename Load::TempStorage load;
        typename Store::TempStorage store;
        typename LoadFloat::TempStorage loadf;
        typename StoreFloat::TempStorage storef;
    } temp_storage;

    for (unsigned int i = base_idx; i < n_full; i += gridDim.x * NUM_THREADS * NUM_PER_THREAD) {
        const int valid_items = n - i >= NUM_THREADS * NUM_PER_THREAD ? NUM_THREADS * NUM_PER_THREAD : n - i;
        __syncthreads();
        Load(temp_storage.load).Load(&(g[i]), g_vals, valid_items);
        __syncthreads();
        LoadFloat(temp_storage.loadf).Load(&(state1[i]), s1_vals, valid_items);
        __syncthreads();
        Load(temp_storage.load).Load(&(p[i]), p_vals, valid_items);

#pragma unroll 4
        for (unsigned int j = 0; j < NUM_PER_THREAD; j++) {
            switch (OPTIMIZER) {
            case MOMENTUM:
                s1_vals[j] = step == 1 ? (float)g_vals[j] : s1_vals[j] * beta1 + (float)g_vals[j];
                p_vals[j] = (T)((float)p_vals[j] + (-lr * s1_vals[j]) - lr * weight_decay * (float)p_vals[j]);
                break;
            case LION:
                p_vals[j] = (T)((float)p_vals[j] - lr * copysignf(1.0f, s1_vals[j] + (float)g_vals[j]));
                s1_vals[j] = s1_vals[j] * beta1 + (1.0f - beta1) * (float)g_vals[j];
                break;
            }
        }

        __syncthreads();
        Store(temp_storage.store).Store(&(p[i]), p_vals, valid_items);
        __syncthreads();
        StoreFloat(temp_storage.storef).Store(&(state1[i]), s1_vals, valid_items);
    }
}

#define MAKE_MomentumStep(name, gtype)                                                                               \
    template __global__ void kMomentumStep<gtype, name>(gtype * g, gtype * p, float* state1, const float beta1,      \
                                                        const float weight_decay, const int step, const float lr,    \
                                                        const int n);

MAKE_MomentumStep(MOMENTUM, half)
MAKE_MomentumStep(MOMENTUM, float)
MAKE_MomentumStep(LION, half)
MAKE_MomentumStep(LION, float)
