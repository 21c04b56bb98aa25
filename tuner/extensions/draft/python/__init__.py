"""Drafts from Python files that hold a kernel of Triton or Helion; none is imported or run."""
