"""GoogLeNet's fused passes against PyTorch's in float64, on the CPU through Triton's interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from interpreter import interpreted
from nngk.networks.backbones.googlenet import ConvReLU, GoogLeNetBVLC, LocalResponseNorm, MaxPool, in_blocks


def map_of(*shape, dtype=torch.float32, scale=1.0, seed=0):
    x = scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


@interpreted
@pytest.mark.parametrize("channels", [1, 3, 64, 70])
@pytest.mark.parametrize("dtype,close", [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_normalisation_and_its_gradient(channels, dtype, close):
    x = map_of(2, channels, 4, 5, dtype=dtype, scale=20.0).requires_grad_()
    direction = map_of(2, channels, 4, 5, dtype=dtype, seed=1)
    y = LocalResponseNorm(5, alpha=1e-2, beta=0.75, k=1.0)(x)
    y.backward(direction)
    exact = x.detach().double().requires_grad_()
    expected = F.local_response_norm(exact, 5, 1e-2, 0.75, 1.0)
    expected.backward(direction.double())
    for got, wanted in ((y, expected), (x.grad, exact.grad)):
        assert got.dtype == dtype
        assert (got.double() - wanted).norm() <= close * wanted.norm()


@interpreted
def test_normalisation_written_out():
    x = map_of(1, 7, 1, 1)
    y = LocalResponseNorm(3, alpha=0.5, beta=0.6, k=2.0)(x).flatten().tolist()
    v = x.double().flatten().tolist()
    for c in range(7):
        around = sum(v[j] ** 2 for j in range(max(0, c - 1), min(7, c + 2)))
        assert y[c] == pytest.approx(v[c] / (2.0 + 0.5 / 3 * around) ** 0.6, rel=1e-5)


@interpreted
@settings(max_examples=25, deadline=None)
@given(
    side=st.integers(2, 4), stride=st.integers(1, 3), padding=st.integers(0, 1), ceil_mode=st.booleans(),
    height=st.integers(4, 9), width=st.integers(4, 9), channels=st.sampled_from([1, 20, 130]),
)  # fmt: skip
def test_pooling(side, stride, padding, ceil_mode, height, width, channels):
    x = map_of(2, channels, height, width)
    with torch.no_grad():
        y = MaxPool(side, stride, padding, ceil_mode=ceil_mode)(x)
    assert torch.equal(y, F.max_pool2d(x, side, stride, padding, ceil_mode=ceil_mode))


@interpreted
def test_pooling_keeps_its_gradient():
    x = map_of(1, 4, 5, 5).requires_grad_()
    MaxPool(3, 2)(x).sum().backward()
    assert x.grad is not None and x.grad.sum() == 16


@interpreted
def test_the_network_says_the_same():
    network = GoogLeNetBVLC().eval()
    x = map_of(1, 3, 32, 32)
    with torch.no_grad():
        got = network(x)
        expected = network.double()(x.double())  # float64 goes the ordinary way
    assert (got - expected).norm() <= 1e-5 * expected.norm()


@settings(max_examples=20, deadline=None)
@given(st.integers(4, 9), st.integers(4, 9), st.integers(0, 99))
def test_the_first_convolution_in_blocks(height, width, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, 2 * height, 2 * width, generator=generator, dtype=torch.float64)
    first = ConvReLU(3, 5, 7, stride=2, padding=3).double().conv
    expected = F.conv2d(x, first.weight, stride=2, padding=3)
    torch.testing.assert_close(F.conv2d(*in_blocks(x, first.weight)), expected)
