"""The `hip` device: AMD's GPUs through the HIP runtime."""
