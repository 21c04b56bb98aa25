// A HIP runtime without a GPU: memory is the process's own, and a code object is a library of the
// CPU device, whose functions are called in place of kernels. What the environment names in
// FAKE_HIP_FAILS fails, and FAKE_HIP_SIZES lists the bytes of the kernel's parameters.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <elf.h>

enum { kInvalidValue = 1, kOutOfMemory = 2, kNoDevice = 100, kInvalidImage = 200, kNotFound = 500, kLaunchFailure = 719 };

// As `Launch` in tuner/device/cpu/headers/on_host/launch.h.
struct Launch {
  unsigned grid[3], block[3], cluster[3];
  unsigned shared_bytes, arguments, order;
  double timeout_s;
  void* const* values;
  const unsigned* sizes;
  char* message;
  size_t message_bytes;
  const void* guards;
  unsigned guard_count;
};

static int fails(const char* name) {
  const char* named = getenv("FAKE_HIP_FAILS");
  return named && strcmp(named, name) == 0;
}

const char* hipGetErrorString(int status) {
  return status == kLaunchFailure ? "unspecified launch failure" : status == kInvalidImage ? "device kernel image is invalid" : "an error";
}
int hipInit(unsigned flags) { return fails("hipInit") ? kNoDevice : flags != 0; }
int hipGetDeviceCount(int* count) { *count = 1; return 0; }
int hipSetDevice(int ordinal) { return ordinal; }
int hipDeviceGetName(char* name, int bytes, int device) { snprintf(name, bytes, "AMD stand-in"); return device; }
int hipDeviceGetPCIBusId(char* id, int bytes, int device) { snprintf(id, bytes, "0000:C1:00.0"); return device; }
int hipRuntimeGetVersion(int* version) { *version = 60443483; return 0; }
int hipMemGetInfo(size_t* free_bytes, size_t* total) { *free_bytes = *total = 64 << 20; return 0; }
int hipMalloc(void** place, size_t bytes) {
  if (fails("hipMalloc")) return kOutOfMemory;
  return posix_memalign(place, 4096, bytes) ? kOutOfMemory : 0;
}
int hipFree(void* place) { free(place); return 0; }
int hipMemcpy(void* to, const void* from, size_t bytes, int kind) {
  if (kind < 1 || kind > 3) return kInvalidValue;
  memcpy(to, from, bytes);
  return 0;
}
// A flush is far larger than any array here, and there is nothing to flush.
int hipMemset(void* place, int byte, size_t bytes) { if (bytes < 64 << 20) memset(place, byte, bytes); return 0; }
int hipDeviceSynchronize(void) { return fails("hipDeviceSynchronize") ? kLaunchFailure : 0; }

int hipModuleLoadData(void** module, const void* image) {
  const Elf64_Ehdr* header = image;
  if (memcmp(header->e_ident, ELFMAG, SELFMAG)) return kInvalidImage;
  const size_t bytes = header->e_shoff + (size_t)header->e_shentsize * header->e_shnum;
  const int file = memfd_create("module", 0);
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  if (write(file, image, bytes) != (ssize_t)bytes) return kInvalidImage;
  // The file stays open: a library of the same name would be taken for this one.
  *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return *module ? 0 : kInvalidImage;
}
int hipModuleUnload(void* module) { return module ? dlclose(module) : kInvalidValue; }
// A kernel's entry, and what launches it.
struct Function {
  int (*run)(const struct Launch*, const void*);
  const void* kernel;
};
int hipModuleGetFunction(void** function, void* module, const char* name) {
  struct Function* found = calloc(1, sizeof *found);
  found->run = (int (*)(const struct Launch*, const void*))dlsym(module, "cuda_on_host_run");
  found->kernel = dlsym(module, name);
  *function = found;
  return found->run && found->kernel ? 0 : kNotFound;
}
int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* stream, void** parameters, void** extra) {
  if (stream || extra) return kInvalidValue;
  if (fails("hipModuleLaunchKernel")) return kLaunchFailure;
  while (fails("hang")) sleep(1);
  if (fails("crash")) {
    // As ROCm's runtime, which leaves the GPU's memory in the working folder.
    if (!getenv("HSA_DISABLE_COREDUMP_ON_EXCEPTION")) fclose(fopen("gpucore.1", "w"));
    abort();
  }
  if (fails("prints")) fprintf(stderr, "printed by a kernel\n"), puts("printed by a kernel"), fflush(stdout);
  unsigned sizes[32], count = 0;
  char listed[256];
  snprintf(listed, sizeof listed, "%s", getenv("FAKE_HIP_SIZES"));
  for (char* one = strtok(listed, ","); one; one = strtok(NULL, ",")) sizes[count++] = atoi(one);
  char message[1024] = "";
  struct Launch launch = {{gx, gy, gz}, {bx, by, bz}, {1, 1, 1}, shared, count, 0, 10.0, parameters, sizes, message, sizeof message, NULL, 0};
  const struct Function* called = function;
  const int status = called->run(&launch, called->kernel);
  if (status) fprintf(stderr, "%s\n", message);
  return status ? kLaunchFailure : 0;
}

int hipEventCreate(void** event) { *event = calloc(1, sizeof(struct timespec)); return 0; }
int hipEventRecord(void* event, void* stream) { return stream ? kInvalidValue : clock_gettime(CLOCK_MONOTONIC, event); }
int hipEventSynchronize(void* event) { return event ? 0 : kInvalidValue; }
int hipEventElapsedTime(float* ms, void* first, void* last) {
  const struct timespec *a = first, *b = last;
  *ms = (b->tv_sec - a->tv_sec) * 1e3f + (b->tv_nsec - a->tv_nsec) * 1e-6f;
  return 0;
}
