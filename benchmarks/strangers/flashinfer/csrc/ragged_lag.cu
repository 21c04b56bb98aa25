#include <driftkit/ragged_lag.cuh>

#include "ffi_glue.h"

void lagged_change(ffi::TensorView sound, ffi::TensorView begins, ffi::TensorView change, int64_t lag) {
  const uint32_t number = begins.size(0) - 1;
  WITH_SHORT_FLOAT(sound, Elem, {
    driftkit::ragged_tracks<Elem, int32_t> tracks;
    tracks.change = elements<Elem>(change);
    tracks.begins = elements<int32_t>(begins);
    tracks.voices = sound.size(1);
    tracks.points = sound.size(2);
    const cudaError_t went = driftkit::LaggedChange<Elem, int32_t>(
        tracks, elements<Elem>(sound), static_cast<uint32_t>(lag), number, stream_beside(sound));
    TVM_FFI_ICHECK(went == cudaSuccess) << cudaGetErrorString(went);
  })
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(lagged_change, lagged_change);
