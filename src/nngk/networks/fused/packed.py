"""A network of convolutions as a CPU runs it fastest: with weights packed for the compiled core, or for oneDNN.

The core (:mod:`nngk.networks.fused.chain`) computes whole blocks a part of a map at a time. Blocks that it does not
know, and installations without it, run as a list of oneDNN's kernels. Each of these takes a BatchNorm, an activation
and an addition along. A convolution of single pixels is a product of matrices, for which oneDNN has faster kernels than
for convolutions. Nothing else is done per layer: with small maps what Python does between two of them is a good part of
the time.
"""

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.weak import WeakTensorKeyDictionary

from nngk.networks.fused.chain import Chain, chain_of, core
from nngk.networks.fused.folding import Block, Layer, folded
from nngk.networks.fused.unchanged import Unchanged

Kernel = Callable[..., Tensor]  # of a map (B, H, W, C), and of what is added to the result


class Packed(NamedTuple):
    """The kernels of blocks for maps of one size, and what they were made of."""

    tensors: list[Tensor]
    state: list[Any]
    chain: Chain | None
    kernels: list[tuple[tuple[Kernel, ...], bool]]  # where there is no chain

    def maps(self, x: Tensor, ends: Sequence[int]) -> list[Tensor]:
        """Return what the blocks before each of some ends make of a map (B, H, W, C)."""
        if self.chain is not None:
            return self.chain.maps(x, ends)
        # Each of the large maps is small enough for the caches if it is of one image.
        maps = [torch.cat([self.through(range(ends[0]), image) for image in x.split(1)])]
        for start, end in itertools.pairwise(ends):
            maps.append(self.through(range(start, end), maps[-1]))
        return maps

    def through(self, blocks: range, x: Tensor) -> Tensor:
        """Return what some of the blocks, by their numbers, make of a map (B, H, W, C)."""
        for kernels, adds in self.kernels[blocks.start : blocks.stop]:
            y = x
            for kernel in kernels[:-1]:
                y = kernel(y)
            x = kernels[-1](y, x) if adds else kernels[-1](y)
        return x


@functools.cache
def _onednn() -> bool:
    """Return whether PyTorch was built with the operations that its own compiler puts in the place of layers."""
    names = ("_convolution_pointwise", "_linear_pointwise", "_reorder_linear_weight")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


def packable(x: Tensor) -> bool:
    """Return whether packed kernels can work on ``x``: on a CPU, in float32, without gradients."""
    plain = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_grad_enabled()
    plain = plain and not torch.is_autocast_enabled("cpu") and bool(torch.backends.mkldnn.enabled)
    plain = plain and not torch.compiler.is_compiling() and len(x) > 0
    plain = plain and not torch.jit.is_tracing()  # type: ignore[attr-defined]  # a public name, if not in __all__
    return plain and (core() is not None or _onednn())


_PACKED = WeakTensorKeyDictionary()  # by the weight of the first convolution, so that replicas of a network share it
_PASSED: "WeakKeyDictionary[nn.Module, tuple[Unchanged, Any, Packed]]" = WeakKeyDictionary()  # by the network
_lock = threading.Lock()


def packed(blocks: Sequence[Block], height: int, width: int) -> Packed:
    """Return the kernels of blocks for a map of a size.

    They are kept where the weights are not being trained, and made anew for another size and once a weight was changed.
    """
    first, *others = (tensor for block in blocks for layer in block.layers for tensor in _tensors(layer))
    if any(t.requires_grad or t.is_inference() for t in (first, *others)):  # the latter do not tell of changes
        return _fresh([], [], blocks, height, width)
    state = [core(), height, width, *((t.data_ptr(), t._version) for t in (first, *others))]
    with _lock:
        known: Packed | None = _PACKED.get(first)
        if known is None or known.state != state or any(a is not b for a, b in zip(known.tensors, others)):
            known = _PACKED[first] = _fresh(others, state, blocks, height, width)
    return known


