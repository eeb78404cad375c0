"""One loop for both tasks: what it learns, early stopping, the log, few images, what is saved and what is refused."""

import csv
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from nngk.cli.use_model import classify_command
from nngk.data import read_images, split
from nngk.errors import InputError
from nngk.kernel.formulas import squared_distances
from nngk.losses.gaussian import GaussianKernelLoss
from nngk.model.model import Model
from nngk.training import loop
from nngk.training.loop import train
from nngk.training.presets import preset_settings, usual_rate
from runs import log_of, make_run, settings
from shapes import TINY, write_shapes

# -- one loop for both tasks


def test_both_tasks_use_the_same_loss_and_loop(data, tmp_path):
    """With the same training images the two tasks take the same steps, to the last bit."""
    everything = {"val_fraction": 0.0, "test_fraction": 0.0}
    models = [train(data, settings(task=t, **everything), out=tmp_path / t) for t in ("classify", "metric")]
    states = [m.network.state_dict() for m in models]
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert torch.equal(models[0].centres, models[1].centres) and torch.equal(models[0].theta, models[1].theta)
    assert [r["loss"] for r in log_of(tmp_path / "classify")] == [r["loss"] for r in log_of(tmp_path / "metric")]


@pytest.mark.parametrize("task", ["classify", "metric"])
def test_the_loss_is_the_gaussian_kernel_loss(task, data, tmp_path, monkeypatch):
    calls = []
    real = GaussianKernelLoss.forward
    monkeypatch.setattr(GaussianKernelLoss, "forward", lambda self, *a: (calls.append(len(a[0])), real(self, *a))[1])
    train(data, settings(task=task, epochs=1, val_fraction=0.25, test_fraction=0.25), out=tmp_path / "m")
    row = log_of(tmp_path / "m")[0]
    assert len(calls) == row["step"]


def test_metric_holds_out_whole_classes(data, tmp_path):
    model = train(data, settings(task="metric", val_fraction=0.25, test_fraction=0.25, epochs=1), out=tmp_path / "m")
    assert len(model.class_names) == 2
    assert "recall@1" in model.info["test"] and "accuracy" not in model.info["test"]
    assert "val_map@r" in log_of(tmp_path / "m")[0]


def test_model_learns_the_shapes(data, tmp_path):
    model = train(data, settings(epochs=6), out=tmp_path / "m")
    assert model.info["test"]["accuracy"] >= 0.8
    assert {"calibration_error", "recall@1", "map@r", "nmi"} <= model.info["test"].keys()


# -- epochs


def test_early_stopping_restores_the_best_epoch(data, tmp_path, monkeypatch):
    script, weights = [0.5, 0.9, 0.9, 0.2, 0.8, 0.8], []

    def scripted(run):
        weights.append({k: v.clone() for k, v in run.network.state_dict().items()})
        score = script[len(weights) - 1]
        return {"val_accuracy": score}, [score]

    monkeypatch.setattr(loop, "validate", scripted)
    model = train(data, settings(epochs=6, patience=3), out=tmp_path / "m")
    assert len(weights) == 5  # three epochs without a better one; an equal one is not better
    assert model.info["best_epoch"] == 2
    state = model.network.state_dict()
    assert all(torch.equal(state[k], weights[1][k]) for k in state)
    assert not all(torch.equal(state[k], weights[-1][k]) for k in state)
    # The bank is of those weights too.
    torch.testing.assert_close(model.embed(model.sources), model.centres, rtol=1e-4, atol=1e-5)


def test_without_patience_all_epochs_run(data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "validate", lambda run: ({}, [-run.at.step]))
    train(data, settings(epochs=4, patience=0), out=tmp_path / "m")
    assert len(log_of(tmp_path / "m")) == 4


def test_without_validation_the_last_epoch_counts(data, tmp_path):
    model = train(data, settings(val_fraction=0.0, epochs=2), out=tmp_path / "m")
    assert model.info["best_epoch"] == 2 and not any(k.startswith("val") for k in log_of(tmp_path / "m")[0])


