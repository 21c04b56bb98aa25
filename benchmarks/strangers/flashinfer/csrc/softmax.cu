#include <flashinfer/rescale.cuh>

#include "tvm_ffi_utils.h"

using namespace flashinfer;

void softmax(TensorView logits, TensorView output, TensorView temperature_arr) {
  unsigned int batch_size = logits.size(0);
  unsigned int vocab_size = logits.size(1);
  cudaStream_t stream = get_stream(logits.device());
  cudaError_t status = sampling::OnlineSoftmax<float>(
      static_cast<float*>(logits.data_ptr()), static_cast<float*>(output.data_ptr()), batch_size,
      vocab_size, static_cast<float*>(temperature_arr.data_ptr()), 1.0f, stream);
  TVM_FFI_ICHECK(status == cudaSuccess) << "OnlineSoftmax failed";
}
