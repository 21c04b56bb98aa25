#include <driftkit/magnitude_share.cuh>

#include "ffi_glue.h"

void scale_by_share(ffi::TensorView given, ffi::TensorView favour, ffi::TensorView scaled,
                    double floor_weight, bool overlap) {
  const uint32_t rows = given.size(0), cols = given.size(1);
  TVM_FFI_ICHECK_EQ(favour.size(0), cols) << "a favour a column";
  WITH_SHORT_FLOAT(given, Elem, {
    const cudaError_t went = driftkit::share::ScaleByShare<Elem>(
        elements<Elem>(given), elements<Elem>(favour), elements<Elem>(scaled), rows, cols,
        given.stride(0), scaled.stride(0), floor_weight, overlap, stream_beside(given));
    TVM_FFI_ICHECK(went == cudaSuccess) << cudaGetErrorString(went);
  })
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale_by_share, scale_by_share);
