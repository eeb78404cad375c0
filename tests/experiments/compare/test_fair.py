"""The fair comparison at its smallest: folds, starts, widened rates, own settings, both ranks, and going on."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import forked
from nngk.data import read_images
from nngk.errors import InputError
from nngk.experiments.compare import fair
from nngk.experiments.compare.fair import fair_comparison, own_settings
from nngk.experiments.compare.fair_page import fair_page
from nngk.losses import LOSSES
from nngk.model.model import Model
from nngk.training.settings import Settings

SETTINGS = Settings(
    task="metric",
    network="small",
    weights="random",
    dim=8,
    epochs=1,
    lr=1e-3,
    flip=False,
    crop="centre",
    resize=16,
    crop_size=16,
    batch_size=16,
    n_neighbours=20,
    val_fraction=0.2,
    test_fraction=0.3,
    thumbnails=False,
)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Eight classes of stripes, eight pictures each."""
    home, rng = tmp_path_factory.mktemp("stripes"), np.random.default_rng(0)
    for label in range(8):
        (home / str(label)).mkdir()
        for number in range(8):
            wave = np.sin(np.arange(16) * (label + 1) / 3 + rng.normal(0, 0.3))
            pixels = 127 + 90 * np.tile(wave, (16, 1)) + rng.normal(0, 15, (16, 16))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(home / str(label) / f"{number}.png")
    return read_images(home)


