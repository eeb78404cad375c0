"""A convolution that takes the BatchNorm and the activation behind it along, on a CPU."""

import copy
import gc

import pytest
import torch
from torch import nn

from nngk.networks import create_network
from nngk.networks.backbones import lite0
from nngk.networks.fused import folding
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
@pytest.mark.parametrize(("count", "size"), [(2, 64), (5, 64), (1, 75), (3, 75)])
def test_one_pass_gives_the_same_map(network, count, size, monkeypatch):
    x = torch.randn(count, 3, size, size)
    with torch.inference_mode():
        assert one_pass(x)
        found = network(x)
        monkeypatch.setattr(lite0, "one_pass", lambda x: False)
        plain = network(x)
    torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-4)


@needs_onednn
def test_one_pass_gives_the_same_embeddings(monkeypatch):
    """With trained weights, at the size of their input; random ones make more of what is rounded."""
    network = create_network(dim=16).eval().requires_grad_(False)
    x = torch.randn(3, 3, network.input.size, network.input.size)
    with torch.inference_mode():
        found = network(x)
        monkeypatch.setattr(lite0, "one_pass", lambda x: False)
        torch.testing.assert_close(found, network(x), rtol=0, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("change", ["weight", "running_var", "load", "assign", "data"])
def test_changed_weights_are_folded_anew(network, change):
    """A convolution's folded weight is kept, but not beyond a change of what it was made of."""
    conv, norm = lite0._conv(3, 4), lite0._norm_relu6(4).eval()
    for module in (conv, norm):
        module.requires_grad_(False)
    x = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        before = lite0._normed(conv, norm, x)
        if change == "weight":
            conv.weight.mul_(2)
        elif change == "running_var":
            norm.running_var.mul_(4)
        elif change == "load":
            conv.load_state_dict({"weight": 2 * conv.weight})
        elif change == "assign":
            conv.load_state_dict({"weight": 2 * conv.weight}, assign=True)
        else:
            conv.weight.data = 2 * conv.weight
        found = lite0._normed(conv, norm, x)
        torch.testing.assert_close(found, norm(conv(x)), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, before)


@needs_onednn
def test_weights_in_training_are_never_kept():
    """Some ways to train change a weight without a trace, such as one that gathers it from other processes."""
    conv, norm = lite0._conv(3, 4), lite0._norm_relu6(4).eval()
    x = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        lite0._normed(conv, norm, x)
        conv.weight.numpy()[:] *= 2
        torch.testing.assert_close(lite0._normed(conv, norm, x), norm(conv(x)), rtol=1e-4, atol=1e-5)


@needs_onednn
def test_kept_weights_are_shared_by_replicas_and_go_with_the_network():
    conv, norm = (module.requires_grad_(False) for module in (lite0._conv(3, 4), lite0._norm_relu6(4).eval()))
    tensors = (conv.weight, norm.weight, norm.bias, norm.running_mean, norm.running_var)
    again = copy.deepcopy(nn.ModuleList([conv, norm]), {id(tensor): tensor for tensor in tensors})
    kept, x = len(folding._PACKED), torch.rand(1, 3, 8, 8)
    with torch.inference_mode():
        weight = folding.packed(conv, norm, x)[0]
        assert folding.packed(again[0], again[1], x)[0] is weight
        assert folding.packed(conv, norm, torch.rand(1, 3, 16, 16))[0] is not weight
    assert len(folding._PACKED) == kept + 1
    del conv, again, tensors
    gc.collect()
    assert len(folding._PACKED) == kept


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
