"""A saved model as the weights to start from."""

from pathlib import Path

from nngk.model.model import Model
from nngk.networks import EmbeddingNetwork


def is_model(weights: str) -> bool:
    """Return whether the weights to start from are a model's folder.

    >>> is_model("imagenet")
    False
    """
    return (Path(weights) / "model.json").exists()


def network_of_model(folder: str) -> EmbeddingNetwork:
    """Return the network of a model as it is, with its embedding layer, ready to be trained."""
    return Model.load(folder, "cpu").network.requires_grad_(True)
