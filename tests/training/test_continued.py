"""Going on from a saved model: its network, classes and photos, and what is held out of them."""

import pytest
import torch

from nngk.cli.train import train_command
from nngk.data import read_images
from nngk.errors import InputError
from nngk.model.model import Model
from nngk.training.continued import photos_with_those_of_model, settings_of_model
from nngk.training.loop import train
from runs import make_run, settings
from shapes import TINY, flags, write_shapes

PARTS = {"val_fraction": 0.25, "test_fraction": 0.25}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model of two shapes that was shown a third, and a folder with more photos of one and a fourth."""
    home = tmp_path_factory.mktemp("continued")
    write_shapes(home / "first", ("disc", "frame"), count=8)
    write_shapes(home / "shown", ("cross",), count=4, seed=1)
    write_shapes(home / "more", ("disc", "stripes"), count=8, seed=2)
    model = train(home / "first", settings(dim=6, hold_out=False, epochs=1), out=home / "model")
    model.add("cross", sorted((home / "shown" / "cross").iterdir()))
    model.save(home / "model")
    return home


def test_the_network_starts_as_the_models(home, tmp_path):
    model = Model.load(home / "model", "cpu")
    chosen = settings_of_model(home / "model", settings(dim=8), named=["epochs"])
    assert (chosen.dim, chosen.crop_size, chosen.resize) == (6, TINY["crop_size"], TINY["resize"])
    table = photos_with_those_of_model(home / "model", read_images(home / "more"), chosen)
    run = make_run(table, tmp_path / "run", **{**chosen.to_dict(), "freeze": True})
    run.begin()
    for name, tensor in run.network.state_dict().items():
        assert torch.equal(tensor, model.network.state_dict()[name]), name
    with pytest.raises(InputError, match="has dim 6: go on with that, or train a new one without --from"):
        settings_of_model(home / "model", settings(dim=8), named=["dim"])


@pytest.mark.parametrize("task", ["classify", "metric"])
def test_photos_are_merged_by_class_name_and_the_models_are_never_held_out(home, task):
    model = Model.load(home / "model", "cpu")
    chosen = settings(task=task, **PARTS)
    table = photos_with_those_of_model(home / "model", read_images(home / "more"), chosen)
    assert table.class_names == ["disc", "frame", "cross", "stripes"] and len(table) == 16 + 4 + 16
    counts = dict(zip(table.class_names, table.counts().tolist()))
    assert counts == {"disc": 16, "frame": 8, "cross": 4, "stripes": 8}
    known = set(model.sources)
    held = [path for path, part in zip(table.paths, table.splits) if part != "train"]
    assert not known & set(map(str, held))
    if task == "classify":
        assert sorted(path.parent.name for path in held) == ["disc"] * 4 + ["stripes"] * 4
    else:
        assert {path.parent.name for path in held} <= {"stripes"}
    # The same folder once more brings nothing new.
    again = photos_with_those_of_model(home / "model", read_images(home / "first"), chosen)
    assert len(again) == 20 and set(again.splits) == {"train"}


def test_photos_that_are_gone_are_named(home, tmp_path):
    model = Model.load(home / "model", "cpu")
    model.classes.sources[0] = str(tmp_path / "gone.png")
    model.save(tmp_path / "model")
    with pytest.raises(InputError, match=r"1 of the 20 photos .*gone\.png'.*--allow-missing"):
        photos_with_those_of_model(tmp_path / "model", read_images(home / "more"), settings())
    table = photos_with_those_of_model(tmp_path / "model", read_images(home / "more"), settings(), allow_missing=True)
    assert len(table) == 35


@pytest.mark.thorough
def test_the_command_goes_on_with_all_classes_and_photos(home, tmp_path):
    from click.testing import CliRunner

    options = flags(**{k: v for k, v in TINY.items() if k not in ("dim", "resize", "crop_size")} | PARTS)
    options = [option for option in options if option != "--hold-out"]
    line = [str(home / "more"), "--from", str(home / "model"), "--out", str(tmp_path / "m"), *options, "--quiet"]
    told = CliRunner().invoke(train_command, line)
    assert told.exit_code == 0, told.output
    model = Model.load(tmp_path / "m", "cpu")
    assert model.class_names == ["disc", "frame", "cross", "stripes"] and len(model.centres) == 36
    assert model.network.dim == 6 and model.info["measured"]["test"] == 4
