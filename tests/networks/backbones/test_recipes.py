"""The networks themselves: names, shapes and values against torchvision and plain formulas."""

import math

import pytest
import torch
import torchvision
from torch import Tensor, nn

import forked
from nngk.errors import InputError
from nngk.networks import create_network
from nngk.networks.backbones.googlenet import GoogLeNetBVLC
from nngk.networks.backbones.recipes import RECIPES, recipe
from nngk.networks.network import build_network

# our name, torchvision's, the names of its tensors that the embedding leaves out
TORCHVISION = [
    ("resnet50", "resnet50", ("fc.",)),
    ("resnet50-v1", "resnet50", ("fc.",)),
    ("googlenet", "googlenet", ("fc.", "aux1.", "aux2.")),
    ("alexnet", "alexnet", ("classifier.6.",)),
    ("vgg16", "vgg16", ("classifier.6.",)),
]

PLAIN = {"dim": None, "pool": "avg", "layers": 1, "layer_norm": False}  # the backbone's own features


@pytest.mark.parametrize(("name", "theirs", "left_out"), TORCHVISION)
def test_parameter_names_and_shapes_are_torchvisions(name: str, theirs: str, left_out: tuple[str, ...]) -> None:
    with torch.device("meta"):
        ours = {key: value.shape for key, value in recipe(name).build().module.state_dict().items()}
        options = {"init_weights": False} if theirs == "googlenet" else {}
        other = torchvision.models.get_model(theirs, weights=None, **options).state_dict()
    assert ours == {key: value.shape for key, value in other.items() if not key.startswith(left_out)}


@pytest.mark.parametrize(("name", "fc7"), [("alexnet", 4), ("vgg16", 3)])
@pytest.mark.thorough
def test_fc7_equals_a_hand_built_pipeline(name: str, fc7: int) -> None:
    torch.manual_seed(0)
    network = create_network(name, weights="random", normalise=False, **PLAIN).double().eval()
    with torch.device("meta"):
        other = torchvision.models.get_model(name, weights=None)
    state = dict(network.backbone.state_dict())
    state["classifier.6.weight"], state["classifier.6.bias"] = torch.zeros(1000, 4096), torch.zeros(1000)
    other.load_state_dict(state, assign=True)  # the same tensors: VGG16 twice in float64 is two gigabytes
    other.eval()
    x = torch.randn(2, 3, 70, 70, dtype=torch.float64)
    with torch.no_grad():
        y = torch.flatten(other.avgpool(other.features(x)), 1)
        for layer in other.classifier[: fc7 + 1]:
            y = layer(y)
        ours = network(x)
    assert isinstance(other.classifier[fc7], nn.Linear)
    assert ours.shape == (2, 4096)
    assert (ours < 0).any(), "the ReLU after FC7 is left out"
    assert torch.allclose(ours, y, atol=1e-12, rtol=1e-10)


@pytest.mark.thorough
def test_resnet50_and_googlenet_features_equal_torchvisions_pooled_ones() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    for name in ("resnet50", "googlenet"):
        network = create_network(name, weights="random", normalise=False, **PLAIN).double().eval()
        options = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
        other = torchvision.models.get_model(name, weights=None, **options)
        other.load_state_dict(network.backbone.state_dict(), strict=False)
        other.fc = nn.Identity()
        with torch.no_grad():
            assert torch.allclose(network(x), other.double().eval()(x), atol=1e-12)


@pytest.mark.thorough
def test_resnet50_v1_strides_in_the_first_convolution_of_a_stage() -> None:
    with torch.device("meta"):
        v1, torchvisions = (recipe(name).build().module for name in ("resnet50-v1", "resnet50"))
    for stage in ("layer2", "layer3", "layer4"):
        for network, first, second in ((v1, (2, 2), (1, 1)), (torchvisions, (1, 1), (2, 2))):
            assert network.get_submodule(f"{stage}.0.conv1").stride == first
            assert network.get_submodule(f"{stage}.0.conv2").stride == second
    x = torch.zeros(1, 3, 224, 224, device="meta")
    assert v1(x).shape == torchvisions(x).shape == (1, 2048, 7, 7)


def caffe_lrn(x: Tensor) -> Tensor:
    """Caffe's formula: x / (1 + alpha / n * sum of squares over n channels) ^ beta."""
    out = torch.empty_like(x)
    channels = x.shape[1]
    for c in range(channels):
        near = range(max(0, c - 2), min(channels, c + 3))
        squares = sum(x[:, j] ** 2 for j in near)
        out[:, c] = x[:, c] / (1 + 1e-4 / 5 * squares) ** 0.75
    return out


def caffe_pool(x: Tensor) -> Tensor:
    """3x3, stride 2; the number of outputs is rounded up and windows are clipped to the map."""
    height, width = x.shape[2:]
    rows, columns = math.ceil((height - 3) / 2) + 1, math.ceil((width - 3) / 2) + 1
    out = torch.empty(*x.shape[:2], rows, columns, dtype=x.dtype)
    for i in range(rows):
        for j in range(columns):
            out[:, :, i, j] = x[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].amax((2, 3))
    return out


def test_googlenet_bvlc_equals_caffes_layers() -> None:
    torch.manual_seed(0)
    network = GoogLeNetBVLC().double()
    x = 100 * torch.randn(1, 3, 52, 60, dtype=torch.float64)  # large, so that the normalisation matters
    with torch.no_grad():
        y = caffe_lrn(caffe_pool(network.conv1(x)))
        y = caffe_pool(caffe_lrn(network.conv3(network.conv2(y))))
        for block in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
            inception = network.get_submodule(f"inception{block}")
            branches = [inception.get_submodule(f"branch{i}")(y) for i in (1, 2, 3, 4)]
            y = torch.cat(branches, 1)
            if block in ("3b", "4e"):
                y = caffe_pool(y)
        assert torch.allclose(network(x), y, rtol=1e-10)
    with torch.device("meta"):
        assert GoogLeNetBVLC()(torch.zeros(1, 3, 224, 224)).shape == (1, 1024, 7, 7)


