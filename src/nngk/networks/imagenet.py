"""A whole ImageNet classifier, to check that weights sit where they should."""

from os import PathLike, fspath

import torch
from torch import Tensor, nn

from nngk.errors import InputError
from nngk.networks.backbones.recipes import TIMM, recipe
from nngk.networks.input_spec import InputSpec
from nngk.networks.weights.load import load_backbone
from nngk.networks.weights.read import read_weights


class Classifier(nn.Module):
    """Images -> logits: the backbone, mean pooling where it gives a map, and the linear layer of its weights."""

    def __init__(self, backbone: nn.Module, fc: nn.Linear, relu: bool, spec: InputSpec) -> None:
        super().__init__()
        self.backbone = backbone
        self.fc = fc
        self.relu = relu
        self.input = spec

    def forward(self, images: Tensor) -> Tensor:
        features = self.backbone(images)
        if features.ndim == 4:
            features = features.mean((2, 3))
        return self.fc(torch.relu(features) if self.relu else features)


def classifier(name: str, weights: str | PathLike[str] = "imagenet") -> Classifier:
    """Return the network `name` with the classifier that its weights file carries, in evaluation mode.

    >>> classifier("small", "random")
    Traceback (most recent call last):
        ...
    nngk.errors.InputError: A classifier needs trained weights: 'imagenet' or a file; got 'random'.
    """
    source = fspath(weights)
    if source == "random":
        raise InputError("A classifier needs trained weights: 'imagenet' or a file; got 'random'.")
    if name.startswith(TIMM):
        raise InputError(f"For the classifier of '{name}' use timm.create_model('{name.removeprefix(TIMM)}') itself.")
    known = recipe(name)
    read = read_weights(name, source)
    backbone = known.build().module
    loaded = load_backbone(name, backbone, read)
    weight, bias = (loaded.state.get(f"{known.classifier}.{part}") for part in ("weight", "bias"))
    if weight is None or bias is None:
        raise InputError(f"{read.name} carries no classifier ('{known.classifier}.weight' and '.bias').")
    fc = nn.Linear(weight.shape[1], weight.shape[0])
    fc.load_state_dict({"weight": weight.float(), "bias": bias.float()})
    return Classifier(backbone, fc, known.relu, loaded.input).eval()
