"""Drafts for a kernel that has no search space yet: its YAML, its template, its reference."""