def test_log_as_csv_and_json_lines(data, tmp_path):
    train(data, settings(epochs=3), out=tmp_path / "m")
    rows = log_of(tmp_path / "m")
    with (tmp_path / "m" / "run" / "log.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    wanted = {"epoch", "step", "loss", "val_accuracy", "val_loss", "lr", "images_per_second", "sigma", "bank_age"}
    assert wanted <= rows[0].keys()
    assert [{k: str(v) for k, v in row.items()} for row in rows] == table


def test_tensorboard(data, tmp_path):
    pytest.importorskip("tensorboard")
    train(data, settings(epochs=1), out=tmp_path / "m", tensorboard=True)
    assert list((tmp_path / "m" / "run" / "tensorboard").glob("events*"))


# -- what goes wrong


def test_divergence_is_said(data, tmp_path):
    with pytest.raises(InputError, match=r"NaN or infinite|training diverged"):
        train(data, settings(lr=1e6, embedding_lr_factor=1e6, clip=0.0, epochs=3, normalise=False), out=tmp_path / "m")


def test_a_class_with_one_image(data, tmp_path):
    alone = data.select(np.r_[np.flatnonzero(data.labels != 2), np.flatnonzero(data.labels == 2)[:1]])
    with pytest.raises(InputError, match=r"at least two images.*'frame'"):
        train(alone, settings(), out=tmp_path / "m")


@pytest.mark.parametrize("counts", [(2, 2, 2, 2), (3, 3, 3, 3), (2, 2, 9, 9), (4, 4, 2, 2), (5, 5, 5, 1)])
@pytest.mark.parametrize("task", ["classify", "metric"])
def test_few_images_are_enough_or_the_first_sentence_says_they_are_not(task, counts, data, tmp_path):
    """What can be trained on gives a model; nothing fails after the training is done."""
    rows = np.concatenate([np.flatnonzero(data.labels == c)[:n] for c, n in enumerate(counts)])
    few = data.select(rows)
    try:
        model = train(few, settings(task=task, epochs=1, val_fraction=0.25, test_fraction=0.25), out=tmp_path / "m")
    except InputError:
        assert not (tmp_path / "m" / "run" / "log.csv").exists()
        assert min(counts) == 1 or task == "metric"
    else:
        assert len(Model.load(tmp_path / "m").centres) == len(model.centres) >= 2


def test_unknown_device(data, tmp_path):
    with pytest.raises(InputError, match="Unknown device"):
        train(data, settings(device="toaster"), out=tmp_path / "m")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="sees no CUDA GPU"):
            train(data, settings(device="cuda"), out=tmp_path / "m")


# -- what is left


def test_familiar_are_the_densities_at_images_of_known_classes(tmp_path):
    """At validation images where they are enough; else at training images, without their own kernels."""
    write_shapes(tmp_path / "many", count=36)
    s = settings(n_neighbours=0, epochs=1)
    model = train(tmp_path / "many", s, out=tmp_path / "m")
    table = read_images(tmp_path / "many", task=s.task, seed=s.seed)
    val = split(table, s.task, s.val_fraction, s.test_fraction, s.seed).val
    assert len(val) >= 20
    everyone = torch.arange(len(model.centres)).repeat(len(val), 1)
    squared = squared_distances(model.embed(val.paths), model.classes.positions, everyone)
    expected = (model.theta[everyone] - squared / (2 * model.sigma**2)).logsumexp(1)
    torch.testing.assert_close(model.familiar.values["density"], expected, rtol=1e-3, atol=1e-3)
    model = train(tmp_path / "many", settings(n_neighbours=0, epochs=1, val_fraction=0.0), out=tmp_path / "n")
    own = squared_distances(
        model.centres, model.centres, torch.arange(len(model.centres)).repeat(len(model.centres), 1)
    )
    whole = (model.theta - own / (2 * model.sigma**2)).logsumexp(1)
    usual = model.familiar.values["density"]
    assert 0.5 * len(whole) <= len(usual) <= len(whole) and usual.max() < whole.max()


