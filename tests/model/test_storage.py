"""A model's folder: the old model or the new one, never a mixture, and no damage goes unnoticed."""

import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import faults
from nngk.errors import InputError
from nngk.files import read_tensors, write_named_tensors, write_record
from nngk.model import storage
from nngk.model.card import CARD
from nngk.model.model import Model
from small_models import difference, same, small_model, visible


@pytest.fixture
def folder(tmp_path):
    small_model().save(tmp_path / "m")
    return tmp_path / "m"


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


def test_no_folder(tmp_path):
    with pytest.raises(InputError, match=r"There is no model folder.*nngk train"):
        Model.load(tmp_path / "none")
    with pytest.raises(InputError, match=r"not a model folder: it holds no model\.json"):
        Model.load(tmp_path)


@pytest.mark.parametrize("which", ["model.json", "network", "bank"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "one byte short", "a bit", "a folder"])
@pytest.mark.thorough
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


@pytest.mark.parametrize("which", ["model.json", "network", "bank"])
@pytest.mark.thorough
def test_flipped_bits_are_never_answered_from(folder, which):
    """A flipped bit is refused in a sentence, unless it changes nothing that is said, such as one blank for another."""
    good = Model.load(folder)
    (path,) = folder.glob(f"{which}*")
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    count, harmless = 400, 0
    for place in rng.choice(len(data), count, replace=len(data) < count):
        bad = bytearray(data)
        bad[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(bad))
        faults.count()
        try:
            assert difference(Model.load(folder), good) is None
            harmless += 1
        except InputError as error:
            assert str(folder) in str(error)
    assert harmless <= (20 if which == "model.json" else 0)


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
    "unknown field": lambda r: r.update(temperature=2.0),
    "format as a text": lambda r: r.update(format="2"),
    "format zero": lambda r: r.update(format=0),
    "file elsewhere": lambda r: r["files"]["bank"].update(file="../m/" + r["files"]["bank"]["file"]),
    "checksum of a file as a number": lambda r: r["files"]["bank"].update(sha256=5),
    "wide beyond measure": lambda r: r["network"].update(dim=10**12),
    "dim as a text": lambda r: r["network"].update(dim="wide"),
    "pictures beyond measure": lambda r: r["network"]["input"].update(size=10**9),
    "pictures of no size": lambda r: r["network"]["input"].update(resize=0),
    "two channels": lambda r: r["network"]["input"].update(mean=[0.5, 0.5]),
    "weights as a text": lambda r: r["network"].update(weights="random"),
    "layers as a text": lambda r: r["network"].update(layers="all"),
    "sigma beyond measure": lambda r: r.update(sigma=1e300),
    "sigma near nothing": lambda r: r.update(sigma=1e-300),
    "sigma as a list": lambda r: r.update(sigma=[0.4]),
    "a fraction of neighbours": lambda r: r.update(n_neighbours=2.5),
    "neighbours as truth": lambda r: r.update(n_neighbours=True),
    "a class twice": lambda r: r.update(class_names=["a", "a", "b"]),
    "settings of training as a list": lambda r: r["info"].update(settings=[1]),
    "another task": lambda r: r["info"].update(task="guess"),
    "an unknown score of nothing": lambda r: r["unknown"].update(parts=[]),
    "an unknown score of something else": lambda r: r["unknown"].update(parts=["beauty"]),
    "an unknown score without false alarms": lambda r: r["unknown"].pop("false_alarms"),
    "more false alarms than images": lambda r: r["unknown"].update(false_alarms=1.5),
    "scores as texts": lambda r: r["info"].update(test={"accuracy": "high"}),
}


def rewrite(folder, change, sealed=True):
    """Change a record by hand: with a checksum that is right, or as the first format, which had none."""
    path = folder / "model.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record.pop("checksum", None)
    if not sealed:
        record["format"] = 1
    change(record)
    if sealed:
        write_record(path, record)
    else:
        path.write_text(json.dumps(record), encoding="utf-8")


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("what", WRONG)
@pytest.mark.thorough
def test_wrong_records(folder, what, sealed):
    rewrite(folder, WRONG[what], sealed)
    with pytest.raises(InputError, match=str(folder)):
        Model.load(folder)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none(folder, number):
    path = folder / "model.json"
    rewrite(folder, lambda r: r.pop("sigma"), sealed=False)
    path.write_text('{"sigma": ' + number + ", " + path.read_text()[1:])
    with pytest.raises(InputError, match="no finite number"):
        Model.load(folder)


def test_a_record_nested_without_end(folder):
    (folder / "model.json").write_text('{"info":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(InputError, match="damaged"):
        Model.load(folder)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**6), value=json_values, sealed=st.booleans())
@pytest.mark.thorough
def test_any_value_anywhere_in_the_record_loads_or_is_refused(folder, place, value, sealed):
    (folder / "kept.json").exists() or shutil.copy(folder / "model.json", folder / "kept.json")
    shutil.copy(folder / "kept.json", folder / "model.json")

    def change(record):
        found = [p for p in places(record) if p]
        *way, last = found[place % len(found)]
        for key in way:
            record = record[key]
        record[last] = value

    rewrite(folder, change, sealed)
    try:
        model = Model.load(folder)
        assert torch.isfinite(model.probabilities(torch.randn(2, 4))).all()
    except InputError:
        pass


