"""BatchNorms taken into the convolutions before them: one pass over a map."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn


class Layer(NamedTuple):
    """A convolution and its frozen BatchNorm. ``margins`` says how many zeros it reads: left, right, above, below."""

    conv: nn.Conv2d
    norm: nn.BatchNorm2d
    margins: Callable[[int, int], tuple[int, int, int, int]]  # of a map's height and width
    relu6: bool


class Block(NamedTuple):
    """Layers in a row; with ``adds`` the last one, which has no activation, is added to the first one's input."""

    layers: tuple[Layer, ...]
    adds: bool


def frozen(norm: nn.Module) -> bool:
    """Return whether a BatchNorm goes by its stored statistics: then it is a scale and a shift."""
    return not norm.training and isinstance(norm.running_mean, Tensor)


def folded(conv: nn.Module, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the weight and bias of a convolution that has taken over the frozen BatchNorm behind it.

    That saves one pass over the map, and four in a training step.
    """
    assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
    assert norm.running_var is not None and norm.running_mean is not None
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    return conv.weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale
