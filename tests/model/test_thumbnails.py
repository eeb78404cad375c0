"""Small pictures that travel with a model: bounded, in the order of the centres, whole or refused."""

import io
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nngk.data import load_image
from nngk.errors import InputError
from nngk.model import pictures, storage, thumbnails
from nngk.model.model import Model
from nngk.model.thumbnails import ALL, MOST, SIDE, as_tensors, from_tensors, thumbnail, thumbnails_of
from nngk.training.loop import train
from nngk.training.settings import Settings
from shapes import TINY, write_shapes


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("thumbnails")
    write_shapes(home / "shapes")
    write_shapes(home / "more", ("stripes",), count=4)
    for name, changes in (("model", {"hold_out": False}), ("without", {"thumbnails": False})):
        train(home / "shapes", Settings(**{**TINY, "epochs": 1, **changes}), out=home / name)
    return home


def shows(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=float).mean((0, 1))


def agrees(model):
    """Every thumbnail shows the file that its centre came from."""
    kept = model.classes.thumbnails
    assert len(kept) == len(model.sources)
    for data, source in zip(kept, model.sources):
        assert np.abs(shows(data) - np.asarray(Image.open(source), dtype=float).mean((0, 1))).max() < 8, source


@given(st.lists(st.binary(max_size=9), max_size=6))
def test_there_and_back(parts):
    assert from_tensors(as_tensors(parts), len(parts)) == parts


def test_each_is_bounded():
    noise = np.random.default_rng(0).integers(0, 256, (400, 900, 3), dtype=np.uint8)
    data = thumbnail(noise)
    assert 0 < len(data) <= MOST and max(Image.open(io.BytesIO(data)).size) == SIDE
    assert thumbnail(noise, 10) == b""


def test_too_many_have_none():
    assert thumbnails_of([], ALL) is None


@pytest.mark.parametrize("ends", [[3, 2], [1], [2, 99], [-1, 2]])
def test_crafted_ends_are_refused(ends):
    tensors = {"bytes": torch.zeros(4, dtype=torch.uint8), "ends": torch.tensor(ends)}
    with pytest.raises(InputError, match="thumbnails"):
        from_tensors(tensors, 2)


@pytest.mark.thorough
def test_they_follow_their_centres(home, tmp_path):
    model = Model.load(home / "model")
    assert len(model.sources) == 36
    agrees(model)
    model.add("stripes", sorted((home / "more" / "stripes").iterdir()))
    model.remove("disc")
    model.rename("frame", "box")
    model.merge("box", "cross")
    model.save(tmp_path / "m")
    again = Model.load(tmp_path / "m")
    agrees(again)
    assert again.thumbnail(again.sources[-1]) == again.classes.thumbnails[-1] and again.thumbnail("no such") == b""
    again.save(tmp_path / "m")
    assert len(list((tmp_path / "m").glob("thumbnails-*"))) == 1


@pytest.mark.thorough
def test_a_model_without_them_works_as_before(home, tmp_path):
    folder = shutil.copytree(home / "without", tmp_path / "m")
    assert not list(folder.glob("thumbnails-*"))
    with Model.changing(folder) as model:
        model.add("stripes", sorted((home / "more" / "stripes").iterdir()))
    assert Model.load(folder).classes.thumbnails is None


def test_a_damaged_file_is_refused(home, tmp_path):
    folder = shutil.copytree(home / "model", tmp_path / "m")
    (file,) = folder.glob("thumbnails-*")
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    with pytest.raises(InputError, match="checksum"):
        storage.read(folder)


def test_a_picture_that_is_added_is_decoded_once(home, monkeypatch):
    model = Model.load(home / "model")
    opened = []
    whole = pictures.fitted
    monkeypatch.setattr(
        pictures, "fitted", lambda source, *rest, **how: opened.append(source) or whole(source, *rest, **how)
    )
    monkeypatch.setattr(thumbnails, "load_image", lambda source: opened.append(source) or load_image(source))
    shown = sorted((home / "more" / "stripes").iterdir())
    model.add("stripes", shown)
    assert [source for source in opened if not isinstance(source, torch.Tensor)] == shown
    assert all(model.thumbnail(str(path)) for path in shown)
