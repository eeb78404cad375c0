"""BatchNorms taken into the convolutions before them, and on a CPU the activation too: one pass over a map."""

import functools

import torch
from torch import Tensor, nn


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


@functools.cache
def _onednn() -> bool:
    """Return whether PyTorch was built with the operation that its own compiler puts in the place of convolutions."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_convolution_pointwise")


def one_pass(x: Tensor) -> bool:
    """Return whether a convolution of ``x`` can take its activation along: on a CPU, in float32, without gradients."""
    plain = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_grad_enabled()
    plain = plain and not torch.is_autocast_enabled("cpu") and bool(torch.backends.mkldnn.enabled)
    return plain and not torch.compiler.is_compiling() and _onednn()


def conv_in_one_pass(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor, relu6: bool) -> Tensor:
    """Return what the frozen ``norm`` makes of ``conv(x)``, between 0 and 6 if ``relu6``; where ``one_pass(x)``.

    ``x`` is padded already if the convolution pads in a way of its own.
    """
    weight, bias = folded(conv, norm)
    assert not isinstance(conv.padding, str)
    activation = ("hardtanh", [0.0, 6.0], "") if relu6 else ("none", [], "")
    out: Tensor = torch.ops.mkldnn._convolution_pointwise(
        x, weight, bias, conv.padding, conv.stride, conv.dilation, conv.groups, *activation
    )
    return out
