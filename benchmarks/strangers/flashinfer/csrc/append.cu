#include <flashinfer/append.cuh>

#include "tvm_ffi_utils.h"

using namespace flashinfer;

void append_kv(TensorView k_cache, TensorView slots, TensorView append_key) {
  unsigned int nnz = append_key.size(0);
  unsigned int num_heads = k_cache.size(2);
  unsigned int head_dim = k_cache.size(3);
  cudaStream_t stream = get_stream(k_cache.device());
  DISPATCH_DLPACK_DTYPE_TO_CTYPE_FP16(k_cache.dtype(), c_type, [&] {
    cache_view_t<c_type, int32_t> cache{static_cast<c_type*>(k_cache.data_ptr()),
                                        static_cast<int32_t*>(slots.data_ptr()), num_heads, head_dim};
    cudaError_t status = AppendKV(cache, static_cast<c_type*>(append_key.data_ptr()), nnz, stream);
    TVM_FFI_ICHECK(status == cudaSuccess) << "AppendKV failed";
    return true;
  });
}
