"""EmbeddingNetwork: settings, modes, parameters."""

import copy
import json

import pytest
import torch
from torch import nn

from nngk.errors import InputError
from nngk.networks import EmbeddingNetwork, InputSpec, create_network, list_networks


@pytest.mark.parametrize("name", ["small", "googlenet-bvlc", "googlenet", "alexnet", "resnet50-v1"])
@pytest.mark.thorough
def test_config_round_trip_gives_the_same_network(name: str) -> None:
    torch.manual_seed(0)
    network = create_network(name, dim=12, weights="random", dropout=0.25, layer_norm=True, normalise=False).eval()
    network.input = InputSpec(48, 56, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    again = EmbeddingNetwork.from_config(json.loads(json.dumps(network.config))).eval()
    assert again.config == network.config
    assert again.input == InputSpec(48, 56, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    again.load_state_dict(network.state_dict())
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(again(x), network(x))


@pytest.mark.parametrize("pool", ["avg", "max", "avg+max", "gem"])
def test_config_round_trip_keeps_every_pool(pool: str) -> None:
    network = create_network("small", pool=pool)
    assert network.config["pool"] == pool
    assert set(EmbeddingNetwork.from_config(network.config).state_dict()) == set(network.state_dict())


def test_forward_is_backbone_pool_project() -> None:
    network = create_network("small", dim=5, pool="avg+max", layer_norm=True).eval()
    x = torch.rand(2, 3, 32, 32)
    features = network.backbone(x)
    assert features.ndim == 4
    assert network.head.pool(features).shape == (2, 128)
    assert torch.equal(network(x), network.head.project(network.head.pool(features)))
    assert network.dim == 5


@pytest.mark.parametrize(
    ("name", "layers", "last"),
    [
        ("googlenet-bvlc", 3, ("inception4e", "inception5a", "inception5b")),
        ("googlenet", 2, ("inception5a", "inception5b")),
        ("resnet50", 2, ("layer3", "layer4")),
        ("efficientnet-lite0", 4, ("blocks.4", "blocks.5", "blocks.6", "")),
    ],
)
@pytest.mark.thorough
def test_layers_are_pooled_side_by_side_each_at_one_scale(name: str, layers: int, last: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    network = create_network(name, dim=6, weights="random", pool="max", layers=layers).eval()
    x = torch.randn(2, 3, 64, 64)
    seen: list[torch.Tensor] = []
    for end in last:
        part = network.backbone.get_submodule(end)
        part.register_forward_hook(lambda module, given, out: seen.append(out[-1] if isinstance(out, tuple) else out))
    pooled = network.head.pool(network.backbone(x))
    parts = pooled.split([len(rows[0]) for rows in seen], 1)
    for part, rows in zip(parts, seen, strict=True):
        expected = rows.amax((2, 3)).double()
        spread = expected.var(1, keepdim=True, correction=0) + 1e-5
        expected = (expected - expected.mean(1, keepdim=True)) / spread.sqrt()
        assert torch.allclose(part.double(), expected, atol=1e-3)
    again = EmbeddingNetwork.from_config(network.config).eval()
    again.load_state_dict(network.state_dict())
    assert torch.equal(again(x), network(x))
    with torch.no_grad():  # a copy has maps of its own
        other = copy.deepcopy(network)
        for parameter in network.backbone.parameters():
            parameter.zero_()
        assert torch.equal(other(x), again(x))


def test_as_many_layers_as_serve_best_where_nobody_says() -> None:
    assert create_network("efficientnet-lite0", weights="random", layers=None).config["layers"] == 4
    assert create_network("small", layers=None).config["layers"] == 1


def test_layers_that_a_network_does_not_give_are_refused() -> None:
    with pytest.raises(InputError, match="only its last one"):
        create_network("small", layers=2)
    with pytest.raises(InputError, match="up to 3"):
        create_network("googlenet-bvlc", weights="random", layers=4)


def test_parameters_are_the_heads_and_the_backbones() -> None:
    network = create_network("small", dim=5, pool="gem")
    head, backbone = network.embedding_parameters(), network.backbone_parameters()
    assert {id(p) for p in head + backbone} == {id(p) for p in network.parameters()}
    assert len(head) == 3  # the exponent, the weight, the bias
    assert create_network("small", dim=None).embedding_parameters() == []


def test_dropout_is_active_in_train_mode_only() -> None:
    for name, dropout in (("small", 0.5), ("alexnet", 0.5)):
        torch.manual_seed(0)
        network = create_network(name, weights="random", dropout=dropout)
        x = torch.randn(2, 3, 64, 64)
        network.train()
        assert not torch.equal(network(x), network(x))
        network.eval()
        assert torch.equal(network(x), network(x))


@pytest.mark.thorough
def test_dropout_none_is_the_papers() -> None:
    assert create_network("alexnet", weights="random", dropout=None).config["dropout"] == 0.5
    assert create_network("resnet50", weights="random", dropout=None).head.dropout.p == 0.5
    assert create_network("small", dropout=None).config["dropout"] == 0.0
    assert create_network("resnet50", weights="random").config["dropout"] == 0.0


@pytest.mark.thorough
def test_freeze_batchnorm_survives_train() -> None:
    network = create_network("resnet50", weights="random")
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 53
    assert all(m.training for m in norms)
    network.freeze_batchnorm()
    assert network.training
    assert not any(m.training for m in norms)
    network.eval()
    network.train()
    assert network.training
    assert network.backbone.training
    assert not any(m.training for m in norms)
    state = {key: value.clone() for key, value in network.state_dict().items() if "running" in key}
    network(torch.randn(2, 3, 64, 64))
    assert all(torch.equal(network.state_dict()[key], value) for key, value in state.items())
    twin = copy.deepcopy(network).train()
    assert not any(m.training for m in twin.modules() if isinstance(m, nn.BatchNorm2d))


def test_timm_batchnorm_is_frozen_too() -> None:
    pytest.importorskip("timm")
    network = create_network(weights="random")
    network.freeze_batchnorm()
    network.train()
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert not any(m.training for m in norms)


@pytest.mark.parametrize("name", ["googlenet-bvlc", "small", "resnet50"])
@pytest.mark.thorough
def test_channels_last_and_autocast_give_float32_embeddings(name: str) -> None:
    torch.manual_seed(0)
    network = create_network(name, dim=8, weights="random", layer_norm=True).eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        plain = network(x)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = network(x.contiguous(memory_format=torch.channels_last))
    assert half.dtype == torch.float32
    assert torch.allclose(half, plain, atol=0.1)


def test_bad_settings_are_refused_before_the_backbone_is_built() -> None:
    with pytest.raises(InputError, match="pool has to be one of"):
        create_network("vgg16", weights="random", pool="median")


def test_vector_networks_take_no_pooling() -> None:
    with pytest.warns(UserWarning, match="pool='gem' has no effect"):
        network = create_network("alexnet", dim=None, weights="random", pool="gem")
    assert network.config["pool"] is None
    assert network.embedding_parameters() == []


@pytest.mark.thorough
def test_list_networks() -> None:
    rows = {row["name"]: row for row in list_networks()}
    # torchvision's published sizes, less the classifiers' 1000-way layers
    assert rows["resnet50"]["parameters"] == 25_557_032 - 2_049_000
    assert rows["alexnet"]["parameters"] == 61_100_840 - 4_097_000
    assert rows["vgg16"]["parameters"] == 138_357_544 - 4_097_000
    assert rows["googlenet"]["parameters"] == 6_624_904 - 1_025_000
    assert {name: rows[name]["dim"] for name in ("googlenet-bvlc", "googlenet", "alexnet", "resnet50-v1")} == {
        "googlenet-bvlc": 1024,
        "googlenet": 1024,
        "alexnet": 4096,
        "resnet50-v1": 2048,
    }
    assert rows["small"]["input_size"] == 32
    assert "FC7" in rows["vgg16"]["layer"]
    assert "torchvision" in rows["vgg16"]["weights"]
    assert "timm/NAME" in rows
    json.dumps(list(rows.values()))
    list_networks()[0]["name"] = "changed"
    assert list_networks()[0]["name"] == "efficientnet-lite0"
