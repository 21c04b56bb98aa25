template <typename T, int N>
struct alignas(sizeof(T) * N) VECTOR {
  T values[N];

  static __device__ __forceinline__ VECTOR load(const T* from) {
//% if STREAMING
    VECTOR own;
    for (int w = 0; w < int(sizeof(VECTOR) / 16); ++w)
      reinterpret_cast<uint4*>(&own)[w] = __ldcs(reinterpret_cast<const uint4*>(from) + w);
    if (sizeof(VECTOR) == 8)
      *reinterpret_cast<uint2*>(&own) = __ldcs(reinterpret_cast<const uint2*>(from));
    if (sizeof(VECTOR) == 4)
      *reinterpret_cast<unsigned*>(&own) = __ldcs(reinterpret_cast<const unsigned*>(from));
    if (sizeof(VECTOR) >= 4) return own;
//% endif
    return *reinterpret_cast<const VECTOR*>(from);
  }

  __device__ __forceinline__ void store(T* to) const {
//% if STREAMING
    for (int w = 0; w < int(sizeof(VECTOR) / 16); ++w)
      __stcs(reinterpret_cast<uint4*>(to) + w, reinterpret_cast<const uint4*>(this)[w]);
    if (sizeof(VECTOR) == 8)
      __stcs(reinterpret_cast<uint2*>(to), *reinterpret_cast<const uint2*>(this));
    if (sizeof(VECTOR) == 4)
      __stcs(reinterpret_cast<unsigned*>(to), *reinterpret_cast<const unsigned*>(this));
    if (sizeof(VECTOR) >= 4) return;
//% endif
    *reinterpret_cast<VECTOR*>(to) = *this;
  }
};
