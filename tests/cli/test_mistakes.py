"""Every wrong input ends in a sentence that says what to do, and never in a traceback."""

import json
import os
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import forked
from nngk import cli
from nngk.data import read_images
from nngk.files import read_tensors, write_tensors
from nngk.model.model import Model
from nngk.training.loop import train
from nngk.training.settings import Settings
from shapes import TINY, flags, nngk, write_shapes

OPTIONS = flags(**{**TINY, "epochs": 1})


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    write_shapes(home / "shapes")
    train(home / "shapes", Settings(**{**TINY, "epochs": 1}), out=home / "model")
    return home


@pytest.fixture
def image(home):
    return home / "shapes" / "disc" / "00.png"


@pytest.fixture
def refused(monkeypatch, capfd):
    """Run a command that must fail; returns its complaint."""

    def run(*arguments, code=1):
        monkeypatch.setattr(sys, "argv", ["nngk", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capfd.readouterr()
        assert left.value.code == code and "Traceback" not in err and out == ""
        last = err.strip().splitlines()[-1]
        assert last.startswith("Error: ") and last.endswith((".", ")", "?")), err
        return last

    return run


@pytest.mark.thorough
def test_in_a_real_process_too(home, tmp_path):
    for arguments, expected in (
        (["train", tmp_path / "nowhere", "--out", tmp_path / "m"], "There is no folder or file"),
        (["classify", tmp_path / "nomodel", home / "shapes"], "There is no model folder"),
    ):
        done = nngk(*arguments)
        assert done.returncode == 1 and "Traceback" not in done.stderr and done.stdout == ""
        assert done.stderr.startswith(f"Error: {expected}")


# -- the command itself


def test_unknown_command_and_option(refused, home):
    assert "No such command 'clasify'. Did you mean 'classify'?" in refused("clasify", code=2)
    complaint = refused("train", home / "shapes", "--epoch", 3, code=2)
    assert "No such option" in complaint and "--epochs" in complaint
    complaint = refused("search", home / "model", home / "shapes", "--jsn", code=2)
    assert "--json" in complaint


def test_wrong_values(refused, home, tmp_path):
    out = tmp_path / "m"
    assert "'ten' is not a valid integer" in refused("train", home / "shapes", "--epochs", "ten", code=2)
    assert "'epochs' must be at least 1" in refused("train", home / "shapes", "--epochs", 0)
    assert "'sigma' must be a number, 'auto', 'validation' or 'learned'" in refused(
        "train", home / "shapes", "--sigma", "broad"
    )
    assert "'seed' must be from 0 to below 2147483648" in refused("train", home / "shapes", "--seed", -1)
    assert "'dim' must be a whole number or 'none'; got 'big'" in refused("train", home / "shapes", "--dim", "big")
    assert "'sharp' is not one of 'best'" in refused("train", home / "shapes", "--preset", "sharp", code=2)
    assert "'50 steps'" in refused("train", home / "shapes", "--out", out, *OPTIONS, "--update-interval", "often")
    assert "toaster" in refused("train", home / "shapes", "--out", out, *OPTIONS, "--device", "toaster")
    assert "network" in refused("train", home / "shapes", "--out", out, "--network", "smal", "--device", "cpu")
    assert "loss" in refused("train", home / "shapes", "--out", out, *OPTIONS, "--loss", "nnkg")
    assert "not in the range" in refused("classify", home / "model", home, "--evidence", -1, code=2)


def test_settings_files(refused, home, tmp_path):
    path = tmp_path / "run.toml"
    assert "cannot be read" in refused("train", home / "shapes", "--config", path)
    path.write_text("n_neighbors = 3\n")
    complaint = refused("train", home / "shapes", "--config", path)
    assert f"Unknown setting 'n_neighbors' in {path}. Did you mean 'n_neighbours'?" in complaint
    path.write_text("margin = 2.0\n")
    complaint = refused("train", home / "shapes", "--config", path)
    assert f"margin = 2.0 in {path} is no longer supported" in complaint and "remove it" in complaint
    path.write_text('epochs = "3"\n')
    assert "'epochs' must be a whole number; got '3'" in refused("train", home / "shapes", "--config", path)


# -- data


def test_no_images(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no images" in refused("train", tmp_path / "empty", "--out", tmp_path / "m", *OPTIONS)
    (tmp_path / "hollow" / "cats").mkdir(parents=True)
    assert "no images" in refused("train", tmp_path / "hollow", "--out", tmp_path / "m", *OPTIONS)


def test_one_class(refused, tmp_path):
    write_shapes(tmp_path / "one", ("disc",), count=4)
    complaint = refused("train", tmp_path / "one", "--out", tmp_path / "m", *OPTIONS)
    assert "one class only ('disc')" in complaint and "add images of another class" in complaint


def test_a_class_with_one_image(refused, tmp_path):
    write_shapes(tmp_path / "few", count=5)
    write_shapes(tmp_path / "few", ("stripes",), count=1)
    complaint = refused("train", tmp_path / "few", "--out", tmp_path / "m", *OPTIONS)
    assert "'stripes'" in complaint and "Add images" in complaint


def test_small_classes_can_be_skipped(tmp_path, monkeypatch, capfd):
    """And six images a class, which leave one for the test, are enough for a model."""
    write_shapes(tmp_path / "few", count=6)
    write_shapes(tmp_path / "few", ("stripes",), count=1)
    arguments = ["train", tmp_path / "few", "--out", tmp_path / "m", *OPTIONS, "--skip-small-classes"]
    monkeypatch.setattr(sys, "argv", ["nngk", *map(str, arguments)])
    cli.main()
    model = Model.load(tmp_path / "m")
    assert model.class_names == ["cross", "disc", "frame"]
    assert "accuracy" in model.info["test"] and "recall@1" not in model.info["test"]


def test_a_csv_with_a_missing_file(refused, home, tmp_path):
    rows = [f"{p},{p.parent.name}" for p in sorted((home / "shapes").rglob("*.png"))]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows, "gone/for/good.png,disc"]))
    complaint = refused("train", tmp_path / "list.csv", "--out", tmp_path / "m", *OPTIONS)
    assert "good.png" in complaint


