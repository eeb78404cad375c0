"""What a network says of an image: the features that it pools, and the embedding made of them, in one pass."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from nngk.networks import EmbeddingNetwork


class Described(NamedTuple):
    """Images as a network sees them."""

    embeddings: Tensor  # (n, dim)
    features: Tensor  # (n, channels), those that the network pools, at one scale


class Describer(nn.Module):
    """A network that gives both, side by side: (B, dim + channels).

    With ``pooled`` its input is pooled already, as a frozen network's cached features are.
    """

    def __init__(self, network: EmbeddingNetwork, pooled: bool = False) -> None:
        super().__init__()
        self.network, self.pooled = network, pooled
        self.training = network.training  # a mode of its own would be put upon the network

    def forward(self, x: Tensor) -> Tensor:
        head = self.network.head
        pooled = x if self.pooled else head.pool(self.network.backbone(x))
        return torch.cat([head.project(pooled), at_one_scale(pooled)], 1)

    def apart(self, both: Tensor) -> Described:
        """Return what the forward pass gave, apart again; of no images both have no columns."""
        dim = self.network.dim
        return Described(both[:, :dim], both[:, dim:])


def at_one_scale(features: Tensor) -> Tensor:
    """Return features (n, channels) in float32, each row with mean zero and variance one: what counts is its pattern.

    >>> at_one_scale(torch.tensor([[1.0, 3.0], [100.0, 300.0]])).round(decimals=3)
    tensor([[-1.,  1.],
            [-1.,  1.]])
    """
    return nn.functional.layer_norm(features.float(), features.shape[1:])


def feature_width(network: EmbeddingNetwork) -> int:
    """Return how many features a network pools."""
    linear = network.head.linear
    return network.head.dim if linear is None else linear.in_features
