"""Blocks of separable convolutions in the compiled core, which keeps what is wide in them in a core's cache.

oneDNN computes layer after layer, and threads that share a pass wait for each other after each; here each thread takes
images of its own through the whole network, and nothing of PyTorch is called in between.
"""

import importlib
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nngk.networks.fused.folding import Block, Layer, folded

PANEL = 16  # to a multiple of which the core pads a map's channels


def _load() -> ModuleType | None:
    try:
        return importlib.import_module("nngk.networks._maps")
    except ModuleNotFoundError:  # installed without a compiler
        return None


_core = _load()


def core() -> str | None:
    """Return the name of the core's kernels, or None where it is not to be used.

    Its plain kernels are slower than oneDNN's, and run where ``NNGK_KERNELS`` asks for them.
    """
    if _core is None or os.environ.get("NNGK_NO_NATIVE"):
        return None
    wanted = os.environ.get("NNGK_KERNELS")
    if wanted and _core.has_kernels(wanted):
        return wanted
    return None if _core.kernels == "plain" else str(_core.kernels)


class Chain:
    """Blocks in the core, for maps of one size."""

    def __init__(self, native: Any, channels: list[int], sizes: list[tuple[int, int]], kernels: str) -> None:
        self.native, self.channels, self.sizes, self.kernels = native, channels, sizes, kernels

    def maps(self, x: Tensor, ends: Sequence[int]) -> list[Tensor]:
        """Return what the blocks before each of some ends make of a map (B, H, W, C); the last end is of them all."""
        outs = []
        for end in ends:
            width = -(-self.channels[end - 1] // PANEL) * PANEL
            outs.append((end - 1, x.new_empty(len(x), *self.sizes[end - 1], width)))
        self.native.run(x.contiguous(), outs, torch.get_num_threads(), self.kernels)
        return [out[..., : self.channels[i]] for i, out in outs]


def chain_of(blocks: Sequence[Block], height: int, width: int) -> Chain | None:
    """Return blocks in the core for maps of a size; None without it, or where it does not know one of them."""
    kernels = core()
    if kernels is None:
        return None
    assert _core is not None
    native, channels, sizes = _core.Chain(), [], []
    for number, block in enumerate(blocks):
        kinds = [_kind(layer, height, width) for layer in block.layers]
        first = block.layers[0]
        if kinds == ["whole"] and number == 0 and not block.adds:
            weight, bias = folded(first.conv, first.norm)
            window = _window(first, height, width)
            native.convolution(_rows(weight.permute(0, 2, 3, 1), bias), first.relu6, window)
            height, width = window[6:]
        elif kinds == ["product"]:
            native.product(_rows(*folded(first.conv, first.norm)), first.relu6, block.adds, height, width)
        elif kinds in (["each", "product"], ["product", "each", "product"]):
            *widen, each, last = [(_rows(*folded(layer.conv, layer.norm)), layer.relu6) for layer in block.layers]
            window = _window(block.layers[-2], height, width)
            widens = [rows for rows, _ in widen]
            native.separable(widens, any(relu6 for _, relu6 in widen), *each, *last, block.adds, window)
            height, width = window[6:]
        else:
            return None
        channels.append(block.layers[-1].conv.out_channels)
        sizes.append((height, width))
    # A first block that is not a whole convolution would read channels that are padded.
    padded = blocks[0].layers[0].conv.in_channels % PANEL and _kind(blocks[0].layers[0], *sizes[0]) != "whole"
    return None if padded else Chain(native, channels, sizes, kernels)


def _rows(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the core takes: the weights of each channel of the result in a row."""
    return weight.detach().flatten(1).contiguous(), bias.detach().contiguous()


def _kind(layer: Layer, height: int, width: int) -> str:
    """Return what a layer is to the core: a product of matrices, a convolution of each channel, a whole one, or ''."""
    conv, (left, right, top, bottom) = layer.conv, layer.margins(height, width)
    kernel, stride = conv.kernel_size[0], conv.stride[0]
    known = conv.bias is None and conv.padding_mode == "zeros" and conv.dilation == (1, 1)
    known = known and conv.kernel_size == (kernel, kernel) and conv.stride == (stride, stride)
    known = known and max(left, right, top, bottom) < kernel and conv.weight.dtype == torch.float32
    if not known:
        return ""
    if kernel == stride == conv.groups == 1:
        return "product"
    if conv.groups == conv.in_channels == conv.out_channels > 1:
        return "each" if kernel in (3, 5) and stride in (1, 2) else ""
    return "whole" if conv.groups == 1 else ""


def _window(layer: Layer, height: int, width: int) -> list[int]:
    """Return a convolution's kernel, stride, margins before the map, and the sizes of its map and of its result."""
    left, right, top, bottom = layer.margins(height, width)
    kernel, stride = layer.conv.kernel_size[0], layer.conv.stride[0]
    rows = (height + top + bottom - kernel) // stride + 1
    return [kernel, stride, left, top, height, width, rows, (width + left + right - kernel) // stride + 1]
