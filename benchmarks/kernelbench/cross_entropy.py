"""The mean cross entropy of predictions with labels."""

import torch
from torch import nn

batch_size = 2048
classes = 10


class Model(nn.Module):
    def forward(self, predictions, targets):
        return nn.functional.cross_entropy(predictions, targets)


def get_inputs():
    return [torch.randn(batch_size, classes), torch.randint(0, classes, (batch_size,))]
