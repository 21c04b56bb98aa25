"""Other tuners' ways to call: Kernel Tuner's functions, arrays and a dict, Triton's decorator."""
