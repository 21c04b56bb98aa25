"""Modules that take another tuner's place where one line of a script is changed."""
