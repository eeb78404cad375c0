"""EfficientNet-Lite0 up to its last feature map; parameter names are timm's.

It is the default network: written here, it needs nothing but PyTorch, whose import timm's would double.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nngk.networks.fused.folding import conv_in_one_pass, frozen, one_pass

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
LARGE = 3  # stages whose maps are so large that a CPU is faster with few images at a time
FEW = 2  # images that go through those together; the other stages take all


class SameConv(nn.Conv2d):
    """A strided convolution that pads as TensorFlow does: so much that no pixel is lost, and more after than before."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.padded(x))

    def padded(self, x: Tensor) -> Tensor:
        """Return the map with the zeros around it that this convolution reads."""
        return pad(x, self.margins(x))

    def margins(self, x: Tensor) -> tuple[int, ...]:
        """Return how many zeros it reads to the left and right of the map, above and below."""
        height, width = (
            _padding(side, kernel, stride) for side, kernel, stride in zip(x.shape[2:], self.kernel_size, self.stride)
        )
        return *width, *height


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


def _normed(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor, beside: Tensor | None = None) -> Tensor:
    """Return ``norm(conv(x))``, plus what lies ``beside`` it, in one pass where that is possible."""
    if not (one_pass(x) and frozen(norm)):
        return norm(conv(x)) if beside is None else norm(conv(x)) + beside
    x = conv.padded(x) if isinstance(conv, SameConv) else x
    return conv_in_one_pass(conv, norm, x, isinstance(norm, NormReLU6), beside)


class SeparableBlock(nn.Module):
    """A convolution of each channel, and one across them."""

    def __init__(self, channels: int, kernel: int, out: int) -> None:
        super().__init__()
        self.conv_dw, self.bn1 = _conv(channels, channels, kernel, groups=channels), _norm_relu6(channels)
        self.conv_pw, self.bn2 = _conv(channels, out), _norm(out)

    def forward(self, x: Tensor) -> Tensor:
        return _normed(self.conv_pw, self.bn2, _normed(self.conv_dw, self.bn1, x))


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
        return _normed(self.conv_pwl, self.bn3, self._wide(x), x if self.adds else None)

    def _wide(self, x: Tensor) -> Tensor:
        if not (isinstance(self.conv_dw, SameConv) and one_pass(x) and frozen(self.bn1) and frozen(self.bn2)):
            return _normed(self.conv_dw, self.bn2, _normed(self.conv_pw, self.bn1, x))
        # The map is padded before it is widened, when there is less to copy; then the margins are made zeros again.
        margins = left, right, top, bottom = self.conv_dw.margins(x)
        wide = conv_in_one_pass(self.conv_pw, self.bn1, pad(x, margins), relu6=True)
        height, width = wide.shape[2:]
        for margin in (
            wide[:, :, :top],
            wide[:, :, height - bottom :],
            wide[..., :left],
            wide[..., width - right :],
        ):
            margin.zero_()
        return conv_in_one_pass(self.conv_dw, self.bn2, wide, relu6=True)


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
        few = x.split(FEW) if one_pass(x) and len(x) > FEW else (x,)
        large = [self.blocks[:LARGE](_normed(self.conv_stem, self.bn1, images)) for images in few]
        maps = [torch.cat(large) if len(large) > 1 else large[0]]
        for stage in self.blocks[LARGE:]:
            maps.append(stage(maps[-1]))
        maps.append(_normed(self.conv_head, self.bn2, maps[-1]))
        return maps[-1] if self.layers == 1 else tuple(maps[-self.layers :])