@pytest.mark.thorough
def test_every_loss_is_searched_for_alike_and_goes_on(table, tmp_path, monkeypatch):
    monkeypatch.setattr(fair, "WIDEN", 0)  # another test lets the list grow
    how = {"seeds": 2, "rates": (1e-3, 3e-3), "folds": 2, "starts": ("random",)}
    own = {"softmax": {"batch_size": 8, "epochs": 2}}
    rows = fair_comparison(table, ["nngk", "softmax"], SETTINGS, out=tmp_path, own=own, **how)
    entries = {(row["loss"], row["settings_of"]) for row in rows}
    assert entries == {("nngk", "ours"), ("softmax", "ours"), ("softmax", "own")}
    for loss, whose in entries:
        mine = [row for row in rows if (row["loss"], row["settings_of"]) == (loss, whose)]
        validated = [row for row in mine if row["part"] == "validation"]
        tried = {row["lr"] for row in validated}
        assert {1e-3, 3e-3} <= tried and all([row["lr"] for row in validated].count(lr) == 2 for lr in tried)
        means = {lr: np.mean([row["val_score"] for row in validated if row["lr"] == lr]) for lr in tried}
        tested = [row for row in mine if row["part"] == "test"]
        assert [row["seed"] for row in tested] == [0, 1]
        assert means[tested[0]["lr"]] == max(means.values())
        # Softmax leaves its embeddings at any length: they are scored both ways.
        assert all(("unit_recall@1" in row) is (loss == "softmax") for row in tested)
        assert not any("recall@1" in row for row in validated)
    left = {path.name for path in (tmp_path / "validation").rglob("*") if path.is_file()}
    assert left == {"result.json"}  # models of runs that only chose are not kept; those of the test are
    assert all(Model.load(folder).network.dim == 8 for folder in (tmp_path / "test").iterdir())
    text = (tmp_path / "comparison.md").read_text()
    assert text.count("| softmax | own |") >= 1 and "validation runs" in text and "By recall@1" in text
    with (tmp_path / "runs.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows)

    def never(*_, **__):
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr("nngk.experiments.record.runs.train", never)
    again = fair_comparison(table, ["nngk", "softmax"], SETTINGS, out=tmp_path, own=own, **how)
    assert [row["seconds"] for row in again] == [row["seconds"] for row in rows]


def test_the_list_is_widened_until_the_best_is_inside(table, tmp_path, monkeypatch):
    """With a score that peaks at 1.6e-2, beyond the list, whose steps are of two."""

    def finished(folder, table, settings, facts):
        return {"val_score": 1 - abs(np.log2(settings.lr / 1.6e-2)) / 100, "best_epoch": 3, "seconds": 1.0}

    monkeypatch.setattr(fair, "finished_run", finished)
    how = {"seeds": 1, "rates": (1e-3, 2e-3), "folds": 3, "starts": ("random",)}
    rows = fair_comparison(table, ["nngk"], SETTINGS, out=tmp_path, **how)
    tried = dict.fromkeys(row["lr"] for row in rows if row["part"] == "validation")
    assert list(tried) == pytest.approx([1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2])
    assert (rows[-1]["part"], rows[-1]["lr"], rows[-1]["epochs"]) == ("test", pytest.approx(1.6e-2), 3)
    page = (tmp_path / "comparison.md").read_text()
    assert "| nngk | ours | random | 0.016 |" in page and "| 18 | 1 |" in page


def test_epochs_of_the_new_layers_alone_are_not_all_that_is_tested(table, tmp_path, monkeypatch):
    seen = []

    def finished(folder, table, settings, facts):
        seen.append((facts["part"], settings.epochs, settings.head_epochs))
        return {"val_score": 0.5, "best_epoch": 2, "seconds": 1.0}

    monkeypatch.setattr(fair, "finished_run", finished)
    monkeypatch.setattr(fair, "WIDEN", 0)
    own = {"softmax": {"epochs": 9, "head_epochs": 4}}
    how = {"seeds": 1, "rates": (1e-3, 2e-3), "folds": 2, "starts": ("random",), "own": own}
    for freeze, waits, epochs in ((False, 4, 5), (True, 0, 2)):
        seen.clear()
        fair_comparison(table, ["softmax"], replace(SETTINGS, freeze=freeze), out=tmp_path / str(freeze), **how)
        assert ("validation", 9, waits) in seen and ("test", epochs, waits) in seen


def row(loss, part, lr, **more):
    about = {"loss": loss, "settings_of": "ours", "start": "random", "part": part, "lr": lr}
    return about | {"data": "birds", "network": "small", "dim": 8} | more


def test_ranks_by_validation_and_by_test_stand_side_by_side():
    rows = [
        row("nngk", "validation", 1e-4, fold=0, val_score=0.5),
        row("nngk", "validation", 1e-3, fold=0, error="NaN"),
    ]
    rows += [row("softmax", "validation", lr, fold=0, val_score=s) for lr, s in ((1e-5, 0.4), (1e-4, 0.6), (1e-3, 0.1))]
    rows += [row("nngk", "test", 1e-4, seed=s, **{"recall@1": 0.7, "map@r": 0.3, "nmi": 0.5}) for s in (0, 1)]
    rows += [row("softmax", "test", 1e-4, seed=s, **{"recall@1": 0.6, "map@r": 0.2, "nmi": 0.4}) for s in (0, 1)]
    lines = fair_page(rows, (1e-4, 1e-3), 1, 2).splitlines()
    ranked = [line for line in lines if line.startswith(("| softmax", "| nngk"))]
    first, second = ([cell.strip() for cell in line.split("|")[1:-1]] for line in ranked[:2])
    assert first[:10] == ["softmax", "ours", "random", "0.0001", "60.00", "1", "60.00 ± 0.00", "2", "20.00 ± 0.00", "2"]
    assert second[:10] == ["nngk", "ours", "random", "0.0001*", "50.00", "2", "70.00 ± 0.00", "1", "30.00 ± 0.00", "1"]
    assert first[-2:] == ["3", "2"] and second[-2:] == ["2", "2"]
    assert "- nngk, ours, random, rate 0.001, fold 0: NaN" in lines


@pytest.mark.parametrize(
    ("changes", "how", "words"),
    [
        ({"task": "classify"}, {}, "task 'metric'"),
        ({}, {"folds": 1}, "at least two folds"),
        ({}, {"folds": 7}, "too few for 7 folds"),
        ({}, {"rates": (1e-3,)}, "at least two rates"),
        ({}, {"starts": ("sideways",)}, "embedding_start"),
        ({}, {"own": {"no-loss": {}}}, "no loss 'no-loss'"),
        ({}, {"own": {"nngk": {"epoch": 3}}}, "Unknown setting 'epoch'"),
    ],
)
def test_what_cannot_be_compared_is_said(table, tmp_path, changes, how, words):
    with pytest.raises(InputError, match=words):
        fair_comparison(table, ["nngk"], replace(SETTINGS, **changes), out=tmp_path, **how)


@pytest.mark.thorough
def test_one_command_does_all_of_it(table, tmp_path):
    home = table.paths[0].parent.parent
    (tmp_path / "own.toml").write_text("[softmax]\nbatch-size = 8\n")
    words = ["compare", str(home), "--losses", "softmax", "--preset", "quick", "--crop-size", "16", "--device", "cpu"]
    words += ["--rates", "1e-3,3e-3", "--seeds", "1", "--epochs", "1", "--quiet"]
    refused = forked.run(["-m", "nngk", *words, "--starts", "random", "--out", str(tmp_path / "out")])
    assert refused.returncode != 0 and "give --folds" in refused.stderr
    words += ["--folds", "2", "--starts", "random", "--own", str(tmp_path / "own.toml")]
    done = forked.run(["-m", "nngk", *words, "--out", str(tmp_path / "out")])
    assert done.returncode == 0, done.stderr
    assert "| softmax | ours | random |" in done.stdout and "| softmax | own | random |" in done.stdout


def test_settings_of_papers_are_tables_by_loss(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text("[proxy-anchor]\nbatch-size = 120\n")
    assert own_settings(file) == {"proxy-anchor": {"batch_size": 120}}
    file.write_text("batch_size = 120\n")
    with pytest.raises(InputError, match="one table per loss"):
        own_settings(file)


def test_the_settings_of_papers_that_are_published_here_are_known():
    own = own_settings(Path(__file__).parents[3] / "benchmarks" / "losses" / "papers.toml")
    for loss, changes in own.items():
        made = Settings.from_dict(SETTINGS.to_dict() | changes, loss)
        assert loss in LOSSES and made.batch_size == changes["batch_size"]
