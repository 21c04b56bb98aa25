#include "workbench.cuh"

#define RING_PICK_CREW 128

// Lines of a ring, by how long ago they were written.
void pick_from_ring(const workbench & bench, ggml_tensor * picked);
