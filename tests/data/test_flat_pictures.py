"""Pictures of different sizes in one tensor."""

import numpy as np
import pytest
import torch

from nngk.data import FlatPictures
from resampling import noise

SHAPES = ((4, 6), (5, 3), (2, 2))


@pytest.fixture
def apart():
    return [torch.from_numpy(noise(h, w, seed)) for seed, (h, w) in enumerate(SHAPES)]


def test_each_picture_is_what_was_put_in(apart):
    together = FlatPictures.of(apart)
    assert len(together) == 3 and [tuple(p.shape[1:]) for p in together] == list(SHAPES)
    assert all(torch.equal(together[i], each) for i, each in enumerate(apart))
    assert together.heights.tolist() == [4, 5, 2] and together.widths.tolist() == [6, 3, 2]
    stack = torch.randint(0, 256, (4, 3, 5, 7), dtype=torch.uint8)
    assert all(torch.equal(FlatPictures.of(stack)[i], stack[i]) for i in range(4))
    assert len(FlatPictures.of([])) == 0 and len(FlatPictures.of(stack[:0])) == 0


@pytest.mark.parametrize("order", [[2, 0], torch.tensor([1, 1, 2]), np.array([0])])
def test_a_choice_shares_its_pixels_until_it_travels(apart, order):
    together = FlatPictures.of(apart)
    chosen = together.select(order)
    assert chosen.pixels is together.pixels
    own = chosen.compact()
    assert len(own.pixels) == sum(apart[int(i)].numel() for i in order)
    for i, which in enumerate(order):
        assert torch.equal(chosen[i], apart[int(which)]) and torch.equal(own[i], apart[int(which)])


def test_what_is_compact_is_not_copied(apart):
    together = FlatPictures.of(apart)
    assert together.compact() is together and together.to("cpu") is together


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_journey_to_the_gpu(apart):
    chosen = FlatPictures.of(apart).select([2, 0])
    for there in (chosen.to("cuda"), chosen.pin_memory().to("cuda", non_blocking=True)):
        assert there.is_cuda and not there.places.is_cuda and len(there.pixels) == 3 * (4 + 24)
        assert torch.equal(there[0].cpu(), apart[2]) and torch.equal(there[1].cpu(), apart[0])
