"""Sums of all that comes before, along rows."""

import torch
from torch import nn

batch_size = 256
dim = 4096


class Model(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=1)


def get_inputs():
    return [torch.randn(batch_size, dim)]
