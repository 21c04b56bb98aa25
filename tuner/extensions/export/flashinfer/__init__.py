"""Exports as a trace set of FlashInfer-Bench: definitions, workloads, solutions."""
