"""Tune CUDA kernels by constrained search over templates, with measurements behind every claim."""

__version__ = "0.1.0"
