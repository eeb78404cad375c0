"""The default network as packed kernels on a CPU, and each kernel against plain loops."""

import copy
import gc
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from nngk.networks import create_network
from nngk.networks.backbones import lite0
from nngk.networks.fused import chain
from nngk.networks.fused import packed as packing
from nngk.networks.fused.folding import frozen
from nngk.networks.fused.packed import Block, packable, packed

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch lacks oneDNN")


def lively(module):
    """Give BatchNorms statistics and scales of their own: those of a new network change nothing."""
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.1)
            norm.running_var.uniform_(0.5, 1.5)
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_(0, 0.1)
    return module


def assert_near(found, expected):
    """Random weights make much of what is rounded: fifty layers of them up to 3e-5 of the largest value."""
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 2e-4 * expected.abs().max()


def new_network():
    torch.manual_seed(0)
    network = lite0.EfficientNetLite0().eval().requires_grad_(False).to(memory_format=torch.channels_last)
    return lively(network)


@pytest.fixture(scope="module")
def network():
    return new_network()


@pytest.fixture
def plain(monkeypatch):
    """A function that computes layer by layer, as PyTorch does by itself."""

    def run(network, x):
        with monkeypatch.context() as here:
            here.setattr(lite0, "packable", lambda x: False)
            return network(x)

    return run


@pytest.fixture(params=["onednn", "plain", "avx2", "avx512"])
def kernels(request, monkeypatch):
    """oneDNN's kernels, or those of the core of one instruction set."""
    monkeypatch.setattr(packing, "_PACKED", type(packing._PACKED)())
    if request.param == "onednn":
        monkeypatch.setenv("NNGK_NO_NATIVE", "1")
        if not torch.backends.mkldnn.is_available():
            pytest.skip("PyTorch lacks oneDNN")
    elif chain._core is None or not chain._core.has_kernels(request.param):
        pytest.skip(f"the core does not run with {request.param}")
    else:
        monkeypatch.setenv("NNGK_KERNELS", request.param)
        assert chain.core() == request.param


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("count", "size"), [(2, 64), (5, 64), (1, 75), (3, 75), (9, 33)])
def test_packed_kernels_give_the_same_maps(network, plain, count, size, threads):
    x, before = torch.randn(count, 3, size, size), torch.get_num_threads()
    torch.set_num_threads(threads)
    network.layers = 4
    try:
        with torch.inference_mode():
            assert packable(x)
            found, whole = network(x), plain(network, x)
    finally:
        network.layers = 1
        torch.set_num_threads(before)
    for ours, theirs in zip(found, whole, strict=True):
        assert_near(ours, theirs)


@pytest.mark.usefixtures("kernels")
def test_sides_may_differ(network, plain):
    x = torch.randn(2, 3, 75, 64)
    with torch.inference_mode():
        assert_near(network(x), plain(network, x))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("tuned", [False, True])
def test_packed_kernels_give_the_same_embeddings(plain, tuned):
    """With trained weights, at the size of their input; random ones make more of what is rounded."""
    network = create_network(dim=16).eval().requires_grad_(False)
    if tuned:
        with torch.no_grad():
            for weight in network.parameters():
                weight.add_(0.02 * weight.std(correction=0) * torch.randn_like(weight))
    x = torch.randn(3, 3, network.input.size, network.input.size)
    with torch.inference_mode():
        torch.testing.assert_close(network(x), plain(network, x), rtol=0, atol=1e-5)


