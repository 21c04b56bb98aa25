// Integers: counting, moving and multiplying bits, and words of bytes or halves as vectors.
#pragma once

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1) << (31 - i);
  return result;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long bytes = x | static_cast<unsigned long long>(y) << 32;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned choice = selector >> (4 * i);
    unsigned byte = bytes >> (8 * (choice & 7)) & 0xFF;
    if (choice & 8) byte = byte & 0x80 ? 0xFF : 0;
    result |= byte << (8 * i);
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31));
}
inline int __mulhi(int x, int y) { return static_cast<int>(static_cast<long long>(x) * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
         __brev(static_cast<unsigned>(x >> 32));
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
  return shift >= 32 ? low : __funnelshift_l(low, high, shift);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
  return shift >= 32 ? high : __funnelshift_r(low, high, shift);
}
inline long long __mul64hi(long long x, long long y) {
  return static_cast<long long>(static_cast<__int128>(x) * y >> 64);
}
inline int __mul24(int x, int y) {
  const auto low = [](int v) { return static_cast<int>(static_cast<unsigned>(v) << 8) >> 8; };
  return static_cast<int>(static_cast<long long>(low(x)) * low(y));
}
inline unsigned __umul24(unsigned x, unsigned y) { return (x & 0xFFFFFF) * (y & 0xFFFFFF); }
inline unsigned __sad(int x, int y, unsigned z) {
  return z + static_cast<unsigned>(x < y ? static_cast<long long>(y) - x : static_cast<long long>(x) - y);
}
inline unsigned __usad(unsigned x, unsigned y, unsigned z) { return z + (x < y ? y - x : x - y); }
inline int __hadd(int x, int y) { return static_cast<int>((static_cast<long long>(x) + y) >> 1); }
inline int __rhadd(int x, int y) { return static_cast<int>((static_cast<long long>(x) + y + 1) >> 1); }

namespace cuda_on_host {
// Byte `i` of a word, as a number of type T.
template <class T>
int byte_of(unsigned word, int i) { return static_cast<T>(word >> (8 * i) & 0xFF); }
template <class T>
int half_of(unsigned word, int i) { return static_cast<T>(word >> (16 * i) & 0xFFFF); }

template <class A, class B>
unsigned dot4(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += static_cast<unsigned>(byte_of<A>(a, i) * byte_of<B>(b, i));
  return c;
}
template <class T, class Function>
unsigned each_byte(unsigned a, unsigned b, Function function) {
  unsigned result = 0;
  for (int i = 0; i < 4; ++i)
    result |= (static_cast<unsigned>(function(byte_of<T>(a, i), byte_of<T>(b, i))) & 0xFF) << (8 * i);
  return result;
}
template <class T, class Function>
unsigned each_half(unsigned a, unsigned b, Function function) {
  unsigned result = 0;
  for (int i = 0; i < 2; ++i)
    result |= (static_cast<unsigned>(function(half_of<T>(a, i), half_of<T>(b, i))) & 0xFFFF) << (16 * i);
  return result;
}
inline int between(int low, int x, int high) { return x < low ? low : x > high ? high : x; }
}  // namespace cuda_on_host

inline int __dp4a(int a, int b, int c) {
  return static_cast<int>(cuda_on_host::dot4<signed char, signed char>(
      static_cast<unsigned>(a), static_cast<unsigned>(b), static_cast<unsigned>(c)));
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  return cuda_on_host::dot4<unsigned char, unsigned char>(a, b, c);
}
inline int __dp4a(char4 a, char4 b, int c) {
  return c + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}
inline unsigned __dp4a(uchar4 a, uchar4 b, unsigned c) {
  return c + static_cast<unsigned>(a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w);
}

#define ON_HOST_SIMD(NAME, EACH, TYPE, RESULT)                                            \
  inline unsigned NAME(unsigned a, unsigned b) {                                          \
    return cuda_on_host::EACH<TYPE>(a, b, [](int x, int y) { return RESULT; });           \
  }
#define ON_HOST_SIMD_OF(N, EACH, SIGNED, UNSIGNED, LOW, HIGH, UHIGH)                      \
  ON_HOST_SIMD(__vadd##N, EACH, UNSIGNED, x + y)                                          \
  ON_HOST_SIMD(__vsub##N, EACH, UNSIGNED, x - y)                                          \
  ON_HOST_SIMD(__vaddss##N, EACH, SIGNED, cuda_on_host::between(LOW, x + y, HIGH))        \
  ON_HOST_SIMD(__vsubss##N, EACH, SIGNED, cuda_on_host::between(LOW, x - y, HIGH))        \
  ON_HOST_SIMD(__vaddus##N, EACH, UNSIGNED, cuda_on_host::between(0, x + y, UHIGH))       \
  ON_HOST_SIMD(__vsubus##N, EACH, UNSIGNED, cuda_on_host::between(0, x - y, UHIGH))       \
  ON_HOST_SIMD(__vabsdiffu##N, EACH, UNSIGNED, x < y ? y - x : x - y)                     \
  ON_HOST_SIMD(__vabsdiffs##N, EACH, SIGNED, x < y ? y - x : x - y)                       \
  ON_HOST_SIMD(__vmaxu##N, EACH, UNSIGNED, x < y ? y : x)                                 \
  ON_HOST_SIMD(__vmaxs##N, EACH, SIGNED, x < y ? y : x)                                   \
  ON_HOST_SIMD(__vminu##N, EACH, UNSIGNED, x < y ? x : y)                                 \
  ON_HOST_SIMD(__vmins##N, EACH, SIGNED, x < y ? x : y)                                   \
  ON_HOST_SIMD(__vavgu##N, EACH, UNSIGNED, (x + y + 1) >> 1)                              \
  ON_HOST_SIMD(__vcmpeq##N, EACH, UNSIGNED, x == y ? UHIGH : 0)                           \
  ON_HOST_SIMD(__vcmpgts##N, EACH, SIGNED, x > y ? UHIGH : 0)                             \
  ON_HOST_SIMD(__vcmpgtu##N, EACH, UNSIGNED, x > y ? UHIGH : 0)
ON_HOST_SIMD_OF(4, each_byte, signed char, unsigned char, -128, 127, 255)
ON_HOST_SIMD_OF(2, each_half, short, unsigned short, -32768, 32767, 65535)
#undef ON_HOST_SIMD_OF
#undef ON_HOST_SIMD