def test_a_truncated_image(refused, home, tmp_path):
    shutil.copytree(home / "shapes", tmp_path / "shapes")
    bad = tmp_path / "shapes" / "frame" / "03.png"
    bad.write_bytes(bad.read_bytes()[:200])
    complaint = refused("train", tmp_path / "shapes", "--out", tmp_path / "m", *OPTIONS)
    assert str(bad) in complaint and "Replace it or remove it" in complaint
    for name in ("classify", "search"):
        assert str(bad) in refused(name, home / "model", bad)
    assert str(bad) in refused("evaluate", home / "model", tmp_path / "shapes")
    assert str(bad) in refused("add", home / "model", "more", bad)


def test_images_that_are_not_there(refused, home, tmp_path):
    assert "There is no image" in refused("classify", home / "model", tmp_path / "none.png")
    (tmp_path / "empty").mkdir()
    assert "holds no images" in refused("search", home / "model", tmp_path / "empty")
    (tmp_path / "notes.txt").write_text("not a picture")
    assert "cannot be read" in refused("classify", home / "model", tmp_path / "notes.txt")


def test_labels_the_model_does_not_know(refused, home, tmp_path):
    write_shapes(tmp_path / "other", ("stripes", "disc"), count=3)
    complaint = refused("evaluate", home / "model", tmp_path / "other")
    assert "does not know 'stripes'" in complaint and "nngk add" in complaint and "--task metric" in complaint


def test_a_split_that_is_not_there(refused, home):
    assert "no images in the split 'test'" in refused("evaluate", home / "model", home / "shapes", "--split", "test")


# -- models


def test_k_larger_than_the_bank(refused, home, image):
    assert "k must be from 1 to 22" in refused("search", home / "model", image, "-k", 23)
    assert "k must be from 1 to 22" in refused("search", home / "model", image, "-k", 0)


def test_more_neighbours_than_images_is_no_mistake(home, tmp_path):
    options = {**TINY, "epochs": 1, "n_neighbours": 5000}
    model = train(home / "shapes", Settings(**options), out=tmp_path / "m")
    assert model.n_neighbours == 5000 and model.predict(model.centres).neighbours.shape[1] == len(model.centres)


