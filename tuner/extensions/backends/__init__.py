"""Other hardware, and programs that judge configs: HIP, OpenCL, an evaluator of the user's."""
