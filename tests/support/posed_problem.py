"""A problem that has no kernel yet."""

from __future__ import annotations

TWICE = '''"""Twice x, and a half more where it is positive."""
import torch

rows = 8
width = 96


class Model(torch.nn.Module):
    def forward(self, x):
        return 2.0 * x + 0.5 * torch.relu(x)


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return []
'''
