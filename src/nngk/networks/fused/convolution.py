"""A convolution with its bias, what lies beside it and its ReLU in one kernel, where cuDNN is there to run it.

PyTorch writes a convolution's result, reads it to add the bias, and reads it again for the ReLU: passes over the
map that cost a network in half precision, whose products are fast, a good part of its time (docs/gpu.md). Launching
the fused kernel takes the host longer than launching the three, so that it pays in a CUDA graph, and without one only
for so many images that the host is ahead of the GPU anyway.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from nngk.accel import DTYPES, is_capturing

# On an H200 the fused way is as fast as the plain one with 128 images, and 1.6 to 1.8 times as fast with 512
# (results/gpu_convolutions.csv).
MANY = 256


def conv_relu(
    x: Tensor, weight: Tensor, bias: Tensor, stride: int = 1, padding: int = 0, beside: Tensor | None = None
) -> Tensor:
    """Return ``relu(conv2d(x, weight, bias, stride, padding) + beside)``.

    >>> x, weight = torch.ones(1, 1, 2, 2), torch.full((1, 1, 1, 1), 2.0)
    >>> conv_relu(x, weight, torch.tensor([-1.0]), beside=-x).flatten().tolist()
    [0.0, 0.0, 0.0, 0.0]
    """
    if not fusable(x):
        out = conv2d(x, weight, bias, stride, padding)
        return torch.relu(out if beside is None else out + beside)
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    given = [t.to(dtype) for t in (x, weight, bias)]
    return _ConvReLU.apply(*given, (stride, stride), (padding, padding), None if beside is None else beside.to(dtype))


def fusable(x: Tensor) -> bool:
    """Return whether cuDNN's fused convolution can work on ``x``, and pays: in a CUDA graph, or for many images.

    ROCm calls its own library by the same name, without that operation.
    """
    cudnn = torch.version.cuda is not None and torch.backends.cudnn.enabled and torch.backends.cudnn.is_available()
    possible = x.is_cuda and x.dtype in DTYPES and cudnn and not torch.compiler.is_compiling()
    # Asked last: an export that sees the number of images would hold on to it.
    return possible and (is_capturing() or len(x) >= MANY)


class _ConvReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        stride: tuple[int, int],
        padding: tuple[int, int],
        beside: Tensor | None,
    ) -> Tensor:
        last = torch.channels_last
        x, weight = x.contiguous(memory_format=last), weight.contiguous(memory_format=last)
        if beside is None:
            y = torch.cudnn_convolution_relu(x, weight, bias, stride, padding, (1, 1), 1)
        else:
            beside = beside.contiguous(memory_format=last)
            y = torch.cudnn_convolution_add_relu(x, weight, beside, 1.0, bias, stride, padding, (1, 1), 1)
        ctx.save_for_backward(x, weight, y)
        ctx.where = (stride, padding)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        passed = torch.ops.aten.threshold_backward(gradients[0], y, 0)
        by_x, by_weight, by_bias = torch.ops.aten.convolution_backward(
            passed, x, weight, [len(weight)], *ctx.where, (1, 1), False, (0, 0), 1, ctx.needs_input_grad[:3]
        )
        return by_x, by_weight, by_bias, None, None, passed if ctx.needs_input_grad[5] else None
