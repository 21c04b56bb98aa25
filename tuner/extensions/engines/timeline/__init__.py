"""A profiler's timeline of a real step: what runs, what can be tuned, what that could give."""
