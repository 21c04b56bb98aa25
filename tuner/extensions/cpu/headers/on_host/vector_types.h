// uint2, float4 and the like, with the sizes and alignments that CUDA gives them.
#pragma once

#define ON_HOST_VECTORS(NAME, TYPE, ALIGN2, ALIGN4)                                     \
  struct NAME##1 { TYPE x; };                                                           \
  struct alignas(ALIGN2) NAME##2 { TYPE x, y; };                                        \
  struct NAME##3 { TYPE x, y, z; };                                                     \
  struct alignas(ALIGN4) NAME##4 { TYPE x, y, z, w; };                                  \
  inline NAME##1 make_##NAME##1(TYPE x) { return {x}; }                                 \
  inline NAME##2 make_##NAME##2(TYPE x, TYPE y) { return {x, y}; }                      \
  inline NAME##3 make_##NAME##3(TYPE x, TYPE y, TYPE z) { return {x, y, z}; }           \
  inline NAME##4 make_##NAME##4(TYPE x, TYPE y, TYPE z, TYPE w) { return {x, y, z, w}; }

ON_HOST_VECTORS(char, signed char, 2, 4)
ON_HOST_VECTORS(uchar, unsigned char, 2, 4)
ON_HOST_VECTORS(short, short, 4, 8)
ON_HOST_VECTORS(ushort, unsigned short, 4, 8)
ON_HOST_VECTORS(int, int, 8, 16)
ON_HOST_VECTORS(uint, unsigned int, 8, 16)
ON_HOST_VECTORS(long, long, 16, 16)
ON_HOST_VECTORS(ulong, unsigned long, 16, 16)
ON_HOST_VECTORS(longlong, long long, 16, 16)
ON_HOST_VECTORS(ulonglong, unsigned long long, 16, 16)
ON_HOST_VECTORS(float, float, 8, 16)
ON_HOST_VECTORS(double, double, 16, 16)
#undef ON_HOST_VECTORS

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1)
      : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};
