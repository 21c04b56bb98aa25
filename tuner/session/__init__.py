"""The record of a run: append, resume, query."""
