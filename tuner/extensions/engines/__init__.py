"""Engines' own files of configs, models tuned as fleets, and timelines of their steps."""
