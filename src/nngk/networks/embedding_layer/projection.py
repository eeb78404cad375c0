"""An embedding layer that starts as a random projection and keeps distances, so that σ means the same at every size."""

import math

import torch
from torch import nn


def start_projection(linear: nn.Linear) -> None:
    """Turn a layer's random weights into orthogonal ones, widened by what a projection to fewer dimensions loses.

    With as many outputs as inputs it is a rotation; with fewer, distances are kept on average.

    >>> layer = nn.Linear(3, 3)
    >>> start_projection(layer)
    >>> x = torch.tensor([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0]])
    >>> round(float(torch.pdist(layer(x)).detach()), 4)
    5.0
    """
    outputs, inputs = linear.weight.shape
    wide = outputs <= inputs
    with torch.no_grad():
        weight = linear.weight.double()
        orthogonal = torch.linalg.qr(weight.T if wide else weight)[0]
        linear.weight.copy_((orthogonal.T if wide else orthogonal) * math.sqrt(max(1.0, inputs / outputs)))
        linear.bias.zero_()
