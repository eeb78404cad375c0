"""When a network is shared out over the ranks; that it learns alike is shown in test_together.py and its neighbour."""

import pytest
import torch
from torch import nn

from nngk.errors import InputError
from nngk.ranks import ALONE, Ranks
from nngk.training import sharded_network
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


@pytest.mark.parametrize(("device", "background"), [(CPU, True), (GPU, False)])
def test_what_cannot_be_shared_out_is_said(device, background, monkeypatch):
    monkeypatch.setattr(sharded_network, "memory_share", lambda device: 1)
    settings, two = Settings(freeze=False, background=background), Two(0, 2, via_cpu=True)
    assert not shards_network(settings, nn.Linear(3, 3), device, two)  # of itself it does not try
    asked = Settings(freeze=False, background=background, shard_network=True)
    with pytest.raises(InputError, match="--shard-network"):
        shards_network(asked, nn.Linear(3, 3), device, two)


def test_a_network_of_one_process_is_whole():
    network, rows = nn.Linear(3, 3), torch.ones(3)
    assert not is_sharded(network) and local(rows) is rows and held_like(rows, torch.zeros(3)) is rows
    with whole(network, write=True), torch.no_grad():
        network.bias.fill_(7)
    assert network.bias.tolist() == [7, 7, 7]
