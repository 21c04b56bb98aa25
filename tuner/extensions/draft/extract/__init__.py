"""A kernel out of production sources: it and what it needs, as one unit that NVRTC compiles."""
