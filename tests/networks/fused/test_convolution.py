"""The fused convolution's gradient and its use, with PyTorch's own operations in cuDNN's place."""

import threading
from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional as F
from torchvision.models.resnet import Bottleneck

from nngk.accel import capturing
from nngk.networks.backbones.googlenet import GoogLeNetBVLC
from nngk.networks.backbones.torchvision import FoldingBottleneck, folding_pays
from nngk.networks.fused import convolution as fused


@pytest.fixture
def library(monkeypatch):
    """cuDNN's two operations, which only a GPU has, written out; returns how often each was called."""
    calls = {"relu": 0, "add": 0}

    def conv(x, weight, bias, stride, padding, dilation, groups):
        calls["relu"] += 1
        return torch.relu(F.conv2d(x, weight, bias, stride, padding, dilation, groups))

    def conv_add(x, weight, beside, alpha, bias, stride, padding, dilation, groups):
        calls["add"] += 1
        return torch.relu(F.conv2d(x, weight, bias, stride, padding, dilation, groups) + alpha * beside)

    monkeypatch.setattr(torch, "cudnn_convolution_relu", conv)
    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", conv_add)
    monkeypatch.setattr(fused, "fusable", lambda x: True)
    monkeypatch.setattr("nngk.networks.backbones.googlenet.fusable", lambda x: True)
    return calls


class FakeMap:
    """What the rule asks of a map on a GPU."""

    is_cuda, dtype = True, torch.bfloat16

    def __init__(self, images: int) -> None:
        self.images = images

    def __len__(self) -> int:
        return self.images


@pytest.mark.parametrize("captured", [False, True])
def test_few_images_are_fused_only_while_a_graph_is_captured(monkeypatch, captured):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    few, many = (FakeMap(images) for images in (fused.MANY - 1, fused.MANY))
    seen = []
    with capturing() if captured else nullcontext():
        assert fused.fusable(few) == captured
        other = threading.Thread(target=lambda: seen.append(fused.fusable(few)))
        other.start()
        other.join()
    assert seen == [False]  # a thread beside the capture launches one by one
    assert not fused.fusable(few) and fused.fusable(many)
    assert not folding_pays(few) and folding_pays(many) and folding_pays(torch.zeros(1))


@pytest.mark.parametrize("with_beside", [False, True])
def test_gradients(library, with_beside):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 3, 6, 5), (4, 3, 3, 3), (4,), *([(2, 4, 3, 3)] if with_beside else [])]
    given = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]

    def run(x, weight, bias, beside=None):
        return fused.conv_relu(x, weight, bias, 2, 1, beside)

    assert torch.autograd.gradcheck(run, given)
    assert library["add" if with_beside else "relu"] > 0


def test_gradients_that_nobody_wants_are_left_out(library):
    x, weight, bias = torch.randn(1, 2, 4, 4), torch.randn(3, 2, 1, 1, requires_grad=True), torch.zeros(3)
    fused.conv_relu(x, weight, bias, beside=torch.randn(1, 3, 4, 4)).sum().backward()
    assert weight.grad is not None and x.grad is None and bias.grad is None


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("as_library", [False, True])
def test_a_block_with_frozen_statistics_is_torchvisions(request, stride, as_library):
    calls = request.getfixturevalue("library") if as_library else {"relu": 2, "add": 1}
    torch.manual_seed(0)
    shortcut = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 1, stride, bias=False), torch.nn.BatchNorm2d(16))
    theirs = Bottleneck(8, 4, stride, shortcut).double().eval()
    for norm in theirs.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            for value in (norm.running_mean, norm.weight.data, norm.bias.data):
                value.normal_()
            norm.running_var.uniform_(0.5, 2.0)
    ours = FoldingBottleneck(8, 4, stride, shortcut).double().eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    y, expected = ours(x), theirs(x)
    torch.testing.assert_close(y, expected)
    found, wanted = (
        torch.autograd.grad(out.square().sum(), list(b.parameters())) for out, b in ((y, ours), (expected, theirs))
    )
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b)
    assert calls == {"relu": 2, "add": 1}


def test_live_statistics_go_torchvisions_way(library):
    block = FoldingBottleneck(16, 4).train()
    before = block.bn1.running_mean.clone()
    block(torch.randn(2, 16, 4, 4))
    assert library == {"relu": 0, "add": 0} and not torch.equal(block.bn1.running_mean, before)


def test_googlenet_says_the_same_and_learns_the_same(library, monkeypatch):
    network = GoogLeNetBVLC().double()
    x = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    y = network(x)
    found = torch.autograd.grad(y.square().sum(), list(network.parameters()))
    assert library["relu"] == 57
    monkeypatch.undo()
    expected = network(x)
    torch.testing.assert_close(y, expected)
    for a, b in zip(found, torch.autograd.grad(expected.square().sum(), list(network.parameters()))):
        torch.testing.assert_close(a, b)


def test_an_exported_convolution_takes_any_number_of_images() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return fused.conv_relu(x, torch.ones(2, 3, 3, 3), torch.zeros(2), padding=1)

    shapes = {"x": {0: torch.export.Dim("batch")}}
    program = torch.export.export(Layer(), (torch.randn(2, 3, 4, 4),), dynamic_shapes=shapes)
    assert program.module()(torch.randn(5, 3, 4, 4)).shape == (5, 2, 4, 4)
