"""Kernels in OpenCL, on the CPU or a GPU."""
