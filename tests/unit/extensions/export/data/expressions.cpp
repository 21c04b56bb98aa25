#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <stdexcept>

namespace dispatch {
EXPRESSIONS
static void print(bool a) { std::printf("%d\n", a); }
static void print(std::int64_t a) { std::printf("%lld\n", static_cast<long long>(a)); }
static void print(double a) { std::printf("%a\n", a); }
FUNCTIONS
}  // namespace dispatch

int main() {
  using namespace dispatch;
  void (*all[])(std::int64_t, std::int64_t, std::int64_t) = {TABLE};
  const std::int64_t shapes[][3] = {SHAPES};
  for (auto f : all)
    for (auto& s : shapes) {
      try {
        f(s[0], s[1], s[2]);
      } catch (const NoValue&) {
        std::puts("none");
      }
    }
}
