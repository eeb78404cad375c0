"""Blocks in the compiled core against the same modules as PyTorch computes them, in every instruction set."""

import os
import signal

import pytest
import torch
from torch import nn

from nngk.networks.backbones import lite0
from nngk.networks.fused import chain
from nngk.networks.fused.chain import chain_of
from nngk.networks.fused.folding import Block, Layer

native = chain._core
SETS = [name for name in ("plain", "avx2", "avx512") if native is not None and native.has_kernels(name)]
pytestmark = pytest.mark.skipif(native is None, reason="the compiled core is not built")


@pytest.fixture(params=SETS)
def kernels(request, monkeypatch):
    monkeypatch.setenv("NNGK_KERNELS", request.param)


def lively(module):
    """Give BatchNorms statistics of their own."""
    torch.manual_seed(0)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.1)
            norm.running_var.uniform_(0.5, 1.5)
            norm.bias.data.normal_(0, 0.1)
    return module.eval().requires_grad_(False)


@pytest.fixture(params=[1, 2, 5])
def threads(request):
    """More of them than images share each image: its rows, or where maps are small its channels."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def assert_same(block, x):
    """The map that the core gives is the module's."""
    found = chain_of([block.block()], *x.shape[2:]).maps(x.permute(0, 2, 3, 1), [1])[0].permute(0, 3, 1, 2)
    torch.testing.assert_close(found, block(x), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("kernels", "threads")
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [(1, 1), (2, 3), (7, 7), (8, 9), (40, 37)])  # the last one in strips
@pytest.mark.parametrize("images", [1, 3])
def test_a_block_is_its_module(kernel, stride, side, images):
    block = lively(lite0.InvertedBlock(16, kernel, stride, 12, 16))
    assert block.adds == (stride == 1)
    assert_same(block, torch.randn(images, 16, *side))


@pytest.mark.usefixtures("kernels", "threads")
@pytest.mark.parametrize(("channels", "out"), [(16, 24), (32, 40), (48, 112), (16, 5)])
def test_channels_are_padded(channels, out):
    assert_same(lively(lite0.InvertedBlock(channels, 3, 1, 3, out)), torch.randn(2, channels, 6, 5))
    assert_same(lively(lite0.SeparableBlock(channels, 5, out)), torch.randn(2, channels, 6, 5))


@pytest.mark.usefixtures("kernels", "threads")
@pytest.mark.parametrize("kind", ["rows", "channels", "whole", "product"])
def test_however_an_image_is_shared_out_it_comes_out_the_same(kind):
    """A wide map that does not fit the caches is shared by rows; a team of any size says what one thread says."""
    rows = 170 if kind == "rows" else 9
    block = {
        "rows": lambda: lite0.InvertedBlock(16, 5, 2, 12, 24),
        "channels": lambda: lite0.InvertedBlock(16, 5, 1, 12, 16),
        "whole": lite0.EfficientNetLite0,
        "product": lite0.EfficientNetLite0,
    }[kind]()
    if kind in ("rows", "channels"):
        assert_same(lively(block), torch.randn(1, 16, rows, 130))
        return
    layer = {"whole": (block.conv_stem, block.bn1), "product": (block.conv_head, block.bn2)}[kind]
    lively(block)
    x = torch.randn(2, layer[0].in_channels, 11, 9)
    made = chain_of([Block((lite0._layer(*layer),), adds=False)], 11, 9)
    found = made.maps(x.permute(0, 2, 3, 1), [1])[0].permute(0, 3, 1, 2)
    torch.testing.assert_close(found, layer[1](layer[0](x)), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("kernels")
def test_a_process_that_was_forked_has_threads_of_its_own():
    """PyTorch's own threads are not there, and waiting for them would not end."""
    block, x = lively(lite0.InvertedBlock(16, 3, 1, 3, 16)), torch.randn(3, 16, 8, 8)
    torch.randn(500, 500) @ torch.randn(500, 500)  # starts PyTorch's threads
    made = chain_of([block.block()], 8, 8)
    outs = [(0, torch.empty(3, 8, 8, 16))]
    made.native.run(x.permute(0, 2, 3, 1).contiguous(), outs, 2, made.kernels)
    expected, given = outs[0][1].clone(), x.permute(0, 2, 3, 1).contiguous()
    child = os.fork()
    if not child:
        signal.alarm(60)
        outs[0][1].zero_()
        made.native.run(given, outs, 2, made.kernels)
        os._exit(0 if torch.equal(outs[0][1], expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.usefixtures("kernels")
def test_what_is_not_a_number_stays_so():
    block, x = lively(lite0.InvertedBlock(16, 3, 1, 3, 16)), torch.zeros(2, 16, 5, 5)
    x[1, 3, 2, 2] = torch.nan
    found = chain_of([block.block()], 5, 5).maps(x.permute(0, 2, 3, 1), [1])[0]
    assert found[0].isfinite().all() and found[1, 2, 2].isnan().all()


@pytest.mark.usefixtures("kernels")
def test_torchs_default_type_changes_nothing():
    block, x = lively(lite0.InvertedBlock(16, 3, 2, 3, 24)), torch.randn(2, 16, 9, 9)
    torch.set_default_dtype(torch.float64)
    try:
        assert_same(block, x)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_result_of_another_type_is_refused():
    made, rows = native.Chain(), (torch.zeros(16, 16), torch.zeros(16))
    made.product(rows, False, False, 4, 4)
    with pytest.raises(TypeError):
        made.run(torch.zeros(1, 4, 4, 16), [(0, torch.zeros(1, 4, 4, 16, dtype=torch.float64))], 1, "plain")


def layers(conv):
    norm = lively(nn.BatchNorm2d(conv.out_channels))
    around = conv.kernel_size[0] // 2
    return [Layer(conv.requires_grad_(False), norm, lambda height, width: (around,) * 4, relu6=False)]


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(16, 16, 3, padding=1, groups=4, bias=False),
        nn.Conv2d(16, 16, 3, dilation=2, bias=False),
        nn.Conv2d(16, 16, 1),
        nn.Conv2d(16, 16, (3, 5), bias=False),
        nn.Conv2d(5, 16, 1, bias=False),
    ],
)
def test_what_the_core_does_not_know_is_left_to_others(conv):
    assert chain_of([Block(tuple(layers(conv)), adds=False)], 8, 8) is None


def test_a_mistake_is_not_a_wild_write():
    made = native.Chain()
    rows = (torch.zeros(16, 16), torch.zeros(16))
    made.product(rows, False, False, 4, 4)
    x, out = torch.zeros(1, 4, 4, 16), torch.zeros(1, 4, 4, 16)
    made.run(x, [(0, out)], 1, "plain")
    for wrong in ([(0, out[:, :3].contiguous())], [(1, out)], [], [(0, torch.zeros(2, 4, 4, 16))]):
        with pytest.raises(ValueError, match="a chain of convolutions"):
            made.run(x, wrong, 1, "plain")
    with pytest.raises(ValueError, match="follow each other"):
        made.product((torch.zeros(16, 40), torch.zeros(16)), False, False, 4, 4)
    with pytest.raises(ValueError, match="touch the map"):
        made.separable(
            [], False, (torch.zeros(16, 9), torch.zeros(16)), False, rows, False, False, [3, 1, 1, 1, 4, 4, 9, 4]
        )
