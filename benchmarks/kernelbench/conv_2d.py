"""A convolution of images with square filters."""

import torch
from torch import nn

batch_size = 8
in_channels = 16
out_channels = 32
kernel_width = 3
stride = 2
padding = 1
height = 128
width = 128


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, width, stride, padding):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, width, stride=stride, padding=padding)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_width, stride, padding]
