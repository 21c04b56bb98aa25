"""Pooling of images by the largest of each window."""

import torch
from torch import nn

batch_size = 16
channels = 32
height = 128
width = 128
window = 2


class Model(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.pool = nn.MaxPool2d(window)

    def forward(self, x):
        return self.pool(x)


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [window]
