"""Profiles: what the compiler, the machine code and the GPU's counters say of one config."""
