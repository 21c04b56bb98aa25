extern "C" __global__ void run(float* y, const float* x, int T) {}