def packed_network(
    network: nn.Module, blocks: Callable[[], list[Block] | None], height: int, width: int
) -> Packed | None:
    """Return the kernels of all blocks of a network for a map of a size; None if it has none that can be packed.

    While the network is what it was at the last pass, it is not walked through again.
    """
    size = (core(), height, width)
    same, of, known = _PASSED.get(network, (None, None, None))
    if same is not None and of == size and same():
        return known
    same, found = Unchanged(network), blocks()  # in this order: a change in between is noticed by the next pass
    made = None if found is None else packed(found, height, width)
    if made is not None and made.tensors:  # it is kept
        _PASSED[network] = (same, size, made)
    else:
        _PASSED.pop(network, None)
    return made


def _fresh(tensors: list[Tensor], state: list[Any], blocks: Sequence[Block], height: int, width: int) -> Packed:
    chain = chain_of(blocks, height, width)
    return Packed(tensors, state, chain, [] if chain else _kernels(blocks, height, width))


def _tensors(layer: Layer) -> tuple[Tensor, ...]:
    norm = layer.norm
    assert norm.running_mean is not None and norm.running_var is not None
    # Statistics change without a sign of it; the number of batches that made them tells.
    counted = () if norm.num_batches_tracked is None else (norm.num_batches_tracked,)
    return layer.conv.weight, norm.weight, norm.bias, norm.running_mean, norm.running_var, *counted


def _kernels(blocks: Sequence[Block], height: int, width: int) -> list[tuple[tuple[Kernel, ...], bool]]:
    made = []
    for block in blocks:
        assert not (block.adds and block.layers[-1].relu6)
        kernels = []
        for layer in block.layers:
            kernel, height, width = _kernel(layer, height, width)
            kernels.append(kernel)
        made.append((tuple(kernels), block.adds))
    return made


def _kernel(layer: Layer, height: int, width: int) -> tuple[Kernel, int, int]:
    """Return the kernel of a layer for maps of a size, and the size of what it gives."""
    conv = layer.conv
    assert conv.bias is None and conv.padding_mode == "zeros"
    weight, bias = folded(conv, layer.norm)
    after = ("hardtanh", [0.0, 6.0], "") if layer.relu6 else ("none", [], "")
    if conv.kernel_size == conv.stride == (1, 1) and conv.groups == 1 and not any(layer.margins(height, width)):
        return _product(weight, bias, after, height * width), height, width
    return _convolution(layer, weight, bias, after, height, width)


def _product(weight: Tensor, bias: Tensor, after: tuple[Any, ...], pixels: int) -> Kernel:
    """Return a convolution of single pixels, in maps of so many, as a product of matrices."""
    rows = torch.ops.mkldnn._reorder_linear_weight(weight[:, :, 0, 0].contiguous(), pixels)
    plain, adding = torch.ops.mkldnn._linear_pointwise.default, torch.ops.mkldnn._linear_pointwise.binary

    def kernel(x: Tensor, beside: Tensor | None = None) -> Tensor:
        return plain(x, rows, bias, *after) if beside is None else adding(x, beside, rows, bias, "add")

    return kernel


def _convolution(
    layer: Layer, weight: Tensor, bias: Tensor, after: tuple[Any, ...], height: int, width: int
) -> tuple[Kernel, int, int]:
    """Return a convolution as one kernel. Where more zeros come behind a map than before it, the weight starts with
    one: then both margins are the same, and no map is copied to lay zeros around it."""
    conv, (left, right, top, bottom) = layer.conv, layer.margins(height, width)
    apart, aside = conv.dilation
    assert right - left in (0, aside) and bottom - top in (0, apart)
    weight = pad(weight, (int(right > left), 0, int(bottom > top), 0))
    where = ([bottom, right], list(conv.stride), list(conv.dilation), conv.groups)
    shape = [1, conv.in_channels, height, width]
    order = torch.ops.mkldnn._reorder_convolution_weight(weight, *where, shape)
    fused = torch.ops.mkldnn._convolution_pointwise.default

    def kernel(x: Tensor, beside: Tensor | None = None) -> Tensor:
        y: Tensor = fused(x.permute(0, 3, 1, 2), order, bias, *where, *after).permute(0, 2, 3, 1)
        return y if beside is None else y + beside

    down, across = conv.stride
    rows = height + 2 * bottom - apart * (weight.shape[2] - 1) - 1
    columns = width + 2 * right - aside * (weight.shape[3] - 1) - 1
    return kernel, rows // down + 1, columns // across + 1
