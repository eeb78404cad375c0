"""Embedding many images: evaluation mode, order, batches, errors."""

import pytest
import torch
from torch import nn

from nngk.data import Augmentation, Images, centre_crop, read_images
from nngk.networks import create_network
from nngk.networks.embed import Rows, embed, untransformed
from shapes import write_shapes


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return read_images(write_shapes(tmp_path_factory.mktemp("shapes"), count=5))


def test_equals_one_image_at_a_time(table):
    network = create_network("small", dim=8, weights="random", dropout=0.5, layer_norm=True)
    plain = centre_crop(16, network.input.mean, network.input.std)
    images = Images(table, 18)
    seen = []
    x = embed(network, images, plain, batch_size=4, advance=seen.append)
    assert x.shape == (15, 8) and x.dtype == torch.float32 and sum(seen) == 15
    assert network.training and not x.is_inference() and not x.requires_grad
    network.eval()
    with torch.no_grad():
        one_by_one = torch.cat([network(plain(images.batch([i]))) for i in range(15)])
    torch.testing.assert_close(x, one_by_one, rtol=1e-4, atol=1e-5)
    assert torch.equal(embed(network, images, plain, batch_size=4), x)
    assert not network.training


def test_evaluation_transform_has_no_randomness(table):
    plain = centre_crop(16, (0.5,) * 3, (0.5,) * 3)
    batch = Images(table, 18).batch(range(15))
    torch.manual_seed(1)
    first = plain(batch)
    torch.manual_seed(2)
    assert torch.equal(first, plain(batch))
    moved = Augmentation(size=16, mean=(0.5,) * 3, std=(0.5,) * 3)(batch, torch.Generator().manual_seed(0))
    assert not torch.equal(first, moved)


def test_rows_are_cached_features():
    rows = Rows(torch.randn(10, 3))
    linear = nn.Linear(3, 2)
    with torch.no_grad():
        torch.testing.assert_close(embed(linear, rows, untransformed, batch_size=3), linear(rows.rows))
    assert len(rows) == 10


def test_mode_is_put_back_after_a_failure():
    class Broken:
        def __len__(self):
            return 4

        def batch(self, indices):
            raise OSError("unreadable")

    network = nn.Linear(3, 2).train()
    with pytest.raises(OSError, match="unreadable"):
        embed(network, Broken(), untransformed)
    assert network.training


def test_embeddings_can_take_part_in_training():
    x = embed(nn.Linear(3, 2), Rows(torch.randn(4, 3)), untransformed)
    weight = torch.ones(2, requires_grad=True)
    (x * weight).sum().backward()
    assert weight.grad is not None


def test_nothing_to_embed():
    assert len(embed(nn.Linear(3, 2), Rows(torch.empty(0, 3)), untransformed)) == 0
