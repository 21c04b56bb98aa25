extern "C" __global__ void accumulate(float* total, unsigned char* code, void* x) {}
