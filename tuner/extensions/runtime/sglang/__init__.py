"""Exports as a plugin of SGLang: the package for PyTorch, and what puts it in SGLang's place."""
