"""What exported packages ship: modules that import PyTorch and one another alone."""
