"""The factory."""

from os import PathLike

from nngk import defaults
from nngk.networks.network import EmbeddingNetwork, build_network
from nngk.networks.weights.load import load_weights


def create_network(
    name: str = defaults.NETWORK,
    *,
    dim: int | None = defaults.DIM,
    weights: str | PathLike[str] = defaults.WEIGHTS,
    pool: str = defaults.POOL,
    layers: int | None = defaults.LAYERS,
    dropout: float | None = defaults.DROPOUT,
    layer_norm: bool = defaults.LAYER_NORM,
    normalise: bool = defaults.NORMALISE,
) -> EmbeddingNetwork:
    """Return an embedding network by name, with weights; the defaults are those of training.

    A number of dimensions `dim` adds a linear embedding layer, which starts at random; `dim=None` takes the backbone's
    own features. `weights` is 'imagenet', 'random' or a file. `layers` is how many of the last feature maps are pooled
    side by side, and None the number that serves the network best. `dropout` comes after the pooled features (after
    FC7 for alexnet and vgg16, whose FC6 keeps its own); None takes the paper's for that network. 'small' has no
    ImageNet weights and starts at random.

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
