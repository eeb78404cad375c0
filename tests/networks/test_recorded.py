"""Recordings of a network's passes: for which batches they are made, kept and forgotten. A GPU makes real ones."""

import copy

import pytest
import torch
from torch import nn

from nngk.networks import create_network
from nngk.networks.recorded import MOST_SHAPES, Recordings, always_recorded, answers


class Made:
    """Counts the recordings that are made, and the replays."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.shapes, self.replays = fails, [], 0

    def __call__(self, network, images, pool):
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.shapes.append(len(images))

        def replay(again):
            assert again.shape == images.shape
            self.replays += 1
            return network(again)

        return replay


@pytest.fixture
def network():
    return nn.Linear(3, 2).requires_grad_(False).eval()


def test_a_shape_that_comes_again_is_recorded(network):
    made = Made()
    recordings = Recordings(record=made)
    for x in [torch.randn(n, 3) for n in (4, 5, 4, 4, 5)]:
        torch.testing.assert_close(recordings(network, x), network(x))
    assert made.shapes == [4, 5] and made.replays == 3


def test_large_batches_and_other_modes_are_their_own(network):
    made = Made()
    recordings = Recordings(most_pixels=4, sightings=1, record=made)
    recordings(network, torch.randn(5, 3))
    assert made.shapes == []
    recordings(network, torch.randn(4, 3))
    with torch.inference_mode():
        recordings(network, torch.randn(4, 3))
    recordings(network, torch.randn(4, 3).requires_grad_(False))
    assert made.shapes == [4, 4] and made.replays == 3


def test_weights_that_moved_are_recorded_anew(network):
    made = Made()
    recordings = Recordings(sightings=1, record=made)
    recordings(network, torch.randn(4, 3))
    network.weight.mul_(2)  # in place: a replay reads them
    recordings(network, torch.randn(4, 3))
    assert made.shapes == [4]
    network.double().float()
    recordings(network, torch.randn(4, 3))
    assert made.shapes == [4, 4]


def test_the_shapes_used_last_are_kept(network):
    made = Made()
    recordings = Recordings(sightings=1, record=made)
    for n in range(1, MOST_SHAPES + 1):
        recordings(network, torch.randn(n, 3))
    recordings(network, torch.randn(1, 3))
    recordings(network, torch.randn(20, 3))  # in the place of the shape that was used longest ago, of two
    recordings(network, torch.randn(1, 3))
    assert len(made.shapes) == MOST_SHAPES + 1
    recordings(network, torch.randn(2, 3))
    assert len(made.shapes) == MOST_SHAPES + 2


def test_a_network_that_cannot_be_recorded_answers_all_the_same(network):
    recordings = Recordings(sightings=1, record=Made(fails=True))
    x = torch.randn(4, 3)
    for _ in range(2):
        torch.testing.assert_close(recordings(network, x), network(x))
    assert not recordings.possible


def test_without_a_gpu_the_network_answers(network):
    x = torch.randn(4, 3)
    assert torch.equal(answers(always_recorded(network), x), network(x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("amp", [False, True])
def test_replays_are_the_passes(amp):
    network = create_network("small", dim=8, weights="random").cuda().eval().requires_grad_(False)
    plain = copy.deepcopy(network)
    for n in (3, 5, 3, 5, 3, 5, 3):
        x = torch.randn(n, 3, 32, 32, device="cuda")
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, enabled=amp):
            torch.testing.assert_close(answers(network, x), plain(x), rtol=1e-2, atol=1e-2)
