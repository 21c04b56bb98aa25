// Answers cases on standard input with NVIDIA's own occupancy calculator, one line each:
// major minor warps shared_per_sm shared_per_block reserved registers static dynamic threads barriers
// -> active blocks and the bit mask of limiting factors, or -1 and the error.
#include <cstdio>

#include "cuda_occupancy.h"

int main() {
    int major, minor, warps, registers, threads, barriers;
    long shared_per_sm, shared_per_block, reserved, fixed, dynamic;
    while (std::scanf("%d %d %d %ld %ld %ld %d %ld %ld %d %d", &major, &minor, &warps,
                      &shared_per_sm, &shared_per_block, &reserved, &registers, &fixed, &dynamic,
                      &threads, &barriers) == 11) {
        cudaOccDeviceProp device;
        device.computeMajor = major;
        device.computeMinor = minor;
        device.maxThreadsPerBlock = 1024;
        device.maxThreadsPerMultiprocessor = warps * 32;
        device.regsPerBlock = 65536;
        device.regsPerMultiprocessor = 65536;
        device.warpSize = 32;
        device.sharedMemPerBlock = 48 * 1024;
        device.sharedMemPerMultiprocessor = shared_per_sm;
        device.sharedMemPerBlockOptin = shared_per_block;
        device.reservedSharedMemPerBlock = reserved;
        device.numSms = 1;

        cudaOccFuncAttributes function;
        function.maxThreadsPerBlock = 1024;
        function.numRegs = registers;
        function.sharedSizeBytes = fixed;
        function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        function.maxDynamicSharedSizeBytes = dynamic;
        function.partitionedGCConfig = PARTITIONED_GC_OFF;
        function.numBlockBarriers = barriers;

        cudaOccDeviceState state;
        cudaOccResult result;
        const cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(
            &result, &device, &function, &state, threads, dynamic);
        if (error != CUDA_OCC_SUCCESS) {
            std::printf("-1 %d\n", static_cast<int>(error));
            continue;
        }
        std::printf("%d %u\n", result.activeBlocksPerMultiprocessor, result.limitingFactors);
    }
    return 0;
}
