"""The paper's GoogLeNet as BVLC trained it with Caffe: LRN, biased convolutions, no BatchNorm.

torchvision's `googlenet` is another network (BatchNorm, 3x3 in place of 5x5, a 2x2 last pool) and cannot hold these
weights. Parameter names follow torchvision's where the layers correspond.
"""

import torch
from torch import Tensor, nn

from nngk.accel import usable
from nngk.networks.fused.convolution import conv_relu, fusable

# Channels of each inception block: input, 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection.
INCEPTIONS: dict[str, tuple[int, int, int, int, int, int, int]] = {
    "3a": (192, 64, 96, 128, 16, 32, 32),
    "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64),
    "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64),
    "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128),
    "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128),
}


class ConvReLU(nn.Module):
    """A biased convolution and its ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__()
        self.stride, self.padding = stride, padding
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding)
        # Caffe's own filler for this network.
        nn.init.xavier_uniform_(self.conv.weight)
        assert self.conv.bias is not None
        nn.init.constant_(self.conv.bias, 0.2)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.conv.weight, self.conv.bias
        assert bias is not None
        if self.conv.kernel_size == (7, 7) and fusable(x) and x.shape[2] % 2 == x.shape[3] % 2 == 0:
            return conv_relu(*in_blocks(x, weight), bias)
        return conv_relu(x, weight, bias, self.stride, self.padding)


def in_blocks(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return colour images of even sides and weights of 7×7 in blocks of 2×2 pixels, padding included.

    The first convolution, with a stride of two, is then one of 4×4 blocks without a stride: three channels keep a GPU's
    matrix units waiting, twelve do not.

    >>> x, w = torch.randn(1, 3, 10, 12), torch.randn(5, 3, 7, 7)
    >>> expected = nn.functional.conv2d(x, w, stride=2, padding=3)
    >>> torch.allclose(nn.functional.conv2d(*in_blocks(x, w)), expected, atol=1e-4)
    True
    """
    blocks = nn.functional.pixel_unshuffle(nn.functional.pad(x, (4, 2, 4, 2)), 2)
    weight = nn.functional.pixel_unshuffle(nn.functional.pad(weight, (1, 0, 1, 0)), 2)
    last = torch.channels_last
    return blocks.contiguous(memory_format=last), weight.contiguous(memory_format=last)


class MaxPool(nn.Module):
    """Max pooling, on a GPU without the places of the maxima where no gradient will ask for them."""

    def __init__(self, side: int, stride: int, padding: int = 0, ceil_mode: bool = False) -> None:
        super().__init__()
        self.side, self.stride, self.padding, self.ceil_mode = side, stride, padding, ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        if _answers_alone() and usable(x):
            from nngk.networks.fused.norm_and_pool import max_pool

            return max_pool(x, self.side, self.stride, self.padding, self.ceil_mode)
        return nn.functional.max_pool2d(x, self.side, self.stride, self.padding, ceil_mode=self.ceil_mode)


class LocalResponseNorm(nn.LocalResponseNorm):
    """Local response normalisation, on a GPU in one pass."""

    def forward(self, x: Tensor) -> Tensor:
        if usable(x) and not torch.compiler.is_compiling():
            from nngk.networks.fused.norm_and_pool import local_response_norm

            return local_response_norm(x, self.size, self.alpha, self.beta, self.k)
        return super().forward(x)


def _answers_alone() -> bool:
    """Return whether neither a gradient nor a compiler follows what is computed."""
    return not (torch.is_grad_enabled() or torch.compiler.is_compiling())


class Inception(nn.Module):
    """Four parallel branches, concatenated: 1x1, 3x3, 5x5, pooled."""

    def __init__(self, inputs: int, one: int, reduce3: int, three: int, reduce5: int, five: int, pool: int) -> None:
        super().__init__()
        self.branch1 = ConvReLU(inputs, one, 1)
        self.branch2 = nn.Sequential(ConvReLU(inputs, reduce3, 1), ConvReLU(reduce3, three, 3, padding=1))
        self.branch3 = nn.Sequential(ConvReLU(inputs, reduce5, 1), ConvReLU(reduce5, five, 5, padding=2))
        self.branch4 = nn.Sequential(MaxPool(3, 1, padding=1), ConvReLU(inputs, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class GoogLeNetBVLC(nn.Module):
    """Images -> the (1024, H/32, W/32) map that the paper's embedding layer stands on.

    >>> GoogLeNetBVLC()(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 1024, 2, 2])
    """

    layers = 1  # how many of the maps 4e, 5a and 5b are given, from the last; more than one: a tuple

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = ConvReLU(3, 64, 7, stride=2, padding=3)
        self.conv2 = ConvReLU(64, 64, 1)
        self.conv3 = ConvReLU(64, 192, 3, padding=1)
        for block, channels in INCEPTIONS.items():
            self.add_module(f"inception{block}", Inception(*channels))
        # Caffe rounds the size of a pooled map up.
        self.pool = MaxPool(3, 2, ceil_mode=True)
        self.lrn = LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        x = self.lrn(self.pool(self.conv1(x)))
        x = self.pool(self.lrn(self.conv3(self.conv2(x))))
        maps = []
        for block in INCEPTIONS:
            x = self.get_submodule(f"inception{block}")(x)
            maps.append(x)
            if block in ("3b", "4e"):
                x = self.pool(x)
        return x if self.layers == 1 else tuple(maps[-self.layers :])
