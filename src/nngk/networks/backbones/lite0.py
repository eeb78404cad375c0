"""EfficientNet-Lite0 up to its last feature map; parameter names are timm's.

It is the default network: written here, it needs nothing but PyTorch, whose import timm's would double.
"""

import itertools
import math

from torch import Tensor, nn
from torch.nn.functional import pad

from nngk.networks.fused.folding import Block, Layer, frozen
from nngk.networks.fused.packed import packable, packed_network

# Of each stage: blocks, kernel, stride, expansion, channels.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, WIDEST = 32, 1280
# The blocks up to the end of each stage, with the first convolution, and up to the last one.
ENDS = tuple(itertools.accumulate((1 + STAGES[0][0], *(count for count, *_ in STAGES[1:]), 1)))
LARGE = 3  # stages whose maps are so large that a CPU is faster with one image at a time


class SameConv(nn.Conv2d):
    """A strided convolution that pads as TensorFlow does: so much that no pixel is lost, and more after than before."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(pad(x, self.margins(*x.shape[2:])))

    def margins(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return how many zeros are read to the left and right of a map, above and below."""
        (down, across), (tall, wide) = self.stride, self.kernel_size
        return *_padding(width, wide, across), *_padding(height, tall, down)


def _padding(side: int, kernel: int, stride: int) -> tuple[int, int]:
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    return total // 2, total - total // 2


def _conv(channels: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    kind, padding = (SameConv, 0) if stride > 1 else (nn.Conv2d, kernel // 2)
    conv = kind(channels, out, kernel, stride, padding, groups=groups, bias=False)
    nn.init.normal_(conv.weight, 0, math.sqrt(2 * groups / (kernel**2 * out)))
    return conv


class NormReLU6(nn.BatchNorm2d):
    """BatchNorm, and the activation behind it."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu6(super().forward(x), inplace=True)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


def _norm_relu6(channels: int) -> nn.BatchNorm2d:
    return NormReLU6(channels, eps=1e-3)


def _layer(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Layer:
    around = conv.kernel_size[0] // 2
    margins = conv.margins if isinstance(conv, SameConv) else lambda height, width: (around,) * 4
    return Layer(conv, norm, margins, relu6=isinstance(norm, NormReLU6))


class SeparableBlock(nn.Module):
    """A convolution of each channel, and one across them."""

    def __init__(self, channels: int, kernel: int, out: int) -> None:
        super().__init__()
        self.conv_dw, self.bn1 = _conv(channels, channels, kernel, groups=channels), _norm_relu6(channels)
        self.conv_pw, self.bn2 = _conv(channels, out), _norm(out)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv_pw(self.bn1(self.conv_dw(x))))

    def block(self) -> Block:
        """Return its layers."""
        return Block((_layer(self.conv_dw, self.bn1), _layer(self.conv_pw, self.bn2)), adds=False)


class InvertedBlock(nn.Module):
    """More channels, a convolution of each, and fewer channels again, added to the input where it has their shape."""

    def __init__(self, channels: int, kernel: int, stride: int, expansion: int, out: int) -> None:
        super().__init__()
        wide = channels * expansion
        self.adds = stride == 1 and channels == out
        self.conv_pw, self.bn1 = _conv(channels, wide), _norm_relu6(wide)
        self.conv_dw, self.bn2 = _conv(wide, wide, kernel, stride, groups=wide), _norm_relu6(wide)
        self.conv_pwl, self.bn3 = _conv(wide, out), _norm(out)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.bn2(self.conv_dw(self.bn1(self.conv_pw(x))))
        narrow = self.bn3(self.conv_pwl(wide))
        return narrow + x if self.adds else narrow

    def block(self) -> Block:
        """Return its layers."""
        pairs = (self.conv_pw, self.bn1), (self.conv_dw, self.bn2), (self.conv_pwl, self.bn3)
        return Block(tuple(_layer(*pair) for pair in pairs), self.adds)


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 up to its last (1280, H, W) map.

    >>> import torch
    >>> EfficientNetLite0()(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 1280, 2, 2])
    """

    layers = 1  # how many of the last stages' maps are given, the widest one last; more than one: a tuple

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem, self.bn1 = _conv(3, STEM, 3, stride=2), _norm_relu6(STEM)
        channels, stages = STEM, []
        for count, kernel, stride, expansion, out in STAGES:
            blocks: list[nn.Module] = []
            for number in range(count):
                step = stride if number == 0 else 1
                blocks.append(
                    SeparableBlock(channels, kernel, out)
                    if expansion == 1
                    else InvertedBlock(channels, kernel, step, expansion, out)
                )
                channels = out
            stages.append(nn.Sequential(*blocks))
        self.blocks = nn.Sequential(*stages)
        self.conv_head, self.bn2 = _conv(channels, WIDEST), _norm_relu6(WIDEST)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        maps = self._packed_maps(x) if packable(x) else None
        if maps is None:
            maps = [self.blocks[:LARGE](self.bn1(self.conv_stem(x)))]
            for stage in self.blocks[LARGE:]:
                maps.append(stage(maps[-1]))
            maps.append(self.bn2(self.conv_head(maps[-1])))
        return maps[-1] if self.layers == 1 else tuple(maps[-self.layers :])

    def _packed_maps(self, x: Tensor) -> list[Tensor] | None:
        """Return the maps of the last stages, computed by packed kernels; None if a BatchNorm goes by its batch."""
        run = packed_network(self, self._blocks, *x.shape[2:])
        if run is None:
            return None
        ends = ENDS[LARGE - 1 :] if run.chain is None else ENDS[-self.layers :]
        return [y.permute(0, 3, 1, 2) for y in run.maps(x.permute(0, 2, 3, 1), ends)]

    def _blocks(self) -> list[Block] | None:
        """Return the blocks from the first to the last; None if a BatchNorm goes by its batch."""
        kinds = SeparableBlock | InvertedBlock
        stages = [block for stage in self.blocks for block in stage.children() if isinstance(block, kinds)]
        first, last = _layer(self.conv_stem, self.bn1), _layer(self.conv_head, self.bn2)
        blocks = [Block((first,), adds=False), *(block.block() for block in stages), Block((last,), adds=False)]
        return blocks if all(frozen(layer.norm) for block in blocks for layer in block.layers) else None
