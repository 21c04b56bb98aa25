"""Measurements that other programs wrote, as recordings: Kernel Tuner's caches and T4 results."""
