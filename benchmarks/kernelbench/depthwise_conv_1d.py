"""A causal convolution of each channel with its own filter."""

import torch
from torch import nn

batch_size = 16
channels = 512
length = 2048
taps = 4


class Model(nn.Module):
    def __init__(self, channels, taps):
        super().__init__()
        self.taps = taps
        self.conv = nn.Conv1d(channels, channels, taps, groups=channels, bias=False)

    def forward(self, x):
        return self.conv(nn.functional.pad(x, (self.taps - 1, 0)))


def get_inputs():
    return [torch.randn(batch_size, channels, length)]


def get_init_inputs():
    return [channels, taps]
