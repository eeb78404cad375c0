"""A model's folder: the old model or the new one, never a mixture, and no damage goes unnoticed."""

import json
import shutil

import numpy as np
import pytest
import torch

from nngk.errors import InputError
from nngk.model import storage
from nngk.model.model import Model
from nngk.networks import create_network
from nngk.networks.input_spec import InputSpec


def small_model(seed=0, classes=3, softmax=False):
    torch.manual_seed(seed)
    network = create_network("small", dim=4, weights="random")
    network.input = InputSpec.from_config({**network.input.to_config(), "size": 12, "resize": 12})
    m = classes * 4
    layer = {"weight": torch.randn(classes, 4), "bias": torch.randn(classes)} if softmax else None
    return Model(
        network,
        centres=torch.randn(m, 4),
        labels=torch.arange(m) % classes,
        theta=torch.randn(m),
        sigma=0.4,
        class_names=[f"class {i} äöü" for i in range(classes)],
        sources=[f"images/{i}.png" for i in range(m)],
        familiar=torch.randn(m),
        n_neighbours=5,
        softmax=layer,
        info={"task": "classify", "test": {"accuracy": 0.5}},
    )


@pytest.fixture
def folder(tmp_path):
    small_model().save(tmp_path / "m")
    return tmp_path / "m"


def visible(folder):
    """The files of a folder besides the lock of its writers."""
    return [path for path in folder.iterdir() if path.name != ".lock"]


def same(a, b):
    x = torch.randn(6, 4)
    assert torch.equal(a.predict(x).log_probabilities, b.predict(x).log_probabilities)
    assert torch.equal(a.probabilities(x), b.probabilities(x))
    one, two = a.network.state_dict(), b.network.state_dict()
    assert one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)
    for field in ("class_names", "sources", "sigma", "n_neighbours", "info"):
        assert getattr(a, field) == getattr(b, field)
    assert a.network.config == b.network.config and torch.equal(a.familiar, b.familiar)


@pytest.mark.parametrize("softmax", [False, True])
def test_round_trip(tmp_path, softmax):
    model = small_model(softmax=softmax)
    model.save(tmp_path / "deep" / "m")
    same(Model.load(tmp_path / "deep" / "m"), model)


def test_folder_holds_data_only(folder):
    assert sorted(p.suffix for p in visible(folder)) == [".json", ".safetensors", ".safetensors"]
    record = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    assert {"format", "files", "network", "sigma", "class_names", "sources", "versions"} <= record.keys()
    assert {"nngk", "torch", "python"} <= record["versions"].keys()


def test_saving_again_replaces_everything(folder):
    newer = small_model(seed=1, classes=5)
    newer.save(folder)
    same(Model.load(folder), newer)
    assert len(visible(folder)) == 3


@pytest.mark.parametrize("moment", range(1, 9))
def test_death_at_any_moment_of_a_save_leaves_a_whole_model(folder, moment, monkeypatch):
    """Every rename and every removal of a save in turn is the last thing that does not happen."""
    old, new = Model.load(folder), small_model(seed=1, classes=5)

    class Dead(BaseException):
        pass

    steps = 0
    path_type = type(folder)
    real = {name: getattr(path_type, name) for name in ("replace", "unlink")}

    def mortal(name):
        def act(self, *arguments, **options):
            nonlocal steps
            if name == "replace" or self.suffix == ".safetensors":
                steps += 1
                if steps == moment:
                    raise Dead
            return real[name](self, *arguments, **options)

        return act

    with monkeypatch.context() as patched:
        for name in real:
            patched.setattr(path_type, name, mortal(name))
        try:
            new.save(folder)
            died = False
        except Dead:
            died = True
    assert died == (moment <= 7)  # five renames, two removals
    same(Model.load(folder), old if moment <= 5 else new)
    new.save(folder)
    same(Model.load(folder), new)


def test_no_folder(tmp_path):
    with pytest.raises(InputError, match=r"There is no model folder.*nngk train"):
        Model.load(tmp_path / "none")
    with pytest.raises(InputError, match=r"not a model folder: it holds no model\.json"):
        Model.load(tmp_path)


