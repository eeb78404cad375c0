"""A wide embedding made narrow: trained with many dimensions, kept with few."""

import torch
from torch import Tensor, nn

from nngk.networks.network import EmbeddingNetwork


def reduce_embedding(network: EmbeddingNetwork, features: Tensor, dim: int, whiten: float = 0.0) -> None:
    """Give the embedding layer ``dim`` outputs: the first principal components of those it has, over ``features``.

    ``features`` (n, channels) are the layer's inputs for the training images. The new layer stands for the old one and
    a projection after it, so that nothing else of the network changes. ``whiten`` evens the components out: with 0 they
    keep their spread, with 1 all have that of the first.

    >>> from nngk.networks import create_network
    >>> network = create_network("small", dim=16, weights="random")
    >>> reduce_embedding(network, torch.randn(30, 128), 4)
    >>> network.dim, network(torch.rand(2, 3, 32, 32)).shape
    (4, torch.Size([2, 4]))
    """
    wide = network.head.linear
    assert wide is not None
    network.head.linear = reduced(wide, features, dim, whiten)
    network.head.dim = network.config["dim"] = dim


def reduced(wide: nn.Linear, features: Tensor, dim: int, whiten: float = 0.0) -> nn.Linear:
    """Return a layer for the first ``dim`` principal components of a layer's outputs over ``features``, evened out.

    Where nothing is to change it is the layer itself.
    """
    if not whiten and dim == wide.out_features:
        return wide
    with torch.no_grad():
        outputs = wide(features.to(wide.weight))
        centre = outputs.mean(0)
        centred = (outputs - centre).double()
        values, vectors = torch.linalg.eigh(centred.T @ centred)
        values, vectors = values.flip(0)[:dim], vectors.flip(1)[:, :dim]
        # Where the training images do not extend there is nothing to even out: blown up, it would swamp new ones.
        factors = torch.where(values > 1e-6 * values[0], values[0] / values, 1.0) ** (whiten / 2)
        components = (vectors * factors).to(outputs)
        narrow = nn.Linear(wide.in_features, dim).to(wide.weight)
        narrow.weight.copy_(components.T @ wide.weight)
        narrow.bias.copy_(components.T @ (wide.bias - centre))
    return narrow
