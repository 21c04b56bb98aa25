#include "workbench.cuh"

#define CHECKERED_CREW 192

void checkered_dodge(const workbench & bench, ggml_tensor * board);
void checkered_tether(const workbench & bench, ggml_tensor * board);
