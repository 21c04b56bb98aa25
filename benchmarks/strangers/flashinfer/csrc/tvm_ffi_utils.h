#pragma once
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

using tvm::ffi::TensorView;

#define DISPATCH_DLPACK_DTYPE_TO_CTYPE_FP16(dlpack_dtype, c_type, ...)  \
  [&]() -> bool {                                                       \
    switch (encode_dlpack_dtype(dlpack_dtype)) {                        \
      case float16_code: {                                              \
        using c_type = half;                                            \
        return __VA_ARGS__();                                           \
      }                                                                 \
      case bfloat16_code: {                                             \
        using c_type = __nv_bfloat16;                                   \
        return __VA_ARGS__();                                           \
      }                                                                 \
      default:                                                          \
        TVM_FFI_ICHECK(false) << "failed to dispatch data type";        \
        return false;                                                   \
    }                                                                   \
  }()
