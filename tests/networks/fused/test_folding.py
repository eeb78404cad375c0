"""A convolution that takes the BatchNorm and the activation behind it along, on a CPU."""

import pytest
import torch
from torch import nn

from nngk.networks.backbones import lite0
from nngk.networks.fused.folding import one_pass

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch lacks oneDNN")


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    network = lite0.EfficientNetLite0().eval().requires_grad_(False).to(memory_format=torch.channels_last)
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.1)
            norm.running_var.uniform_(0.5, 1.5)
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_(0, 0.1)
    return network


@needs_onednn
@pytest.mark.parametrize("size", [64, 75])
def test_one_pass_gives_the_same_map(network, size, monkeypatch):
    x = torch.randn(2, 3, size, size)
    with torch.inference_mode():
        assert one_pass(x)
        found = network(x)
        monkeypatch.setattr(lite0, "one_pass", lambda x: False)
        plain = network(x)
    torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-4)


def test_gradients_other_types_and_programs_go_the_plain_way(network):
    x = torch.randn(1, 3, 64, 64)
    assert not one_pass(x)
    with torch.no_grad():
        assert not one_pass(x.double()) and not one_pass(x.bfloat16()) and not one_pass(x.to("meta"))
        with torch.autocast("cpu", torch.bfloat16):
            assert not one_pass(x)


def test_training_mode_uses_the_batch(network):
    """A BatchNorm that goes by its batch cannot be taken into a convolution."""
    conv, norm = lite0._conv(3, 4), lite0._norm_relu6(4).train()
    x = torch.randn(8, 3, 5, 5)
    with torch.no_grad():
        found = lite0._normed(conv, norm, x)
        whole = nn.functional.batch_norm(conv(x), None, None, norm.weight, norm.bias, True, 0.1, norm.eps)
    torch.testing.assert_close(found, nn.functional.relu6(whole))
