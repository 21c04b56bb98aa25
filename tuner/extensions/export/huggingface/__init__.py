"""Exports as a folder that the `kernels` package of Hugging Face loads."""