def by_loops(layer, x, height, width):
    """Return what a layer makes of a map (B, H, W, C), in float64 and by its definition."""
    conv, norm = layer.conv, layer.norm
    left, right, top, bottom = layer.margins(height, width)
    around = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    weight = conv.weight.double().numpy()
    out, inner, tall, wide = weight.shape
    down, across = conv.stride
    rows, columns = (around.shape[1] - tall) // down + 1, (around.shape[2] - wide) // across + 1
    y = np.zeros((len(x), rows, columns, out))
    for image, row, column, channel in itertools.product(range(len(x)), range(rows), range(columns), range(out)):
        first = channel * conv.groups // out * inner
        for i, j, c in itertools.product(range(tall), range(wide), range(inner)):
            pixel = around[image, row * down + i, column * across + j, first + c]
            y[image, row, column, channel] += pixel * weight[channel, c, i, j]
    mean, var, scale, shift = (
        t.double().numpy() for t in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    y = (y - mean) / np.sqrt(var + norm.eps) * scale + shift
    return np.clip(y, 0, 6) if layer.relu6 else y


@needs_onednn
@pytest.mark.parametrize(("height", "width"), [(8, 8), (7, 9), (8, 5)])
@pytest.mark.parametrize(("kernel", "stride", "groups"), [(1, 1, 1), (3, 1, 6), (3, 2, 6), (5, 2, 6), (3, 2, 1)])
def test_a_kernel_is_its_definition(height, width, kernel, stride, groups):
    torch.manual_seed(1)
    pair = nn.ModuleList([lite0._conv(6, 6, kernel, stride, groups), lite0._norm_relu6(6)])
    conv, norm = lively(pair.requires_grad_(False).eval())
    layer, x = lite0._layer(conv, norm), 3 * torch.randn(2, height, width, 6)
    with torch.inference_mode():
        run, rows, columns = packing._kernel(layer, height, width)
        found = run(x)
    assert found.shape == (2, rows, columns, 6)
    np.testing.assert_allclose(found.numpy(), by_loops(layer, x.double().numpy(), height, width), atol=1e-5)


def layer_of(kernel, margins, **how):
    """Return a layer that the network itself does not have."""
    pair = nn.ModuleList([nn.Conv2d(6, 6, kernel, bias=False, **how), nn.BatchNorm2d(6)])
    conv, norm = lively(pair.requires_grad_(False).eval())
    return packing.Layer(conv, norm, lambda height, width: margins, relu6=False)


@needs_onednn
@pytest.mark.parametrize(
    ("kernel", "margins", "how"),
    [
        (1, (0, 0, 0, 0), {"groups": 3}),
        (1, (1, 1, 2, 2), {}),
        (1, (0, 0, 0, 0), {"stride": 2}),
        (3, (2, 2, 2, 2), {"dilation": 2}),
        (3, (2, 4, 2, 2), {"dilation": 2, "stride": 2}),
        (3, (1, 2, 3, 3), {"dilation": (3, 1), "groups": 6}),
    ],
)
def test_a_kernel_of_any_layer_is_what_pytorch_makes_of_it(kernel, margins, how):
    torch.manual_seed(3)
    layer, x = layer_of(kernel, margins, **how), torch.randn(2, 9, 8, 6)
    with torch.inference_mode():
        run, rows, columns = packing._kernel(layer, 9, 8)
        found, around = run(x), nn.functional.pad(x.permute(0, 3, 1, 2), margins)
        expected = layer.norm(layer.conv(around)).permute(0, 2, 3, 1)
        assert found.shape == (2, rows, columns, 6)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(run(x, found), 2 * expected, rtol=0, atol=2e-5)


def test_layers_that_would_be_computed_wrongly_are_refused():
    for layer in (
        layer_of(3, (1, 2, 1, 1), dilation=2),
        layer_of(3, (1, 1, 1, 1), padding=1, padding_mode="reflect"),
        layer_of(1, (0, 0, 0, 0))._replace(conv=nn.Conv2d(6, 6, 1)),
    ):
        with pytest.raises(AssertionError), torch.inference_mode():
            packing._kernel(layer, 8, 8)
    with pytest.raises(AssertionError), torch.inference_mode():
        packing._kernels([Block((layer_of(1, (0, 0, 0, 0))._replace(relu6=True),), adds=True)], 8, 8)


@needs_onednn
def test_a_block_adds_its_input_and_leaves_it_as_it_was():
    torch.manual_seed(2)
    block = lively(lite0.InvertedBlock(4, 3, 1, 6, 4).eval().requires_grad_(False))
    x = torch.randn(2, 6, 5, 4)
    given, y = x.clone(), x.double().numpy()
    with torch.inference_mode():
        found = packed([block.block()], 6, 5).through(range(1), x)
    for layer in block.block().layers:
        y = by_loops(layer, y, 6, 5)
    np.testing.assert_allclose(found.numpy(), y + given.double().numpy(), atol=1e-5)
    assert torch.equal(x, given)


@needs_onednn
@pytest.mark.parametrize(
    "change", ["weight", "first weight", "running_var", "load", "assign", "data", "module", "block", "size"]
)
def test_changed_weights_are_packed_anew(plain, change):
    """Packed weights are kept, but not beyond a change of what they were made of."""
    network, x = new_network(), torch.rand(2, 3, 40, 40)
    conv, norm = network.blocks[2][1].conv_dw, network.blocks[2][1].bn2
    with torch.no_grad():
        before = network(x)
        if change == "weight":
            conv.weight.mul_(2)
        elif change == "first weight":
            network.conv_stem.weight.mul_(2)
        elif change == "running_var":
            norm.running_var.mul_(4)
        elif change == "load":
            conv.load_state_dict({"weight": 2 * conv.weight})
        elif change == "assign":
            conv.load_state_dict({"weight": 2 * conv.weight}, assign=True)
        elif change == "data":
            conv.weight.data = 2 * conv.weight
        elif change == "module":
            network.blocks[2][1].conv_dw = copy.deepcopy(conv)
            network.blocks[2][1].conv_dw.weight.mul_(2)
        elif change == "block":
            network.blocks[5][2] = lively(lite0.InvertedBlock(192, 5, 1, 6, 192).eval().requires_grad_(False))
        else:
            x = torch.rand(2, 3, 39, 41)
        found = network(x)
        assert_near(found, plain(network, x))
    assert not torch.allclose(found, before)


@needs_onednn
def test_weights_in_training_are_never_kept(plain):
    """Some ways to train change a weight without a trace, such as one that gathers it from other processes."""
    network, x = new_network().requires_grad_(True), torch.rand(2, 3, 40, 40)
    with torch.no_grad():
        before = network(x)
        network.conv_head.weight.numpy()[:] *= 2
        found = network(x)
        assert_near(found, plain(network, x))
    assert not torch.allclose(found, before)


@needs_onednn
def test_kept_weights_are_shared_by_replicas_and_go_with_the_network():
    network, kept = new_network(), len(packing._PACKED)
    shared = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    again = copy.deepcopy(network, shared)
    blocks = [[block.block() for block in each.blocks[1]] for each in (network, again)]
    with torch.inference_mode():
        whole = packed(blocks[0], 16, 16)
        assert packed(blocks[1], 16, 16) is whole
        assert packed(blocks[0], 16, 16) is whole
        assert packed(blocks[0], 8, 16) is not whole
    assert len(packing._PACKED) == kept + 1
    del network, again, blocks, shared, whole
    gc.collect()
    assert len(packing._PACKED) == kept


def test_a_network_is_walked_through_once(monkeypatch):
    """What Python does before every pass would take a good part of one of few images."""
    network, x, walks = new_network(), torch.rand(1, 3, 40, 40), []
    blocks = lite0.EfficientNetLite0._blocks
    monkeypatch.setattr(lite0.EfficientNetLite0, "_blocks", lambda self: walks.append(1) or blocks(self))
    with torch.inference_mode():
        found = [network(x) for _ in range(3)]
        assert len(walks) == 1
        network.requires_grad_(True)  # its weights may change without a sign of it
        found += [network(x) for _ in range(2)]
    assert len(walks) == 3
    for each in found[1:]:
        assert torch.equal(each, found[0])


def test_gradients_other_types_programs_and_no_images_go_the_plain_way(network, monkeypatch):
    x = torch.randn(1, 3, 64, 64)
    assert not packable(x)
    with torch.no_grad():
        assert not packable(x.double()) and not packable(x.bfloat16()) and not packable(x.to("meta"))
        assert network(x[:0]).shape == (0, lite0.WIDEST, 2, 2)
        with torch.autocast("cpu", torch.bfloat16):
            assert not packable(x)
        assert packable(x) == (chain.core() is not None or packing._onednn())
        monkeypatch.setattr(torch.jit, "is_tracing", lambda: True)  # a trace would keep a result for all times
        assert not packable(x)


def test_training_mode_uses_the_batch(plain):
    """A BatchNorm that goes by its batch cannot be taken into a convolution."""
    network, x = new_network(), torch.randn(8, 3, 40, 40)
    with torch.no_grad():
        stored = network(x)
        network.blocks[3][0].bn1.train()
        assert not frozen(network.blocks[3][0].bn1)
        found = network(x)
    assert not torch.allclose(found, stored, rtol=1e-2, atol=1e-2)


def test_statistics_that_were_trained_meanwhile_count(plain):
    network, x = new_network(), torch.randn(8, 3, 40, 40)
    with torch.no_grad():
        before = network(x)
        network.train()(3 * x)
        after = network.eval()(x)
    assert not torch.allclose(after, before, rtol=1e-2, atol=1e-2)


def test_a_block_is_its_layers_in_order():
    block = lite0.InvertedBlock(4, 3, 1, 6, 4)
    layers, adds = block.block()
    assert [layer.conv for layer in layers] == [block.conv_pw, block.conv_dw, block.conv_pwl] and adds
    assert [layer.relu6 for layer in layers] == [True, True, False]
    assert isinstance(lite0.SeparableBlock(4, 3, 8).block(), Block)
