#include <driftkit/contrast.cuh>

#include "ffi_glue.h"

void stretch_contrast(ffi::TensorView dull, ffi::TensorView vivid, ffi::Optional<ffi::TensorView> powers) {
  float* own_powers = powers.has_value() ? elements<float>(powers.value()) : nullptr;
  const auto went = driftkit::contrast::Stretch(elements<float>(dull), elements<float>(vivid), own_powers,
                                                1.0f, dull.size(0), dull.size(1), stream_beside(dull));
  if (went != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "stretch_contrast: " << cudaGetErrorString(went);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(stretch_contrast, stretch_contrast);
