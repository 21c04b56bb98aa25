"""LeakyReLU with a slope that the model is made with."""

import torch
from torch import nn

batch_size = 1024
dim = 8192
slope = 0.02


class Model(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        return nn.functional.leaky_relu(x, self.slope)


def get_inputs():
    return [torch.randn(batch_size, dim)]


def get_init_inputs():
    return [slope]
