"""When a network or a bank is shared out over the ranks; that it learns alike is shown in test_together.py."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from nngk.errors import InputError
from nngk.networks import create_network
from nngk.ranks import ALONE, Ranks
from nngk.training import build, sharded_network
from nngk.training.distributed import synced
from nngk.training.settings import Settings
from nngk.training.sharded_network import held_like, is_sharded, local, shards_network, whole

CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Two(Ranks):
    """One of two ranks that always agree."""

    def any(self, flag):
        return flag


@pytest.mark.parametrize("memory", [16 * 12, 16 * 12 * 4])
def test_it_is_shared_out_where_copies_take_more_than_half_of_the_memory(memory, monkeypatch):
    monkeypatch.setattr(sharded_network, "memory_share", lambda device: memory)
    network, two = nn.Linear(3, 3), Two(0, 2, via_cpu=True)  # twelve parameters, of sixteen bytes each
    assert shards_network(Settings(freeze=False), network, CPU, two) == (memory < 2 * 16 * 12)
    assert shards_network(Settings(freeze=False, shard_network=True), network, CPU, two)
    for changes in ({"shard_network": False}, {"freeze": True, "shard_network": True}):
        assert not shards_network(Settings(**{"freeze": False} | changes), network, CPU, two)
    assert not shards_network(Settings(freeze=False, shard_network=True), network, CPU, ALONE)


def test_what_cannot_be_shared_out_is_said(monkeypatch):
    monkeypatch.setattr(sharded_network, "memory_share", lambda device: 1)
    settings, two = Settings(freeze=False, background=True), Two(0, 2, via_cpu=True)
    assert not shards_network(settings, nn.Linear(3, 3), CPU, two)  # of itself it does not try
    with pytest.raises(InputError, match="--background"):
        shards_network(replace(settings, shard_network=True), nn.Linear(3, 3), CPU, two)


def test_ranks_that_share_a_gpu_share_out_a_network_only_when_asked(monkeypatch):
    monkeypatch.setattr(sharded_network, "memory_share", lambda device: 1)
    settings, two = Settings(freeze=False), Two(0, 2, via_cpu=True)
    assert not shards_network(settings, nn.Linear(3, 3), GPU, two)
    assert shards_network(replace(settings, shard_network=True), nn.Linear(3, 3), GPU, two)
    assert shards_network(settings, nn.Linear(3, 3), GPU, Two(0, 2))  # of their own


def test_a_network_of_one_process_is_whole():
    network, rows = nn.Linear(3, 3), torch.ones(3)
    assert not is_sharded(network) and local(rows) is rows and held_like(rows, torch.zeros(3)) is rows
    with whole(network, write=True), torch.no_grad():
        network.bias.fill_(7)
    assert network.bias.tolist() == [7, 7, 7]


@pytest.mark.parametrize("few", [False, True])
def test_a_bank_is_shared_out_where_a_copy_takes_more_than_a_quarter_of_the_memory(few, monkeypatch):
    m, dim, settings, two = 1000, 8, Settings(n_neighbours=10, guaranteed=1), Two(0, 2, via_cpu=True)
    copy = m * (4 * dim + 8 * 11 + 12)  # a centre, a list, θ and its moments
    monkeypatch.setattr(build, "memory_share", lambda device: 4 * copy + (1 if few else -1))
    assert build.is_sharded(settings, m, dim, CPU, two) != few
    assert build.is_sharded(replace(settings, bank="sharded"), m, dim, CPU, two)
    for changes in ({"bank": "replicated"}, {"loss": "softmax"}, {"n_neighbours": 0}):
        assert not build.is_sharded(replace(settings, **changes), m, dim, CPU, two)
    assert not build.is_sharded(settings, m, dim, CPU, ALONE)


@pytest.mark.parametrize("name", ["efficientnet-lite0", "resnet50", "timm/efficientnet_lite0"])
@pytest.mark.thorough
def test_a_network_whose_statistics_are_of_all_ranks_is_the_same_network(name, monkeypatch):
    """What is joined to a BatchNorm, as the activation of the default network, stays there, and so do its numbers."""
    if name.startswith("timm/"):
        pytest.importorskip("timm")
    torch.manual_seed(0)
    network = create_network(name, dim=4, weights="random", layers=1)
    norms = [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.running_mean.normal_(0, 0.1)
        norm.running_var.uniform_(0.5, 2)
        nn.init.normal_(norm.weight, 1, 0.1)
    before, x = copy.deepcopy(network), torch.randn(3, 3, 64, 64)
    synced(network)
    kept = [module for module in network.modules() if isinstance(module, nn.SyncBatchNorm)]
    assert list(map(id, kept)) == list(map(id, norms)) and len(kept) > 40
    for training in (False, True):
        network.train(training), before.train(training)
        torch.manual_seed(1)
        maps = network.backbone(x)
        torch.manual_seed(1)
        assert torch.equal(maps, before.backbone(x))
    for evaluated in (network, copy.deepcopy(network)):
        with torch.no_grad():  # taken into the convolutions, where the network knows how
            assert torch.equal(evaluated.eval().backbone(x), before.eval().backbone(x))
    assert list(network.state_dict()) == list(before.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(network.state_dict().values(), before.state_dict().values()))
    # Every one asks the other ranks, which PyTorch refuses on a CPU.
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for norm in norms:
        with pytest.raises(ValueError, match="SyncBatchNorm expected"):
            norm.train()(torch.zeros(2, norm.num_features, 2, 2))