def test_the_saved_model_is_the_returned_one(data, tmp_path):
    model = train(data, settings(), out=tmp_path / "m")
    loaded = Model.load(tmp_path / "m")
    assert torch.equal(loaded.centres, model.centres) and loaded.info == model.info


def test_training_crops_may_have_a_size_of_their_own(data, tmp_path):
    run = make_run(data, tmp_path / "run", train_crop_size=12)
    images = run.feed.train.source.batch(torch.arange(3))
    assert run.feed.augment(images, None).shape[-1] == 12 and run.feed.plain(images, None).shape[-1] == 16


def test_a_model_is_not_replaced_by_mistake(data, tmp_path):
    model = train(data, settings(), out=tmp_path / "m")
    model.add("extra", [data.paths[0]])
    model.save(tmp_path / "m")
    with pytest.raises(InputError, match=r"holds a model.*--force"):
        train(data, settings(), out=tmp_path / "m")
    assert "extra" in Model.load(tmp_path / "m").class_names
    train(data, settings(), out=tmp_path / "m", force=True)
    assert "extra" not in Model.load(tmp_path / "m").class_names


def test_names_that_are_no_text(tmp_path):
    """A file system knows bytes: a name of another encoding must not cost the run its end."""
    folder = write_shapes(tmp_path / "shapes", count=6)
    odd = folder / "disc" / os.fsdecode(b"caf\xe9.png")
    try:
        (folder / "disc" / "00.png").rename(odd)
    except OSError:
        pytest.skip("this file system takes no such name")
    model = train(folder, settings(), out=tmp_path / "m")
    assert str(odd) in model.sources
    assert Model.load(tmp_path / "m").sources == model.sources


@pytest.mark.parametrize(("asked", "kept"), [(None, None), (100, 100), (3, 3)])
def test_a_model_that_is_shown_more_considers_as_many_as_was_asked(asked, kept, data, tmp_path):
    train(data, settings(n_neighbours=asked), out=tmp_path / "model")
    model = Model.load(tmp_path / "model")
    assert model.n_neighbours == kept
    before = len(model.centres)
    rng = np.random.default_rng(0)
    model.add("noise", list(rng.integers(0, 256, (50, 16, 16, 3), dtype=np.uint8)))
    found = model.predict(model.centres[:2]).neighbours
    assert found.shape[1] == min(kept or before + 50, before + 50)


def test_softmax_answers_until_it_is_shown_what_its_layer_cannot_learn(data, tmp_path):
    model = train(data, settings(loss="softmax"), out=tmp_path / "model")
    assert model.classifier == "softmax"
    picture = str(data.paths[0])
    said = CliRunner().invoke(classify_command, [str(tmp_path / "model"), picture]).output
    assert "    near /" in said and "because of" not in said  # they did not decide it
    model.add("disc", [np.zeros((16, 16, 3), dtype=np.uint8)])
    assert model.classifier == "kernels"
    assert model.classify(np.zeros((16, 16, 3), dtype=np.uint8)).evidence[0].label == "disc"


def test_a_class_without_training_images_is_refused(data, tmp_path):
    splits = ["test" if label == 3 or i % 5 == 0 else "train" for i, label in enumerate(data.labels.tolist())]
    with pytest.raises(InputError, match="no training image, only others: 'stripes'"):
        train(replace(data, splits=splits), settings(), out=tmp_path / "model")


def test_settings_by_name_are_completed_by_the_recipe(data, tmp_path):
    given = {**TINY, "epochs": 1, "lr": "auto", "tune": False}
    model = train(data, given, out=tmp_path / "m")
    recipe = preset_settings(None, given, classes=len(data.class_names))
    assert recipe.lr is None and recipe.n_neighbours == TINY["n_neighbours"]
    settled = {"lr": usual_rate(recipe, frozen=False), "freeze": False}
    assert model.info["settings"] == recipe.to_dict() | settled
