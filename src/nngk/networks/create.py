"""The factory."""

from os import PathLike

from nngk.networks.network import EmbeddingNetwork, build_network
from nngk.networks.weights.load import load_weights


def create_network(
    name: str = "efficientnet-lite0",
    *,
    dim: int | None = None,
    weights: str | PathLike[str] = "imagenet",
    pool: str = "avg",
    layers: int | None = 1,
    dropout: float | None = 0.0,
    layer_norm: bool = False,
    normalise: bool = True,
) -> EmbeddingNetwork:
    """An embedding network by name, with weights.

    `dim=None` takes the backbone's own features; a number adds a linear embedding layer. `weights` is 'imagenet',
    'random' or a file. `layers` pools as many of the last feature maps side by side, None as many as serve best.
    `dropout` stands after the pooled features (after FC7 for alexnet and vgg16, whose FC6 keeps its own); None takes
    the paper's for that network. 'small' has no ImageNet weights and starts random.

    >>> create_network("small", dim=64).input.size
    32
    """
    network = build_network(
        name, dim=dim, pool=pool, layers=layers, dropout=dropout, layer_norm=layer_norm, normalise=normalise
    )
    if name == "small" and weights == "imagenet":
        weights = "random"
    load_weights(network, weights)
    return network
