"""Weights on their way back to where training started."""

import copy

import pytest
import torch

from nngk.training import loop
from nngk.training.blend import blend_with_start, started
from nngk.training.finish import finish
from runs import make_run


def weights_of(network):
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


@pytest.mark.parametrize("start", ["random", "projection", "discriminant"])
def test_the_start_is_made_anew(start, data, tmp_path):
    run = make_run(data, tmp_path / "run", embedding_start=start)
    run.begin()
    expected, luck = weights_of(run.network), torch.get_rng_state()
    loop.train_epoch(run, lambda: False, 0.0)
    luck = torch.get_rng_state()
    found = started(run).state_dict()
    assert torch.equal(torch.get_rng_state(), luck)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)


def test_a_model_has_the_weights_part_of_the_way_back(data, tmp_path):
    run = make_run(data, tmp_path / "run", blend=0.25)
    run.begin()
    before = weights_of(run.network)
    loop.train_epoch(run, lambda: False, 0.0)
    after = weights_of(run.network)
    model = finish(run, 0.0)
    moved = 0
    for name, tensor in model.network.state_dict().items():
        torch.testing.assert_close(tensor, before[name] + 0.75 * (after[name] - before[name]), rtol=1e-5, atol=1e-6)
        moved += not torch.equal(before[name], after[name])
    assert moved
    torch.testing.assert_close(model.embed(run.split.train.paths), model.centres, rtol=1e-4, atol=1e-5)


def test_without_a_share_nothing_moves(data, tmp_path):
    run = make_run(data, tmp_path / "run")
    before = copy.deepcopy(run.network.state_dict())
    blend_with_start(run)
    assert all(torch.equal(before[name], tensor) for name, tensor in run.network.state_dict().items())
