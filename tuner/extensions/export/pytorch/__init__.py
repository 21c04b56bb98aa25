"""Exports as a Python package that needs PyTorch and nothing else: cubins, a table, a launcher."""
