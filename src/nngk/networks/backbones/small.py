"""A small convolutional network for tiny images (8 to 64 pixels), trained from nothing in a minute on a laptop."""

from torch import Tensor, nn


class SmallNetwork(nn.Module):
    """Five 3x3 convolutions in three stages, 278 thousand parameters; 32x32 pixels become a (128, 2, 2) map.

    GroupNorm, not BatchNorm: the centres are computed in eval mode, and with GroupNorm that is the same function of an
    image as the one being trained, from the first step on. Normalised maps have nearly the same mean in every image, so
    the last map is max-pooled first, and the head's pooling works on what is left.

    >>> import torch
    >>> SmallNetwork()(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 128, 2, 2])
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = _convolution(3, 32)
        self.stage1 = nn.Sequential(nn.MaxPool2d(2), _convolution(32, 64), _convolution(64, 64))
        self.stage2 = nn.Sequential(nn.MaxPool2d(2), _convolution(64, 128), _convolution(128, 128))
        # Rounded up, so that 8x8 pixels still leave one position.
        self.peaks = nn.MaxPool2d(4, ceil_mode=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.stage1(x)
        return self.peaks(self.stage2(x))


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(convolution, nn.GroupNorm(8, outputs), nn.ReLU(inplace=True))
