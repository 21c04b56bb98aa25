// Vectorized loads and stores as kernels guard them: 16 bytes, or nothing.

__device__ __forceinline__ void guarded_load(float (&to)[4], const float* from, bool inside) {
  unsigned* const bits = reinterpret_cast<unsigned*>(to);
  asm volatile(
      "{\n"
      "  .reg .pred inside;\n"
      "  setp.ne.b32 inside, %5, 0;\n"
      "  mov.b32 %0, %6;\n"
      "  mov.b32 %1, %6;\n"
      "  mov.b32 %2, %6;\n"
      "  mov.b32 %3, %6;\n"
      "  @inside ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}\n"
      : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
      : "l"(from), "r"((int)inside), "r"(__float_as_uint(-0.5f)));
}

extern "C" __global__ void scaled(float* y, const float* x, const int* n) {
  const int first = 4 * threadIdx.x;
  float v[4];
  guarded_load(v, x + first, first < *n);
  for (float& one : v) asm("mul.rn.f32 %0, %0, 2.0;" : "+f"(one));
  asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(y + first), "f"(v[0]), "f"(v[1]),
               "f"(v[2]), "f"(v[3])
               : "memory");
}
