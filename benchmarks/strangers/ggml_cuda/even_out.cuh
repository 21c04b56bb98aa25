#include "workbench.cuh"

// Scales what is above zero and what is below it, so that a row's two sides weigh the same.
void even_out_rows(const workbench & bench, ggml_tensor * evened);
