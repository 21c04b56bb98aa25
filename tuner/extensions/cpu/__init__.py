"""Run the same CUDA source on the CPU, in a sandbox."""
