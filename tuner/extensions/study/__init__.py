"""Studies: mutants, search methods compared, and Kernel Tuner's files and strategies."""
