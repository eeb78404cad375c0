"""What a network says of an image: its own pooled features, and the embedding made of them, in one pass."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from nngk.networks import EmbeddingNetwork


class Described(NamedTuple):
    """Images as a network sees them."""

    embeddings: Tensor  # (n, dim)
    features: Tensor  # (n, channels), the features that the network pools, of length one


class Describer(nn.Module):
    """A network that gives both, side by side: (B, dim + channels).

    With ``pooled`` its input is pooled already, as a frozen network's cached features are.
    """

    def __init__(self, network: EmbeddingNetwork, pooled: bool = False) -> None:
        super().__init__()
        self.network, self.pooled = network, pooled

    def forward(self, x: Tensor) -> Tensor:
        head = self.network.head
        pooled = x if self.pooled else head.pool(self.network.backbone(x))
        return torch.cat([head.project(pooled), unit_rows(pooled)], 1)

    def apart(self, both: Tensor) -> Described:
        """Return what the forward pass gave, apart again; of no images both have no columns."""
        dim = self.network.dim
        return Described(both[:, :dim], both[:, dim:])


def feature_width(network: EmbeddingNetwork) -> int:
    """Return how many features a network pools."""
    linear = network.head.linear
    return network.head.dim if linear is None else linear.in_features


def unit_rows(features: Tensor) -> Tensor:
    """Return features (n, channels) at length one, in float32: what counts is their direction.

    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return nn.functional.normalize(features.float(), dim=1)
