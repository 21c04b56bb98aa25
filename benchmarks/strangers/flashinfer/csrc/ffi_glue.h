#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace ffi = tvm::ffi;

inline cudaStream_t stream_beside(const ffi::TensorView& tensor) {
  const DLDevice home = tensor.device();
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(home.device_type, home.device_id));
}

template <typename Elem>
Elem* elements(const ffi::TensorView& tensor) {
  return reinterpret_cast<Elem*>(tensor.data_ptr());
}

// Names the element of a tensor of 16 bits, and runs the rest with it.
#define WITH_SHORT_FLOAT(TENSOR, ELEM, ...)                                                        \
  if (const DLDataType kind = (TENSOR).dtype(); kind.bits != 16) {                                 \
    TVM_FFI_THROW(TypeError) << "of floats, only those of 16 bits will do";                        \
  } else if (kind.code == kDLBfloat) {                                                             \
    using ELEM = __nv_bfloat16;                                                                    \
    __VA_ARGS__                                                                                    \
  } else {                                                                                         \
    using ELEM = __half;                                                                           \
    __VA_ARGS__                                                                                    \
  }