@pytest.mark.parametrize("which", ["model.json", "network", "bank"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "one byte short", "a bit", "a folder"])
def test_damage_to_any_file(folder, which, damage):
    (path,) = folder.glob(f"{which}*")
    good = path.read_bytes()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage != "missing":
        flipped = bytearray(good)
        flipped[0 if which == "model.json" else len(good) // 2] ^= 1
        short = -2 if which == "model.json" else -1  # a JSON file ends in a newline
        path.write_bytes(
            {"empty": b"", "half": good[: len(good) // 2], "one byte short": good[:short], "a bit": bytes(flipped)}[
                damage
            ]
        )
    with pytest.raises(InputError) as caught:
        Model.load(folder)
    assert str(folder) in str(caught.value)


def test_flipped_bits_in_the_record_never_end_in_another_error(folder):
    """Some flips only change a name or a number, which JSON cannot show; all others must be refused in a sentence."""
    path = folder / "model.json"
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for place in rng.choice(len(good), 150, replace=False):
        bad = bytearray(good)
        bad[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(bad))
        try:
            Model.load(folder)
        except InputError:
            refused += 1
    assert refused > 50


def without(*keys):
    def change(record):
        for key in keys:
            record.pop(key)

    return change


WRONG = {
    "format of the future": lambda r: r.update(format=99),
    "no format": without("format"),
    "no files": without("files"),
    "files as a list": lambda r: r.update(files=["network", "bank"]),
    "files as texts": lambda r: r.update(files={"network": "a", "bank": "b"}),
    "no bank file": lambda r: r["files"].pop("bank"),
    "file of another name": lambda r: r["files"]["bank"].update(file="bank-none.safetensors"),
    "bank where the network should be": lambda r: r["files"].update(network=r["files"]["bank"]),
    "no network": without("network"),
    "network as a text": lambda r: r.update(network="small"),
    "unknown network": lambda r: r["network"].update(name="huge"),
    "network of another width": lambda r: r["network"].update(dim=5),
    "no input": lambda r: r["network"].pop("input"),
    "no sigma": without("sigma"),
    "sigma as a text": lambda r: r.update(sigma="wide"),
    "sigma of nothing": lambda r: r.update(sigma=None),
    "negative sigma": lambda r: r.update(sigma=-1),
    "zero sigma": lambda r: r.update(sigma=0),
    "no neighbours": lambda r: r.update(n_neighbours=0),
    "neighbours as a text": lambda r: r.update(n_neighbours="many"),
    "too few class names": lambda r: r["class_names"].pop(),
    "class names as a text": lambda r: r.update(class_names="abc"),
    "class names as numbers": lambda r: r.update(class_names=[1, 2, 3]),
    "too few sources": lambda r: r["sources"].pop(),
    "sources as a number": lambda r: r.update(sources=12),
    "info as a text": lambda r: r.update(info="none"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_records(folder, what):
    path = folder / "model.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    WRONG[what](record)
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(InputError):
        Model.load(folder)


def test_a_device_that_is_not_there_is_no_damage(folder):
    with pytest.raises(InputError, match="Unknown device 'toaster'"):
        Model.load(folder, "toaster")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="sees no CUDA GPU"):
            Model.load(folder, "cuda")
    assert Model.load(folder, "auto").device.type in ("cpu", "cuda")


def test_a_copy_is_a_model(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    same(Model.load(tmp_path / "copy"), Model.load(folder))


def test_nan_in_a_record_is_never_written(folder):
    model = Model.load(folder)
    model.info["loss"] = float("nan")
    with pytest.raises(ValueError, match="JSON"):
        model.save(folder)
    assert Model.load(folder).info.get("loss") is None


def test_a_model_that_is_replaced_while_it_is_read(folder, monkeypatch):
    """Between its JSON and its tensors a new model takes the old one's place: the reader gets the new one."""
    real, done = storage.read_tensors, []

    def late(path, checksum=None):
        if not done:
            done.append(path)
            other = Model.load(folder)
            other.remove(other.class_names[0])
            other.save(folder)
        return real(path, checksum)

    monkeypatch.setattr(storage, "read_tensors", late)
    assert len(Model.load(folder).class_names) == 2 and done
