// What nvcc knows without an #include and NVRTC does not; read before every source.
#pragma once
// GNU's mark on what its dialect has beyond C++
#define __extension__
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
__device__ __forceinline__ void cudaGridDependencySynchronize() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void cudaTriggerProgrammaticLaunchCompletion() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
