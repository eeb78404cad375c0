"""Images keep their aspect from the file to the model's answers, or are squashed where that was asked for."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from nngk.data import FlatPictures, centre_crop, fitted, read_images, squares
from nngk.errors import InputError
from nngk.files import write_record
from nngk.model.evaluate import evaluate_model
from nngk.model.model import Model
from nngk.training import feed
from nngk.training.loop import train
from nngk.training.outset import same_settings
from nngk.training.step_batches import seeded, step_batches
from runs import make_run, settings
from shapes import picture


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Three shapes in pictures of several aspects."""
    home, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for kind in ("disc", "frame", "cross"):
        (home / kind).mkdir()
        for number in range(10):
            beside = np.full((16, 4 * (number % 4), 3), 110, dtype=np.uint8)
            pixels = np.concatenate([beside, picture(kind, rng), beside], axis=1)
            pixels = pixels.transpose(1, 0, 2) if number % 2 else pixels
            Image.fromarray(pixels).save(home / kind / f"{number}.png")
    return read_images(home)


def by_hand(model, paths):
    """Embeddings one image at a time, from the definition of both ways to read an image."""
    spec = model.network.input
    plain = centre_crop(spec.size, spec.mean, spec.std)
    with torch.no_grad():
        images = [fitted(path, spec.resize, squash=spec.squash) for path in paths]
        return torch.cat([model.network(plain(image[None])) for image in images])


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("squash", [False, True])
def test_training_embedding_and_evaluation_read_images_alike(photos, tmp_path, squash, freeze):
    model = train(photos, settings(squash=squash, freeze=freeze), out=tmp_path / "m")
    assert model.network.input.squash == squash
    again = Model.load(tmp_path / "m")
    expected = by_hand(again, again.sources)
    torch.testing.assert_close(again.embed(again.sources), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(again.centres, expected, rtol=1e-4, atol=1e-5)
    other = Model.load(tmp_path / "m")
    other.network.input = feed.replace(other.network.input, squash=not squash)
    assert not torch.allclose(other.embed(again.sources), expected, atol=1e-2)  # it does matter
    assert evaluate_model(again, photos)["images"] == len(photos)


def test_models_from_before_squash(photos, tmp_path):
    train(photos, settings(squash=True), out=tmp_path / "m")
    now = Model.load(tmp_path / "m").embed(photos.paths)
    record = json.loads((tmp_path / "m" / "model.json").read_text())
    del record["network"]["input"]["squash"]
    write_record(tmp_path / "m" / "model.json", record)
    old = Model.load(tmp_path / "m")
    assert old.network.input.squash and torch.equal(old.embed(photos.paths), now)
    # The pixels that such a model was given before: squares, of which the middle was cut out.
    spec = old.network.input
    cut = (spec.resize - spec.size) // 2
    pixels = squares(photos.paths, spec.resize)[..., cut : cut + spec.size, cut : cut + spec.size].float() / 255
    pixels = (pixels - torch.tensor(spec.mean)[:, None, None]) / torch.tensor(spec.std)[:, None, None]
    with torch.no_grad():
        torch.testing.assert_close(old.network(pixels), now, rtol=1e-5, atol=1e-6)


def test_a_run_from_before_goes_on_squashing(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.json").write_text("{}")
    before = settings(squash=True)
    values = {name: value for name, value in before.to_dict().items() if name != "squash"}
    (tmp_path / "run" / "settings.json").write_text(json.dumps(values))
    assert same_settings(tmp_path / "run", settings(), []) == before


def test_neither_caches_nor_features_are_mistaken(photos, tmp_path):
    cache, rows = tmp_path / "cache", []
    for number, (squash, folders) in enumerate([(False, 3), (False, 3), (True, 6)]):  # three parts of each
        run = make_run(photos, tmp_path / f"run-{number}", squash=squash, freeze=True, cache=str(cache))
        rows.append(run.feed.train.source.rows)
        assert len(list(cache.glob("cache-*/"))) == len(list(cache.glob("features-*"))) == folders
    assert torch.equal(rows[0], rows[1]) and not torch.allclose(rows[0], rows[2], atol=1e-3)


def test_batches_in_one_memory_are_those_of_the_files(photos, tmp_path):
    run = make_run(photos, tmp_path / "run")
    there = feed.Resident(run.feed.train.source, "cpu")
    assert isinstance(there.batch([0]), FlatPictures)
    for transform in (run.feed.plain, run.feed.augment):
        a, b = (
            transform(source.batch(torch.tensor([3, 0, 5])), torch.Generator().manual_seed(1))
            for source in (run.feed.train.source, there)
        )
        assert torch.equal(a, b)


def test_training_crops_are_cut_from_larger_images(photos, tmp_path):
    plain, sharp = (make_run(photos, tmp_path / f"run-{side}", detail=side) for side in (None, 64))
    assert plain.feed.detailed is None
    rows = sharp.index_batches(0)[0]
    images, labels, indices = next(step_batches(sharp, [rows]))
    larger = [fitted(sharp.split.train.paths[row], 64) for row in rows.tolist()]
    with_luck = seeded(sharp.feed.augment, sharp.settings.seed, sharp.at.step)
    assert torch.equal(images, with_luck(FlatPictures.of(larger), None))
    assert torch.equal(labels, sharp.feed.train.labels[rows]) and torch.equal(indices, rows)
    # Centres are what is read.
    assert torch.equal(sharp.embed(sharp.feed.train), plain.embed(plain.feed.train))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"detail": 4}, "must be more than"), ({"crop": "random"}, "resized crops"), ({"freeze": True}, "frozen network")],
)
def test_larger_images_that_would_not_help_are_refused(changes, words, photos, tmp_path):
    with pytest.raises(InputError, match=words):
        make_run(photos, tmp_path / "run", **{"detail": 64, **changes})