def test_nan_embeddings(refused, home, image, tmp_path):
    """A model whose weights are no numbers: written whole, so that only its answers can tell."""
    model = Model.load(home / "model")
    with torch.no_grad():
        model.network.head.linear.weight.fill_(float("nan"))
    model.save(tmp_path / "nan")
    for arguments in (["classify", image], ["search", image], ["evaluate", home / "shapes"], ["add", "new", image]):
        complaint = refused(arguments[0], tmp_path / "nan", *arguments[1:])
        assert "NaN" in complaint


def test_diverging_training(refused, home, tmp_path):
    options = flags(**{**TINY, "lr": 1e30, "clip": 0, "normalise": False})
    complaint = refused("train", home / "shapes", "--out", tmp_path / "m", *options)
    assert "lr" in complaint or "learning rate" in complaint


@pytest.mark.parametrize("damage", ["no json", "bad json", "no bank", "cut network", "wrong bank"])
@pytest.mark.parametrize("name", ["classify", "info"])
def test_a_damaged_model_folder(refused, home, image, tmp_path, damage, name):
    folder = shutil.copytree(home / "model", tmp_path / "model")
    record, (bank,), (network,) = folder / "model.json", [*folder.glob("bank-*")], [*folder.glob("network-*")]
    if damage == "no json":
        record.unlink()
    elif damage == "bad json":
        record.write_text(record.read_text()[:100])
    elif damage == "no bank":
        bank.unlink()
    elif damage == "cut network":
        network.write_bytes(network.read_bytes()[:1000])
    else:  # a bank of another model, with a record that vouches for it
        tensors = read_tensors(bank)
        changed = json.loads(record.read_text())
        tensors["theta"] = tensors["theta"][:-1]
        changed["files"]["bank"]["sha256"] = write_tensors(bank, tensors)
        record.write_text(json.dumps(changed))
    complaint = refused(name, folder, *([image] if name == "classify" else []))
    assert str(folder) in complaint
    expected = {"no json": "holds no model.json", "bad json": "damaged", "no bank": "missing"}
    assert expected.get(damage, "damaged") in complaint


def test_classes_that_are_not_there(refused, home):
    assert "has no class 'dragon'; it knows: cross, disc, frame" in refused("remove", home / "model", "dragon")


def test_out_is_a_file(refused, home, tmp_path):
    (tmp_path / "taken").write_text("something else")
    assert "taken" in refused("train", home / "shapes", "--out", tmp_path / "taken", *OPTIONS)
    assert (tmp_path / "taken").read_text() == "something else"


def test_nothing_to_resume(refused, home, tmp_path):
    complaint = refused("train", home / "shapes", "--out", tmp_path / "m", *OPTIONS, "--resume")
    assert "no run to resume" in complaint and "without --resume" in complaint


def test_a_picture_of_one_pixel_is_a_picture(home, tmp_path, monkeypatch, capfd):
    Image.fromarray(np.zeros((1, 1), dtype=np.uint8)).save(tmp_path / "dot.png")
    monkeypatch.setattr(sys, "argv", ["nngk", "classify", str(home / "model"), str(tmp_path / "dot.png"), "--json"])
    cli.main()
    (answer,) = json.loads(capfd.readouterr().out)
    assert answer["nearest"] in ("cross", "disc", "frame") and answer["label"] in (answer["nearest"], "unknown")


def test_a_device_that_is_none_of_ours(refused, home, image):
    for device in ("mps", "meta", "nonsense"):
        assert f"Unknown device '{device}'" in refused("classify", home / "model", image, "--device", device)
        assert f"Unknown device '{device}'" in refused(
            "train", home / "shapes", "--out", home / "other", *OPTIONS[:-2], "--device", device
        )


def test_training_over_a_model(refused, home):
    assert "holds a model" in refused("train", home / "shapes", "--out", home / "model", *OPTIONS)


def test_only_small_classes(refused, tmp_path):
    shapes = write_shapes(tmp_path / "shapes", ("disc", "frame"), count=4)
    for picture in sorted((shapes / "frame").iterdir())[1:]:
        picture.unlink()
    arguments = ("train", shapes, "--out", tmp_path / "m", "--skip-small-classes", *OPTIONS)
    assert "without its small classes has images of one class only" in refused(*arguments)


def test_a_pack_of_no_size(refused, home, tmp_path):
    assert "0 is not in the range" in refused("data", "pack", home / "shapes", tmp_path / "p", "--size", 0, code=2)


