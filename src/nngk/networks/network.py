"""EmbeddingNetwork: a backbone and a head, the settings that rebuild them, and the factory."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nngk import defaults
from nngk.errors import InputError
from nngk.networks.backbones.recipes import recipe
from nngk.networks.heads import Head, check_head
from nngk.networks.input_spec import InputSpec
from nngk.networks.shapes_only import shapes_only
from nngk.networks.weights.load import load_backbone
from nngk.networks.weights.names import compute_dtype
from nngk.networks.weights.read import read_weights


class EmbeddingNetwork(nn.Module):
    """Images (B, 3, H, W) -> embeddings (B, dim).

    `config` holds plain JSON values; `EmbeddingNetwork.from_config(config)` builds the same network with random
    weights, ready for `load_state_dict`.

    >>> import torch
    >>> network = build_network("small", dim=16)
    >>> network(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 16])
    >>> EmbeddingNetwork.from_config(network.config).dim
    16
    """

    def __init__(self, backbone: nn.Module, head: Head, config: dict[str, Any]) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.config = config
        self.batchnorm_frozen = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "EmbeddingNetwork":
        """Return the network of a `config`, with random weights; its input and the origin of its weights are kept."""
        network = build_network(
            config["name"],
            dim=config["dim"],
            pool=config["pool"],
            layers=config.get("layers", 1),  # files from before there was a choice have none
            dropout=config["dropout"],
            layer_norm=config["layer_norm"],
            normalise=config["normalise"],
        )
        network.config["weights"] = dict(config["weights"])
        network.input = InputSpec.from_config(config["input"])
        return network

    @classmethod
    def from_state(cls, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> "EmbeddingNetwork":
        """Return the network of a `config` with the tensors of a `state_dict` themselves as its weights.

        No random weights are drawn first, which takes longer than to read a file. Raise ValueError or RuntimeError if
        a tensor is missing, left over, or of another type or shape.
        """
        with shapes_only():
            network = cls.from_config(config)
        for name, own in network.state_dict().items():
            if name in state and state[name].dtype != own.dtype:
                raise ValueError(f"'{name}' should be {own.dtype}, not {state[name].dtype}")
        network.load_state_dict(state, assign=True)
        if any(tensor.is_meta for tensor in (*network.parameters(), *network.buffers())):
            # It has tensors that no file holds, such as the places of a transformer's tokens: they are computed.
            network = cls.from_config(config)
            network.load_state_dict(state)
        return network

    @property
    def dim(self) -> int:
        """The dimensions of an embedding."""
        return self.head.dim

    @property
    def input(self) -> InputSpec:
        """What the weights expect of an image."""
        return InputSpec.from_config(self.config["input"])

    @input.setter
    def input(self, spec: InputSpec) -> None:
        self.config["input"] = spec.to_config()

    def forward(self, images: Tensor) -> Tensor:
        return self.head.project(self.head.pool(self.backbone(images)))

    def embedding_parameters(self) -> list[nn.Parameter]:
        """Return the head's parameters (none without an embedding layer and GeM)."""
        return list(self.head.parameters())

    def backbone_parameters(self) -> list[nn.Parameter]:
        """Return the backbone's parameters."""
        return list(self.backbone.parameters())

    def freeze_batchnorm(self) -> None:
        """Keep every BatchNorm on its stored statistics, also after `.train()`."""
        self.batchnorm_frozen = True
        self.train(self.training)

    def train(self, mode: bool = True) -> "EmbeddingNetwork":
        """Set training or evaluation mode; frozen BatchNorm stays in evaluation mode."""
        super().train(mode)
        if self.batchnorm_frozen:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self


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


@dataclass(frozen=True)
class LoadReport:
    """What was loaded: from where, stored in which type, and the names in the file that the network has no use for."""

    source: str
    dtype: str
    classifier: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def load_weights(network: EmbeddingNetwork, source: str | PathLike[str]) -> LoadReport:
    """Load 'imagenet', 'random' (nothing) or a file into the backbone; the input and `config` follow the weights.

    Names may be torchvision's, timm's, Caffe's layers or carry the prefixes that training frameworks add.

    >>> load_weights(create_network("small"), "random").source
    'random'
    """
    source = fspath(source)
    if source == "random":
        network.config["weights"] = {"source": "random"}
        return LoadReport("random", "none")
    name = network.config["name"]
    weights = read_weights(name, source)
    loaded = load_backbone(name, network.backbone, weights)
    kind, dtype = "imagenet" if source == "imagenet" else "file", compute_dtype(weights.state)
    network.config["weights"] = {"source": kind, "name": weights.name, "stored_as": dtype}
    network.input = loaded.input
    return LoadReport(kind, dtype, loaded.classifier, loaded.unused)


def build_network(
    name: str,
    *,
    dim: int | None = None,
    pool: str | None = "avg",
    layers: int | None = 1,
    dropout: float | None = 0.0,
    layer_norm: bool = False,
    normalise: bool = True,
) -> EmbeddingNetwork:
    """Return a network with random weights, and the input of its ImageNet weights."""
    known = recipe(name)
    dropout = known.dropout if dropout is None else float(dropout)
    check_head(dim=dim, pool=pool, dropout=dropout)  # before the backbone, which may take seconds
    layers = known.layers if layers is None else layers
    if layers != 1 and not 1 <= layers <= len(known.maps):
        has = f"up to {len(known.maps)}" if known.maps else "only its last one"
        raise InputError(f"'{name}' gives {has} of its feature maps to pool, not layers={layers!r}.")
    backbone, channels, vector = known.build()
    if layers > 1:
        backbone.layers, channels = layers, sum(known.maps[-layers:])  # type: ignore[assignment]
    if vector:
        if pool not in (None, "avg", defaults.POOL):  # a default is nobody's mistake
            warnings.warn(f"'{name}' gives a vector, not a map: pool='{pool}' has no effect on it.", stacklevel=3)
        pool = None
    settings = {
        "dim": dim,
        "pool": pool,
        "layers": layers,
        "dropout": dropout,
        "layer_norm": bool(layer_norm),
        "normalise": bool(normalise),
    }
    head = Head(channels, **settings)  # type: ignore[arg-type]
    config = {"name": name, **settings, "input": known.input.to_config(), "weights": {"source": "random"}}
    return EmbeddingNetwork(backbone, head, config)