TRAINABLE = [
    ("small", 8),
    ("small", 32),
    ("efficientnet-lite0", 64),
    ("googlenet-bvlc", 64),
    ("googlenet", 64),
    ("alexnet", 64),
    ("vgg16", 64),
    ("resnet50", 64),
    ("resnet50-v1", 64),
    ("timm/mobilenetv3_small_050", 64),
]


@pytest.mark.parametrize(("name", "size"), TRAINABLE)
@pytest.mark.thorough
def test_a_training_step_reaches_every_layer(name: str, size: int) -> None:
    if name.startswith(("timm/", "efficientnet")):
        pytest.importorskip("timm")
    torch.manual_seed(0)
    network = create_network(name, dim=8, weights="random", pool="gem" if name == "small" else "avg", layer_norm=True)
    target = torch.nn.functional.normalize(torch.randn(4, 8), dim=1)
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-3)
    before = {key: value.clone() for key, value in network.head.state_dict().items()}
    network.train()
    for batch in (slice(0, 2), slice(2, 4)):  # an epoch of two batches
        embeddings = network(torch.randn(4, 3, size, size)[batch])
        assert embeddings.shape == (2, 8)
        assert torch.allclose(embeddings.norm(dim=1), torch.ones(2), atol=1e-5)
        optimiser.zero_grad()
        (embeddings - target[batch]).square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
        first = network.backbone_parameters()[0].grad
        assert first is not None
        assert first.abs().sum() > 0
        optimiser.step()
    assert any(not torch.equal(before[key], value) for key, value in network.head.state_dict().items())


@pytest.mark.parametrize("size", [8, 16, 32, 64])
def test_small_takes_tiny_images(size: int) -> None:
    network = create_network("small", dim=16)
    assert network(torch.rand(2, 3, size, size)).shape == (2, 16)
    assert 100_000 < sum(p.numel() for p in network.parameters()) < 500_000


@pytest.mark.parametrize(
    ("name", "pool"),
    [
        ("timm/resnet18", "max"),  # a map
        ("timm/swin_tiny_patch4_window7_224", "max"),  # a map with its channels last
        ("timm/vit_tiny_patch16_224", None),  # tokens, pooled by the network itself
    ],
)
@pytest.mark.thorough
def test_timm_networks_of_each_kind(name: str, pool: str | None) -> None:
    timm = pytest.importorskip("timm")
    if pool is None:
        with pytest.warns(UserWarning, match="gives a vector"):
            network = build_network(name, pool="max")
    else:
        network = build_network(name, pool="max")
    assert network.config["pool"] == pool
    plain = timm.create_model(name.removeprefix("timm/"), num_classes=0)
    assert network.dim == plain.num_features
    x = torch.randn(1, 3, 224, 224)
    plain.load_state_dict(network.backbone.state_dict())
    features = network.eval().backbone(x)
    pooled = features if pool is None else features.mean((2, 3))
    assert torch.allclose(pooled, plain.eval()(x), atol=1e-5)


def test_unknown_networks_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match=r"no network 'resnet5'\. Did you mean 'resnet50'"):
        create_network("resnet5")
    with pytest.raises(InputError, match="There is no network 'timm/'"):
        create_network("timm/")
    pytest.importorskip("timm")
    with pytest.raises(InputError, match="timm knows no network 'resnet18x'"):
        create_network("timm/resnet18x")


@pytest.mark.thorough
def test_without_timm_the_other_networks_work() -> None:
    code = """
import sys
sys.modules["timm"] = None
from nngk.networks import create_network, list_networks
from nngk.errors import InputError
create_network("resnet50-v1", weights="random")
create_network("efficientnet-lite0", weights="random")
rows = {row["name"]: row for row in list_networks()}
assert rows["vgg16"]["available"] and rows["efficientnet-lite0"]["available"] and not rows["timm/NAME"]["available"]
try:
    create_network("timm/resnet18")
except InputError as error:
    assert "pip install timm" in str(error), error
else:
    raise AssertionError("timm/resnet18")
"""
    done = forked.run(["-c", code])
    assert done.returncode == 0, done.stderr


def test_recipes_name_a_layer_and_an_origin() -> None:
    assert set(RECIPES) == {
        *("efficientnet-lite0", "small", "googlenet-bvlc", "googlenet", "alexnet", "vgg16", "resnet50", "resnet50-v1")
    }
    for known in RECIPES.values():
        assert known.layer
        assert known.origin


@pytest.mark.thorough
def test_frozen_batchnorm_is_taken_into_the_convolutions():
    from torchvision.models import resnet50

    from nngk.networks.backbones.torchvision import ResNet50

    torch.manual_seed(0)
    ours, theirs = ResNet50().double(), resnet50().double()
    for module in ours.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
    theirs.load_state_dict({**theirs.state_dict(), **ours.state_dict()})
    theirs.avgpool = theirs.fc = torch.nn.Identity()
    x = torch.randn(2, 3, 48, 48, dtype=torch.float64)
    for training in (True, False):  # live statistics first: they change the stored ones, in both alike
        ours.train(training)
        theirs.train(training)
        torch.testing.assert_close(ours(x).flatten(1), theirs(x), rtol=1e-9, atol=1e-9)
    ours(x).square().mean().backward()
    theirs(x).square().mean().backward()
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=1e-9, msg=name)
