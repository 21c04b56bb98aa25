"""What every package for PyTorch ships, and what every plugin of an engine does."""
