"""Run programs on NVIDIA GPUs."""
