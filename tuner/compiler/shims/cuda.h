#pragma once
// What kernels take of the driver's interface; host code fills it.
struct alignas(64) CUtensorMap_st {
  unsigned long long opaque[16];
};
typedef CUtensorMap_st CUtensorMap;
