// What nvcc with a host compiler knows: GNU's dialect, and what C++17 took out of <functional>.
#include <functional>
#include <torch/extension.h>

namespace kit {}
namespace kit::maths {
using namespace kit;
}  // namespace kit::maths

namespace kit {
template <typename To, typename From>
struct Cast : public std::unary_function<From, To> {
  __host__ __device__ To operator()(From value) const { return static_cast<To>(value); }
};

__extension__ typedef struct {
  __extension__ union {
    struct { half scale, sum; } parts;
    half2 both;
  } head;
  int8_t codes[32];
} Block;
}  // namespace kit

namespace kit::maths {
__device__ float scaled(const Block& block, int i) {
  return Cast<float, half>()(block.head.parts.scale) * block.codes[i];
}
}  // namespace kit::maths

__global__ void unpack(const kit::Block* blocks, float* out) {
  out[blockIdx.x * 32 + threadIdx.x] = kit::maths::scaled(blocks[blockIdx.x], threadIdx.x);
}