def test_a_label_that_looks_like_a_number(home, tmp_path):
    rows = [f"{p},{'--5' if p.parent.name == 'disc' else '7'}" for p in sorted((home / "shapes").glob("[df]*/*.png"))]
    (tmp_path / "list.csv").write_text("path,label\n" + "\n".join(rows))
    assert read_images(tmp_path / "list.csv").class_names == ["7", "--5"]


def test_results_of_something_else(refused, tmp_path):
    (tmp_path / "ablation.csv").write_text("a,b\n1,2\n")
    complaint = refused("paper", "report", "--results", tmp_path, "--out", tmp_path / "r.html")
    assert "ablation.csv is not a results file of 'nngk paper'" in complaint


@pytest.mark.thorough
def test_a_folder_that_is_named_like_an_image(home, tmp_path):
    odd = tmp_path / "photos" / "inside.jpg"
    odd.mkdir(parents=True)
    shutil.copy(home / "shapes" / "disc" / "00.png", odd / "a.png")
    done = nngk("classify", home / "model", tmp_path / "photos", "--json")
    assert done.returncode == 0 and [row["image"] for row in json.loads(done.stdout)] == [str(odd / "a.png")]


@pytest.mark.thorough
def test_fewer_images_than_are_shown_by_default(tmp_path):
    shapes = write_shapes(tmp_path / "shapes", ("disc", "frame"), count=4)
    train(shapes, Settings(**{**TINY, "epochs": 1, "val_fraction": 0.25, "test_fraction": 0.25}), out=tmp_path / "m")
    done = nngk("search", tmp_path / "m", shapes / "disc" / "00.png", "--json")
    assert done.returncode == 0 and 0 < len(json.loads(done.stdout)[0]["found"]) < 10


@pytest.mark.thorough
def test_two_that_teach_at_once(home, tmp_path):
    model = shutil.copytree(home / "model", tmp_path / "model")
    pictures = home / "shapes" / "disc"
    running = [forked.Started(["-m", "nngk", "add", model, f"class {i}", pictures / f"0{i}.png"]) for i in range(3)]
    assert [process.wait().returncode for process in running] == [0, 0, 0]
    assert {f"class {i}" for i in range(3)} <= set(Model.load(model).class_names)


@pytest.mark.thorough
def test_a_name_that_is_no_text(home, tmp_path):
    odd = tmp_path / os.fsdecode(b"caf\xe9.png")
    try:
        shutil.copy(home / "shapes" / "disc" / "00.png", odd)
    except OSError:
        pytest.skip("this file system takes no such name")
    done = nngk("classify", home / "model", odd, errors="surrogateescape")
    assert done.returncode == 0 and done.stdout.startswith(f"{odd}: ")


def test_pictures_too_small_for_the_network(refused, home, tmp_path):
    small = ("--network", "googlenet-bvlc", "--weights", "random", "--resize", 4, "--crop-size", 4, "--device", "cpu")
    complaint = refused("train", home / "shapes", "--out", tmp_path / "m", *small)
    assert "googlenet-bvlc cannot read pictures of 4 × 4 pixels" in complaint


def test_wrong_names_are_noticed_before_the_images_are_read(refused, tmp_path):
    shapes = write_shapes(tmp_path / "shapes", count=3)
    for option, value, expected in (
        ("--loss", "contrast", "There is no loss 'contrast'"),
        ("--search", "fang", "There is no search engine 'fang'"),
        ("--update-interval", "often", "The update interval must be"),
    ):
        assert expected in refused("train", shapes, "--out", tmp_path / "m", *OPTIONS, option, value)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e400"])
def test_no_option_takes_what_is_no_finite_number(home, image, refused, number):
    for words in (
        ["audit", home / "model", "--prune", number],
        ["classify", home / "model", image, "--reject", number],
        ["calibrate", home / "model", image, "--false-alarms", number],
        ["serve", home / "model", "--timeout", number],
        ["serve", home / "model", "--rate", number],
    ):
        assert "is no finite number" in refused(*words, code=2) or "not in the range" in refused(*words, code=2)


def test_no_page_takes_the_place_of_a_photo(home, image, refused):
    before = image.read_bytes()
    assert "is no page" in refused("explain", home / "model", image, "--out", image)
    assert "is no page" in refused("report", home / "model", "--out", image)
    assert "is no page" in refused("report", home / "model", "--out", home / "model")
    assert image.read_bytes() == before
