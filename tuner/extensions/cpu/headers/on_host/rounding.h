// Arithmetic in the four rounding modes; compiled with -frounding-math.
#pragma once

namespace cuda_on_host {

struct Mode {
  int before = fegetround();
  explicit Mode(Rounding rounding) {
    constexpr int kModes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    fesetround(kModes[static_cast<int>(rounding)]);
  }
  ~Mode() { fesetround(before); }
};

// Through volatile variables, so that nothing is computed before the mode is set.
template <class T>
static T compute(Rounding rounding, Operation operation, T left, T right) {
  const Mode mode(rounding);
  volatile T a = left, b = right, result = T();
  switch (operation) {
    case Operation::add: result = a + b; break;
    case Operation::sub: result = a - b; break;
    case Operation::mul: result = a * b; break;
    case Operation::div: result = a / b; break;
    case Operation::sqrt: result = std::sqrt(a); break;
  }
  return result;
}

template <class To, class From>
static To convert(Rounding rounding, From x) {
  const Mode mode(rounding);
  volatile From from = x;
  volatile To result = static_cast<To>(from);
  return result;
}

float rounded(Rounding rounding, Operation operation, float a, float b) {
  return compute(rounding, operation, a, b);
}
double rounded(Rounding rounding, Operation operation, double a, double b) {
  return compute(rounding, operation, a, b);
}
float rounded_fma(Rounding rounding, float a, float b, float c) {
  const Mode mode(rounding);
  volatile float x = a, result = fmaf(x, b, c);
  return result;
}
double rounded_fma(Rounding rounding, double a, double b, double c) {
  const Mode mode(rounding);
  volatile double x = a, result = fma(x, b, c);
  return result;
}
float to_float(Rounding rounding, double x) { return convert<float>(rounding, x); }
float to_float(Rounding rounding, long long x) { return convert<float>(rounding, x); }
float to_float(Rounding rounding, unsigned long long x) { return convert<float>(rounding, x); }

long long ticks() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

}  // namespace cuda_on_host
