"""Kernel Tuner's functions: `from tuner.compat.kernel_tuner import tune_kernel, run_kernel`."""

from tuner.extensions.compat.kernel_tuner import run_kernel, tune_kernel

__all__ = ["run_kernel", "tune_kernel"]
