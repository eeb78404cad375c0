"""Several ranks fill a gallery with what one process would write, each row once, also after a kill."""

import pytest
import torch

from nngk.data import read_images
from nngk.gallery import open_gallery
from nngk.gallery.filling import fill_with_images
from nngk.gallery.references import joined
from nngk.model import Model
from serving import write_colours, write_model
from shards import samples_of, write_tar
from together import together
from together_work import filled, left_alone


def rows_of(folder, model):
    with open_gallery(str(folder), model) as gallery:
        held = joined(gallery.view().parts())
    order = held.ids.argsort()
    return held.select(order)


@pytest.mark.thorough
def test_two_ranks_fill_a_gallery_and_a_killed_one_costs_nothing(tmp_path):
    place = write_model(tmp_path)
    colours = write_colours(tmp_path / "more", ("yellow", "violet", "red"), 5)
    photos = write_tar(tmp_path / "photos.tar", samples_of(colours))  # each rank reads its part of the shard
    model = Model.load(place)
    with open_gallery(str(tmp_path / "alone"), model, write=True) as gallery:
        assert fill_with_images(gallery, model, read_images(photos)) == (15, 0)
    expected = rows_of(tmp_path / "alone", model)

    # Rounds of four, of which the second is never finished.
    (said,) = together(2, left_alone, place, photos, tmp_path / "ranks", 1, lost=1)
    assert "another rank has ended" in said
    assert len(rows_of(tmp_path / "ranks", model)) == 4

    # The last round has three: one rank embeds two, the other one.
    assert together(2, filled, place, photos, tmp_path / "ranks") == [(11, 4)] * 2
    found = rows_of(tmp_path / "ranks", model)
    assert found.ids.tolist() == expected.ids.tolist() and found.sources == expected.sources
    assert found.labels == expected.labels and torch.equal(found.theta, expected.theta)
    torch.testing.assert_close(found.vectors, expected.vectors, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.coordinates, expected.coordinates, rtol=0, atol=1e-4)
