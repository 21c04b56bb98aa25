"""A report's sections, one a file."""
