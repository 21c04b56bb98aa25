"""The divergence of two rows of probabilities, over the batch."""

import torch
from torch import nn

batch_size = 512
dim = 4096


class Model(nn.Module):
    def forward(self, predictions, targets):
        return nn.functional.kl_div(torch.log(predictions), targets, reduction="batchmean")


def get_inputs():
    scores = torch.rand(2, batch_size, dim)
    return [scores[0].softmax(-1), scores[1].softmax(-1)]
