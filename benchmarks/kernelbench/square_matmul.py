"""The product of two square matrices."""

import torch
from torch import nn

N = 1024


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


def get_inputs():
    a = torch.rand(N, N)
    b = torch.rand(N, N)
    return [a, b]
