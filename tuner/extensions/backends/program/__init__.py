"""A program of the user's that compiles, verifies and times kernels in place of this one."""
