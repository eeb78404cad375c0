"""BatchNorms taken into the convolutions before them, and on a CPU the activation too: one pass over a map."""

import functools
import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary


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


class _Packed(NamedTuple):
    """A folded weight and bias, and what they were made of."""

    tensors: list[Tensor]
    state: list[Any]
    weight: Tensor
    bias: Tensor


_PACKED = WeakTensorKeyDictionary()  # by the weight of the convolution, so that replicas of a network share it
_lock = threading.Lock()


def packed(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return :func:`folded`, the weight in the order in which oneDNN reads it for images of the size of ``x``.

    It is kept where the weights are not being trained, and made anew once one of them was changed. Another size may
    need another order: with a wrong one a convolution takes many times as long.
    """
    assert norm.running_mean is not None and norm.running_var is not None
    weight, tensors = conv.weight, [norm.weight, norm.bias, norm.running_mean, norm.running_var]
    if any(t.requires_grad or t.is_inference() for t in (weight, *tensors)):  # the latter do not tell of changes
        return folded(conv, norm)
    state = [x.shape[1:], *((t.data_ptr(), t._version) for t in (weight, *tensors))]
    with _lock:
        known: _Packed | None = _PACKED.get(weight)
    if known is None or known.state != state or any(a is not b for a, b in zip(known.tensors, tensors)):
        whole, bias = folded(conv, norm)
        where = (conv.padding, conv.stride, conv.dilation, conv.groups, x.shape)
        known = _Packed(tensors, state, torch.ops.mkldnn._reorder_convolution_weight(whole, *where), bias)
        with _lock:
            _PACKED[weight] = known
    return known.weight, known.bias


def conv_in_one_pass(
    conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor, relu6: bool = False, beside: Tensor | None = None
) -> Tensor:
    """Return what the frozen ``norm`` makes of ``conv(x)``; where ``one_pass(x)``.

    The result is between 0 and 6 if ``relu6``, or the sum with what lies ``beside`` it. ``x`` is padded already if the
    convolution pads in a way of its own.
    """
    given = (*packed(conv, norm, x), conv.padding, conv.stride, conv.dilation, conv.groups)
    fused = torch.ops.mkldnn._convolution_pointwise
    if beside is not None:
        return fused.binary(x, beside, *given, "add", 1.0, None, [], None)
    return fused(x, *given, *(("hardtanh", [0.0, 6.0], "") if relu6 else ("none", [], "")))
