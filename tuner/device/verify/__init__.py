"""Verify outputs against the reference, in a process that candidate code cannot reach."""
