"""Networks that turn images into embeddings."""

from nngk.networks.catalogue import list_networks
from nngk.networks.heads import Head
from nngk.networks.imagenet import classifier
from nngk.networks.input_spec import InputSpec
from nngk.networks.network import EmbeddingNetwork, create_network, load_weights

__all__ = [
    "EmbeddingNetwork",
    "Head",
    "InputSpec",
    "classifier",
    "create_network",
    "list_networks",
    "load_weights",
]
