"""Plain values: errors, expressions, kernels, configs, trials, hardware and its arithmetic."""
