"""The start of an embedding layer that keeps distances."""

import pytest
import torch
from torch import nn

from nngk.networks.embedding_layer.projection import start_projection


@pytest.mark.parametrize("outputs", [16, 24])
def test_with_enough_outputs_distances_stay(outputs):
    layer, x = nn.Linear(16, outputs).double(), torch.randn(10, 16, dtype=torch.float64)
    start_projection(layer)
    torch.testing.assert_close(torch.cdist(layer(x), layer(x)), torch.cdist(x, x))


def test_with_fewer_they_stay_on_average():
    torch.manual_seed(0)
    layer, x = nn.Linear(512, 64), torch.randn(200, 512)
    start_projection(layer)
    ratio = (torch.pdist(layer(x)) / torch.pdist(x)).detach()
    assert ratio.mean() == pytest.approx(1, abs=0.01) and ratio.std() < 0.15
    assert torch.equal(layer.bias, torch.zeros(64))


def test_it_follows_from_the_random_weights():
    torch.manual_seed(0)
    first, other = nn.Linear(8, 4), nn.Linear(8, 4)
    same = nn.Linear(8, 4)
    same.load_state_dict(first.state_dict())
    for layer in (first, other, same):
        start_projection(layer)
    assert torch.equal(first.weight, same.weight) and not torch.allclose(first.weight, other.weight)
