"""Plain values: errors, expressions, kernels, configs, trials, hardware and its arithmetic."""

# Here and not in the package's own front, which imports what needs it.
TUNER_VERSION = "0.2.0"
