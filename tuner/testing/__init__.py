"""Conformance suites for who writes a plugin: each is a class of tests to derive from."""