WRONG_BANKS = {
    "no centres": lambda b: b.pop("centres"),
    "no familiar": lambda b: b.pop("familiar"),
    "centres of another width": lambda b: b.update(centres=torch.randn(12, 5)),
    "too few centres": lambda b: b.update(centres=torch.randn(11, 4)),
    "a flat list of centres": lambda b: b.update(centres=torch.randn(48)),
    "NaN in the centres": lambda b: b["centres"].__setitem__((3, 1), float("nan")),
    "infinite centres": lambda b: b["centres"].__setitem__((3, 1), float("inf")),
    "centres of integers": lambda b: b.update(centres=torch.zeros(12, 4, dtype=torch.int64)),
    "labels below zero": lambda b: b["labels"].__setitem__(0, -1),
    "labels beyond the classes": lambda b: b["labels"].__setitem__(0, 3),
    "labels with a fraction": lambda b: b.update(labels=b["labels"].float()),
    "labels as a table": lambda b: b.update(labels=b["labels"][:, None]),
    "NaN in the weights": lambda b: b["theta"].__setitem__(0, float("nan")),
    "too few weights": lambda b: b.update(theta=b["theta"][:3]),
    "NaN in the familiar densities": lambda b: b["familiar"].__setitem__(0, float("nan")),
    "a table of familiar densities": lambda b: b.update(familiar=torch.randn(2, 3)),
    "too few familiar leads": lambda b: b.update({"familiar.lead": torch.randn(3)}),
    "a familiar measure of another name": lambda b: b.update({"familiar.beauty": torch.randn(20)}),
    "no familiar leads, which count": lambda b: b.pop("familiar.lead"),
    "NaN in the coordinates": lambda b: b["coordinates"].__setitem__((0, 0), float("nan")),
    "coordinates of another width": lambda b: b.update(coordinates=torch.randn(12, 5)),
    "too few coordinates": lambda b: b.update(coordinates=b["coordinates"][:3]),
    "coordinates without a space": lambda b: [b.pop("space.directions"), b.pop("space.origin")],
    "a space without coordinates": lambda b: b.pop("coordinates"),
    "a space without an origin": lambda b: b.pop("space.origin"),
    "NaN in the space": lambda b: b["space.directions"].__setitem__((0, 0), float("nan")),
    "a space of other features": lambda b: b.update(
        {"space.directions": torch.randn(5, 3), "space.origin": torch.randn(5)}
    ),
    "a softmax layer of more classes": lambda b: b.update(
        {"softmax.weight": torch.randn(4, 4), "softmax.bias": torch.randn(4)}
    ),
    "a softmax layer without a bias": lambda b: b.update({"softmax.weight": torch.randn(3, 4)}),
    "NaN in the softmax layer": lambda b: b.update(
        {"softmax.weight": torch.full((3, 4), float("nan")), "softmax.bias": torch.randn(3)}
    ),
}


def retensor(folder, kind, change):
    """Change a tensor file by hand, with checksums that are right."""
    record = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    tensors = read_tensors(folder / record["files"][kind]["file"])
    change(tensors)
    name, digest = write_named_tensors(folder, kind, tensors)
    rewrite(folder, lambda r: r["files"].update({kind: {"file": name, "sha256": digest}}))


@pytest.mark.parametrize("what", WRONG_BANKS)
@pytest.mark.thorough
def test_wrong_banks(folder, what):
    retensor(folder, "bank", WRONG_BANKS[what])
    with pytest.raises(InputError, match=f"The model in {folder} is damaged"):
        Model.load(folder)


@pytest.mark.parametrize("what", ["NaN", "integers", "missing", "another shape"])
def test_wrong_networks(folder, what):
    def change(tensors):
        name = next(n for n, t in tensors.items() if t.is_floating_point() and t.ndim > 1)
        good = tensors.pop(name)
        if what != "missing":
            tensors[name] = {"NaN": good * float("nan"), "integers": good.int(), "another shape": good[:1]}[what]

    retensor(folder, "network", change)
    with pytest.raises(InputError, match=f"The model in {folder} is damaged"):
        Model.load(folder)


def test_a_folder_of_the_version_before_is_read_and_written_in_the_new_format(folder):
    good = Model.load(folder)
    rewrite(folder, lambda r: None, sealed=False)
    model = Model.load(folder)
    same(model, good)
    model.save(folder)
    record = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    assert record["format"] == 4 and len(record["checksum"]) == 64
    same(Model.load(folder), good)


