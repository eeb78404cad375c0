import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nngk.data import read_images
from nngk.errors import InputError
from nngk.experiments.compare.comparison import compare, settle_split
from nngk.experiments.record import runs
from nngk.files import read_json
from nngk.model.model import Model
from nngk.training import frozen_features, loop
from nngk.training.settings import Settings

LOSSES = ["nngk", "softmax", "clustering"]
SETTINGS = Settings(
    task="metric",
    network="small",
    weights="random",
    dim=8,
    epochs=2,
    lr=1e-3,
    flip=False,
    crop="centre",
    resize=16,
    crop_size=16,
    batch_size=16,
    n_neighbours=20,
    val_fraction=0.2,
    test_fraction=0.3,
)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Return a folder of ten classes of real digits, twelve images each."""
    datasets = pytest.importorskip("sklearn.datasets")
    home = tmp_path_factory.mktemp("digits")
    pictures = datasets.load_digits()
    for label in range(10):
        folder = home / str(label)
        folder.mkdir()
        for i in np.flatnonzero(pictures.target == label)[:12]:
            Image.fromarray((pictures.images[i] * 15.9).astype(np.uint8)).save(folder / f"{i}.png")
    return home


@pytest.fixture(scope="module")
def finished(digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison")
    return out, compare(digits, LOSSES, SETTINGS, out=out, seeds=2)


def without_time(rows):
    return [{k: v for k, v in row.items() if k not in ("seconds", "finished")} for row in rows]


@pytest.mark.thorough
def test_trains_all_and_writes_the_report(finished):
    out, rows = finished
    assert [(row["loss"], row["seed"]) for row in rows] == [(loss, seed) for seed in (0, 1) for loss in LOSSES]
    assert all(0 <= row["recall@1"] <= 1 and row["val_score"] > 0 for row in rows)
    with (out / "runs.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["loss"] for row in table] == LOSSES * 2
    assert float(table[0]["map@r"]) == rows[0]["map@r"]
    text = (out / "comparison.md").read_text()
    assert all(f"| {loss} |" in text for loss in LOSSES)
    assert "By recall@1" in text
    assert "±" in text
    assert (out / "comparison.png").stat().st_size > 5000


@pytest.mark.thorough
def test_a_finished_comparison_is_read_and_can_grow(finished, digits, monkeypatch):
    out, rows = finished
    trained = []
    real = runs.train
    monkeypatch.setattr(runs, "train", lambda *a, **k: trained.append(a[1].loss) or real(*a, **k))
    assert compare(digits, LOSSES, SETTINGS, out=out, seeds=2) == rows
    assert trained == []
    more = compare(digits, [*LOSSES, "triplet-global"], SETTINGS, out=out, seeds=1)
    assert trained == ["triplet-global"]
    assert without_time(more[:3]) == without_time(rows[:3])
    compare(digits, ["triplet-global"], replace(SETTINGS, lr=2e-3), out=out, seeds=1)  # at another rate: in its place
    compare(digits, LOSSES, SETTINGS, out=out, seeds=2)
    with (out / "runs.csv").open() as file:
        assert [row["lr"] for row in csv.DictReader(file) if row["loss"] == "triplet-global"] == ["0.002"]
    text = (out / "comparison.md").read_text()
    assert all(f"| {loss} |" in text for loss in [*LOSSES, "triplet-global"])  # those of before are still there


@pytest.mark.thorough
def test_a_comparison_from_before_a_setting_existed_goes_on(finished, digits):
    out, rows = finished
    record = json.loads((out / "comparison.json").read_text())
    del record["settings"]["whiten"]
    (out / "comparison.json").write_text(json.dumps(record))
    assert compare(digits, LOSSES, SETTINGS, out=out, seeds=2) == rows


@pytest.mark.thorough
def test_a_killed_comparison_goes_on_with_the_run_that_was_cut(finished, digits, tmp_path, monkeypatch):
    _, whole = finished
    steps = 0
    real_step, real_train = loop.take_step, runs.train

    class Killed(BaseException):
        pass

    def step(*arguments):
        nonlocal steps
        steps += 1
        if steps == 13:  # four steps an epoch, two epochs: in the second epoch of the second run
            raise Killed
        return real_step(*arguments)

    monkeypatch.setattr(loop, "take_step", step)
    with pytest.raises(Killed):
        compare(digits, LOSSES, SETTINGS, out=tmp_path, seeds=2)
    monkeypatch.setattr(loop, "take_step", real_step)
    finished_before = list(tmp_path.glob("runs/*/result.json"))
    assert len(finished_before) == 1
    calls = []

    def train(table, settings, **options):
        calls.append((settings.loss, options["resume"]))
        return real_train(table, settings, **options)

    monkeypatch.setattr(runs, "train", train)
    rows = compare(digits, LOSSES, SETTINGS, out=tmp_path, seeds=2)
    assert calls[0] == ("softmax", True)
    assert [resumed for _, resumed in calls[1:]] == [False] * 4
    assert without_time(rows) == without_time(whole)


def test_the_split_is_the_same_for_all_and_by_class(digits):
    table = settle_split(read_images(digits), SETTINGS)
    again = settle_split(read_images(digits), SETTINGS)
    assert table.splits == again.splits
    classes = {part: set(table.where(part).labels.tolist()) for part in ("train", "val", "test")}
    assert sorted(len(c) for c in classes.values()) == [2, 3, 5]
    assert set.union(*classes.values()) == set(range(10))
    # A split that is there is kept.
    given = replace(table, splits=["test" if y == 0 else "train" for y in table.labels])
    kept = settle_split(given, SETTINGS)
    assert set(kept.where("test").labels.tolist()) == {0}
    assert len(kept.where("val"))


@pytest.mark.thorough
def test_rates_are_chosen_by_validation_without_the_test_part(digits, tmp_path, monkeypatch):
    seen = []
    real = runs.train

    def train(table, settings, **options):
        seen.append((Path(options["out"]).parent.name, settings.lr, len(table.where("test"))))
        return real(table, settings, **options)

    monkeypatch.setattr(runs, "train", train)
    rows = compare(digits, ["softmax"], SETTINGS, out=tmp_path, seeds=2, rates=(1e-9, 1e-3))
    assert [(kind, lr, tests > 0) for kind, lr, tests in seen[:2]] == [("tuning", 1e-9, False), ("tuning", 1e-3, False)]
    scores = {}
    for path in tmp_path.glob("tuning/*/result.json"):
        row = read_json(path, "a run")
        assert "recall@1" not in row
        scores[row["lr"]] = row["val_score"]
    best = max(scores, key=scores.get)
    assert [row["lr"] for row in rows] == [best] * 2
    assert [kind for kind, _, _ in seen[2:]] == ["runs"] * 2


@pytest.mark.thorough
def test_a_run_that_diverges_is_reported_and_the_others_go_on(digits, tmp_path, monkeypatch):
    real = runs.train

    def train(table, settings, **options):
        if settings.loss == "softmax":
            raise InputError("The loss became nan by step 3: training diverged.")
        return real(table, settings, **options)

    monkeypatch.setattr(runs, "train", train)
    rows = compare(digits, ["softmax", "nngk"], replace(SETTINGS, epochs=1), out=tmp_path, seeds=1)
    assert "diverged" in rows[0]["error"]
    assert rows[1]["recall@1"] > 0
    text = (tmp_path / "comparison.md").read_text()
    assert "Runs that failed" in text
    assert "0 of 1" in text


@pytest.mark.thorough
def test_classification_is_compared_too(digits, tmp_path):
    settings = replace(SETTINGS, task="classify", epochs=1)
    rows = compare(digits, ["nngk", "softmax"], settings, out=tmp_path, seeds=1)
    assert all("accuracy" in row for row in rows)
    assert "By accuracy" in (tmp_path / "comparison.md").read_text()


@pytest.mark.thorough
def test_losses_are_compared_trained_wide_and_kept_narrow(digits, tmp_path):
    losses = ["nngk", "softmax", "clustering", "smart-mining"]
    rows = compare(digits, losses, replace(SETTINGS, dim=4, wide=12), out=tmp_path, seeds=1)
    assert not [row["error"] for row in rows if "error" in row]
    for row in rows:
        model = Model.load(tmp_path / "runs" / f"{row['loss']}-lr0.001-seed0")
        assert model.network.dim == model.centres.shape[1] == row["dim"] == 4
        assert 0 < row["recall@1"] <= 1


@pytest.mark.thorough
def test_a_frozen_networks_features_are_computed_once(digits, tmp_path, monkeypatch):
    written = []
    real = frozen_features.write_tensors
    monkeypatch.setattr(
        frozen_features, "write_tensors", lambda path, tensors: written.append(path) or real(path, tensors)
    )
    settings = replace(SETTINGS, network="efficientnet-lite0", weights="imagenet", resize=32, crop_size=32, epochs=1)
    rows = compare(digits, ["nngk", "softmax"], settings, out=tmp_path, seeds=1)
    whole = [path for path in written if "-from-" not in path.name]  # without what is kept on the way
    assert len(whole) == len(set(whole)) == 3  # of the three tables, for both runs
    assert all("recall@1" in row for row in rows)


@pytest.mark.parametrize(
    ("losses", "change", "options", "message"),
    [
        (["nngk", "tripletts"], {}, {}, "no loss 'tripletts'"),
        (["nngk", "nngk"], {}, {}, "each once"),
        ([], {}, {}, "needs losses and seeds"),
        (["nngk"], {}, {"seeds": 0}, "needs losses and seeds"),
        (["nngk"], {"val_fraction": 0.0}, {}, "needs a val part"),
        (["nngk"], {"test_fraction": 0.0}, {}, "needs a test part"),
        (["nngk", "clustering"], {"batch_size": 4}, {}, "batch size of at least 8"),
    ],
)
def test_bad_requests_fail_before_training(digits, tmp_path, losses, change, options, message):
    with pytest.raises(InputError, match=message):
        compare(digits, losses, replace(SETTINGS, **change), out=tmp_path, **options)
    assert not (tmp_path / "runs").exists()


@pytest.mark.thorough
def test_a_folder_keeps_to_its_settings(finished, digits):
    out, _ = finished
    with pytest.raises(InputError, match=r"other settings \(dim\)"):
        compare(digits, LOSSES, replace(SETTINGS, dim=4), out=out, seeds=2)
    with pytest.raises(InputError, match=r"other settings \(the data\)"):
        compare(read_images(digits).select(range(110)), LOSSES, SETTINGS, out=out, seeds=2)


@pytest.mark.thorough
def test_what_failed_is_tried_again(digits, tmp_path):
    home = shutil.copytree(digits, tmp_path / "digits")
    broken = {path: path.read_bytes() for path in sorted(home.rglob("*.png"))[:3]}  # more than one in a hundred
    for path, whole in broken.items():
        path.write_bytes(whole[:20])
    (row,) = compare(tmp_path / "digits", ["softmax"], SETTINGS, out=tmp_path / "c", seeds=1)
    assert "cannot be read" in row["error"]
    with pytest.raises(InputError, match=r"failed at every learning rate \(0.001, 0.01\): .*cannot be read"):
        compare(tmp_path / "digits", ["softmax"], SETTINGS, out=tmp_path / "d", seeds=1, rates=(1e-3, 1e-2))
    for path, whole in broken.items():
        path.write_bytes(whole)
    (row,) = compare(tmp_path / "digits", ["softmax"], SETTINGS, out=tmp_path / "c", seeds=1)
    assert "error" not in row and 0 <= row["recall@1"] <= 1


def test_a_validation_part_without_pairs_is_refused(digits, tmp_path):
    table = settle_split(read_images(digits), SETTINGS)
    lonely, seen = [], set()
    for row, (part, label) in enumerate(zip(table.splits, table.labels.tolist())):
        if part != "val" or label not in seen:
            lonely.append(row)
        seen.add(label)
    with pytest.raises(InputError, match="two images of one class in its validation part"):
        compare(table.select(lonely), ["softmax"], SETTINGS, out=tmp_path, seeds=1)
