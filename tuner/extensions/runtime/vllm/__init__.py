"""Exports as a plugin of vLLM: what puts the package for PyTorch in the place of its operators."""