def test_a_model_that_knew_densities_alone_answers_by_them(folder):
    """As nngk 0.1 wrote them: no features, no unknown score in the record, one vector of log densities."""
    good = Model.load(folder)
    old = [key for key in storage.read(folder).bank if key.startswith(("familiar.", "space.", "coordinates"))]
    retensor(folder, "bank", lambda bank: [bank.pop(key) for key in old])
    rewrite(folder, lambda r: r.pop("unknown") and r.update(format=2))
    model = Model.load(folder)
    assert model.familiar.settings() == {"parts": ["density"], "false_alarms": 0.05}
    assert torch.equal(model.familiar.values["density"], good.familiar.values["density"])
    assert model.classes.coordinates is None
    x, density = torch.randn(9, 4), model.familiar.values["density"]
    for answer, own in zip(model.answers(x, features=torch.randn(9, 64)), model.predict(x).log_density):
        if own > density.min():  # below, the share goes on falling
            assert answer.alike == pytest.approx(1 - float((density >= own).sum()) / (len(density) + 1))
        assert answer.is_unknown == (answer.alike < 0.05) == (answer.unknown > 0.5)
    model.add("new", np.zeros((12, 12, 3), np.uint8))
    model.save(folder)
    assert Model.load(folder).classes.coordinates is None


def test_a_folder_of_a_version_to_come(folder):
    rewrite(folder, lambda r: r.update(format=5, gallery="elsewhere"))
    with pytest.raises(InputError, match=r"newer version of nngk \(format 5; this one reads up to 4\): update nngk"):
        Model.load(folder)


# -- somebody else writes too


def test_a_save_that_would_undo_another_is_refused(folder):
    mine, theirs = Model.load(folder), Model.load(folder)
    theirs.remove(theirs.class_names[0])
    theirs.save(folder)
    mine.remove(mine.class_names[1])
    with pytest.raises(InputError, match=r"changed by somebody else .* Load it again .* another folder"):
        mine.save(folder)
    same(Model.load(folder), theirs)
    mine.save(folder.with_name("other"))
    same(Model.load(folder.with_name("other")), mine)
    theirs.remove(theirs.class_names[0])
    theirs.save(folder)  # its own save is no other's
    with pytest.raises(InputError, match="changed by somebody else"):
        mine.save(folder)


def test_a_save_after_the_folder_was_damaged_is_refused(folder):
    model = Model.load(folder)
    (folder / "model.json").write_text("{")
    with pytest.raises(InputError, match="changed by somebody else"):
        model.save(folder)


def test_a_change_that_fails_saves_nothing(folder):
    before = {path.name: path.read_bytes() for path in visible(folder)}
    with pytest.raises(ZeroDivisionError), Model.changing(folder) as model:
        model.remove(model.class_names[0])
        raise ZeroDivisionError
    assert {path.name: path.read_bytes() for path in visible(folder)} == before
    with Model.changing(folder) as model:  # and the next one need not wait
        model.remove(model.class_names[0])
    model.remove(model.class_names[0])
    model.save(folder)
    assert len(Model.load(folder).class_names) == 1


def test_what_is_known_of_a_folder_is_read_again_only_after_somebody_else(folder, monkeypatch):
    known, reads = Model.load(folder, "cpu"), []
    read = storage.read
    monkeypatch.setattr(storage, "read", lambda place: reads.append(place) or read(place))
    with Model.changing(folder, "cpu", known) as model:
        model.rename(model.class_names[0], "first")
    assert not reads and known.class_names[0] != "first"
    with Model.changing(folder, "cpu", known) as again:  # the folder has changed since it was known
        assert again.class_names[0] == "first"
    assert len(reads) == 1
    assert Model.load(folder, "cpu").class_names[0] == "first"


def test_changing_what_is_not_there_makes_no_folder(tmp_path):
    with pytest.raises(InputError, match="no model folder"), Model.changing(tmp_path / "none"):
        pass
    assert not (tmp_path / "none").exists()


def test_what_killed_writers_left_is_cleared(folder):
    for name in ("..network.new.123.part", ".bank.new", ".network.77-0a1b2c3d.part", ".model.json.5-00.part"):
        (folder / name).write_bytes(b"half")
    (folder / "bank-000000000000.safetensors").write_bytes(b"never named")
    (folder / ".notes.part").write_text("not ours")
    Model.load(folder).save(folder)
    left = {path.name.split("-")[0] for path in folder.iterdir()}
    assert left == {"model.json", "network", "bank", ".lock", ".notes.part", CARD} and len(visible(folder)) == 4


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


def test_a_model_that_changes_and_changes_back_while_it_is_read(folder, monkeypatch):
    """What is named is gone for a moment, and then the same record is there again: no damage."""
    real, done = storage.read_tensors, []

    def late(path, checksum=None):
        if not done and path.name.startswith("bank"):
            done.append(path)
            good = Model.load(folder)
            other = Model.load(folder)
            other.remove(other.class_names[0])
            other.save(folder)
            assert not path.exists()
            try:
                return real(path, checksum)
            finally:
                good._seen.clear()
                good.save(folder)
        return real(path, checksum)

    monkeypatch.setattr(storage, "read_tensors", late)
    assert len(Model.load(folder).class_names) == 3 and done
