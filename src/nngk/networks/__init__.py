"""Networks that turn images into embeddings."""

from nngk.networks.classifier import classifier
from nngk.networks.create import create_network
from nngk.networks.embedding import EmbeddingNetwork
from nngk.networks.heads import Head
from nngk.networks.listing import list_networks
from nngk.networks.spec import InputSpec
from nngk.networks.weights import load_weights

__all__ = [
    "EmbeddingNetwork",
    "Head",
    "InputSpec",
    "classifier",
    "create_network",
    "list_networks",
    "load_weights",
]
