"""Which network a weights file belongs to, judged by the names and shapes of its tensors."""

import warnings
from collections.abc import Iterator

import torch
import torchvision
from torch import nn

from nngk.errors import InputError
from nngk.networks.backbones import RECIPES
from nngk.networks.keys import State, strip_prefixes, translate

# Built with real tensors (RegNet) or slowly (transformers), and rarely what a file for our networks turns out to be.
SLOW = ("regnet*", "vit*", "swin*", "maxvit*")


def looks_like(state: State) -> str | None:
    """The name of the network whose tensors these are: one of ours, else one of torchvision's; None if neither.

    >>> looks_like({"fc.weight": torch.zeros(2, 2)}) is None
    True
    """
    for name, network in _candidates():
        shapes = {key: value.shape for key, value in network.state_dict().items() if "num_batches_tracked" not in key}
        ours = name in RECIPES
        named = strip_prefixes(state, set(shapes))
        if ours:
            named, _ = translate(name, named, RECIPES[name].input)
        if any(key not in named or named[key].shape != shape for key, shape in shapes.items()):
            continue
        parts = {key.split(".")[0] for key in shapes}
        top = RECIPES[name].classifier + "." if ours else "aux"
        if not any(
            key.split(".")[0] in parts and key not in shapes and not key.startswith(top) for key in _learned(named)
        ):
            return name
    return None


def _learned(state: State) -> list[str]:
    return [key for key in state if "num_batches_tracked" not in key]


def _candidates() -> Iterator[tuple[str, nn.Module]]:
    """Networks without storage, so that trying them all takes a moment."""
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision's remarks on slow initialisation
        for name, known in RECIPES.items():
            try:
                yield name, known.build().module
            except InputError:  # timm is not installed
                continue
        # RegNets compute their widths with tensors, which takes storage.
        for name in torchvision.models.list_models(module=torchvision.models, exclude=SLOW):
            yield name, torchvision.models.get_model(name, weights=None)
