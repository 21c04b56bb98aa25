struct Params {
  int batch; int size;
  float* out; const float* in;
  const float* bias; int bias_step;
};
__global__ void shift(Params p) {
  int i = threadIdx.x;
  if (i < p.size) p.out[i] = p.in[i];
}
void run(Params p) { shift<<<p.batch, 128>>>(p); }
