"""One loop for both tasks: what goes into the bank, σ in its four ways, frozen networks, early stopping, the log."""

import csv
import json
import math
import os

import numpy as np
import pytest
import torch

from nngk.bank import CentreBank
from nngk.data import evaluation, read_images, split
from nngk.errors import InputError
from nngk.kernel import squared_distances
from nngk.loss import GaussianKernelLoss
from nngk.model import Model
from nngk.search import Exact
from nngk.sigma import leave_one_out_sigma
from nngk.training import loop, step
from nngk.training.config import Settings
from nngk.training.loop import train
from nngk.training.run import Run
from shapes import TINY, write_shapes


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return read_images(write_shapes(tmp_path_factory.mktemp("shapes"), ("disc", "frame", "cross", "stripes"), count=10))


def settings(**changes):
    return Settings(**{**TINY, "patience": 0, **changes})


def make_run(data, folder, **changes):
    s = settings(**changes)
    folder.mkdir()
    return Run(split(data, s.task, s.val_fraction, s.test_fraction, s.seed), s, folder)


def log_of(out):
    return [json.loads(line) for line in (out / "run" / "log.jsonl").read_text().splitlines()]


# -- the bank


@pytest.mark.parametrize("background", [False, True])
def test_neither_dropout_nor_augmentation_nor_stale_weights_in_the_bank(background, data, tmp_path):
    model = train(data, settings(dropout=0.5, background=background, update_interval="2 steps"), out=tmp_path / "m")
    torch.testing.assert_close(model.embed(model.sources), model.centres, rtol=1e-4, atol=1e-5)


def test_training_steps_do_have_dropout_and_augmentation(data, tmp_path):
    run = make_run(data, tmp_path / "run", dropout=0.5)
    seen = []
    run.trainee.register_forward_hook(lambda module, inputs, output: seen.append((module.training, inputs[0])))
    loop.train_epoch(run, lambda: False, 0.0)
    trained = [x for training, x in seen if training]
    assert len(trained) == run.steps_per_epoch
    plain = run.parts.plain(run.parts.train.source.batch(run.index_batches(0)[0]), None)
    assert not torch.equal(trained[0], plain)
    # The bank's images are the plain ones, in evaluation mode.
    everything = run.parts.plain(run.parts.train.source.batch(range(len(run.bank))), None)
    assert torch.equal(torch.cat([x for training, x in seen if not training]), everything)


def test_background_refresh_in_the_loop(data, tmp_path):
    out = tmp_path / "m"
    model = train(data, settings(background=True, epochs=4), out=out)
    rows = log_of(out)
    assert all({"staleness", "lonely", "refresh_seconds", "bank_age"} <= row.keys() for row in rows)
    assert all(0 <= row["staleness"] <= row["step"] for row in rows)
    assert model.info["test"]["accuracy"] >= 0.75


def test_write_back_changes_the_centres_between_refreshes(data, tmp_path):
    kept, written = (
        make_run(data, tmp_path / name, write_back=name == "written", update_interval=5) for name in ("kept", "written")
    )
    for run in (kept, written):
        run.refresher.before_step(0, run.trainee)
        run.first = run.bank.centres.clone()
        loop.train_epoch(run, lambda: False, 0.0)
    assert torch.equal(kept.bank.centres, kept.first)
    touched = torch.cat(written.index_batches(0)).unique()
    changed = (written.bank.centres != written.first).any(1)
    assert changed[touched].all() and int(changed.sum()) == len(touched)


@pytest.mark.parametrize(("interval", "steps"), [(1, [0, 3, 6]), (2, [0, 6]), ("2 steps", [0, 2, 4, 6])])
def test_update_interval(interval, steps, data, tmp_path):
    run = make_run(data, tmp_path / "run", update_interval=interval, epochs=3)
    assert run.steps_per_epoch == 3
    for epoch in range(3):
        run.at.epoch, run.at.batch = epoch, 0
        loop.train_epoch(run, lambda: False, 0.0)
    assert [r.snapshot_step for r in run.refresher.history if r.snapshot_step <= 6] == steps


# -- sigma


def test_fixed_sigma(data, tmp_path):
    train(data, settings(sigma=0.37), out=tmp_path / "m")
    assert [row["sigma"] for row in log_of(tmp_path / "m")] == [0.37, 0.37]


def test_auto_sigma_is_a_multiple_of_the_leave_one_out_optimum(data, tmp_path):
    run = make_run(data, tmp_path / "run")
    run.refresher.before_step(0, run.trainee)
    expected = 1.5 * leave_one_out_sigma(run.bank)
    train(data, settings(), out=tmp_path / "m")
    assert [row["sigma"] for row in log_of(tmp_path / "m")] == pytest.approx([expected] * 2, rel=1e-5)
    train(data, settings(sigma_factor=3.0, epochs=1), out=tmp_path / "m3")
    assert log_of(tmp_path / "m3")[0]["sigma"] == pytest.approx(2 * expected, rel=1e-5)


@pytest.mark.parametrize("task", ["classify", "metric"])
def test_validation_sigma_minimises_the_validation_loss(task, data, tmp_path):
    fractions = {"val_fraction": 0.5, "test_fraction": 0.0} if task == "metric" else {}
    run = make_run(data, tmp_path / "run", task=task, sigma="validation", **fractions)
    run.refresher.before_step(0, run.trainee)
    x, labels = run.embed(run.parts.val).double(), run.parts.val.labels
    if task == "metric":
        d, neighbours = Exact(x).all_neighbours(run.bank.n_neighbours)
        same = labels[neighbours] == labels[:, None]
    else:
        d, neighbours = Exact(run.bank.centres.double()).search(x, run.bank.n_neighbours)
        same = run.bank.labels[neighbours] == labels[:, None]

    def loss(sigma):
        values = -d / (2 * sigma**2)
        each = values.logsumexp(1) - values.masked_fill(~same, -math.inf).logsumexp(1)
        return float(each[same.any(1)].mean())

    step.first_sigma(run, run.objective)
    grid = [run.objective.sigma * f for f in np.geomspace(0.2, 1.0, 200)]
    assert loss(run.objective.sigma) <= min(map(loss, grid)) + 1e-5
    if run.objective.sigma < float(d.max().sqrt()):
        assert loss(run.objective.sigma) <= min(loss(run.objective.sigma * f) for f in (1.05, 1.2, 1.5)) + 1e-5


def test_learned_sigma_moves(data, tmp_path):
    train(data, settings(sigma="learned", epochs=3), out=tmp_path / "m")
    sigmas = [row["sigma"] for row in log_of(tmp_path / "m")]
    assert len(set(sigmas)) == 3 and all(s > 0 for s in sigmas)


def test_weights_are_learned_unless_told_otherwise(data, tmp_path):
    learned = train(data, settings(epochs=1), out=tmp_path / "learned")
    fixed = train(data, settings(epochs=1, learn_weights=False), out=tmp_path / "fixed")
    assert learned.theta.abs().max() > 0 and (fixed.theta == 0).all()


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


# -- frozen networks


@pytest.mark.parametrize("pool", ["avg", "gem"])
def test_cached_features_equal_the_frozen_network(pool, data, tmp_path):
    run = make_run(data, tmp_path / "run", freeze=True, pool=pool, dropout=0.3)
    before = {k: v.clone() for k, v in run.network.backbone.state_dict().items()}
    spec = run.network.input
    paths = [str(p) for p in run.split.train.paths]

    def slow():
        from nngk.data import squares

        network = run.network.eval()
        with torch.no_grad():
            out = network(evaluation(spec.size, spec.mean, spec.std)(squares(paths, spec.resize)))
        network.train()
        return out

    torch.testing.assert_close(run.embed(run.parts.train), slow(), rtol=1e-5, atol=1e-6)
    loop.train_epoch(run, lambda: False, 0.0)
    torch.testing.assert_close(run.embed(run.parts.train), slow(), rtol=1e-5, atol=1e-6)
    after = run.network.backbone.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_frozen_model_answers_from_images_as_it_was_trained_on_features(data, tmp_path):
    model = train(data, settings(freeze=True), out=tmp_path / "m")
    assert model.info["frozen"]
    torch.testing.assert_close(model.embed(model.sources), model.centres, rtol=1e-4, atol=1e-5)


def test_features_of_an_earlier_attempt_are_not_mistaken_for_ones_own(data, tmp_path):
    """Same folder, no checkpoint yet, then other pooling, other weights, other images."""
    attempts = {"first": {}, "pool": {"pool": "max"}, "seed": {"seed": 1}, "crop": {"crop_size": 12}}
    folder = tmp_path / "shared"
    folder.mkdir()
    for name, changes in attempts.items():
        s = settings(freeze=True, **changes)
        parts = split(data, s.task, s.val_fraction, s.test_fraction, 0)
        shared, alone = Run(parts, s, folder), Run(parts, s, _made(tmp_path / name))
        assert torch.equal(shared.parts.train.source.rows, alone.parts.train.source.rows), name
    files = sorted(folder.glob("features-*.safetensors"))
    assert len(files) == 12  # three parts of each attempt
    before = [file.stat().st_mtime_ns for file in files]
    Run(parts, s, folder)
    assert [file.stat().st_mtime_ns for file in files] == before  # and are used where they are one's own
    for file in files:
        file.write_bytes(b"cut short")
    assert torch.equal(Run(parts, s, folder).parts.train.source.rows, alone.parts.train.source.rows)


def test_runs_with_a_shared_cache_compute_features_once(data, tmp_path, monkeypatch):
    s = settings(freeze=True, cache=str(tmp_path / "cache"))
    train(data, s, out=tmp_path / "first")
    monkeypatch.setattr("nngk.training.parts.embed", None)  # nothing is left to compute
    parts = split(data, s.task, s.val_fraction, s.test_fraction, s.seed)
    assert len(Run(parts, s, _made(tmp_path / "second")).parts.train.source.rows) == len(parts.train)


def _made(folder):
    folder.mkdir()
    return folder


def test_nothing_to_train_is_said(data, tmp_path):
    with pytest.raises(InputError, match="nothing to train"):
        train(data, settings(freeze=True, dim=0, learn_weights=False), out=tmp_path / "m")


def test_no_embedding_layer(data, tmp_path):
    model = train(data, settings(dim=0, epochs=1), out=tmp_path / "m")
    assert model.network.dim == model.centres.shape[1] == 128


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


def test_familiar_are_the_densities_at_images_of_known_classes(data, tmp_path):
    """At validation images; without any, at every training image without its own kernel. By plain search."""

    def density(x, model, others):
        squared = squared_distances(x, model.centres, others)
        return (model.theta[others] - squared / (2 * model.sigma**2)).logsumexp(1).sort().values

    s = settings(n_neighbours=0, epochs=1)
    model = train(data, s, out=tmp_path / "m")
    val = split(data, s.task, s.val_fraction, s.test_fraction, s.seed).val
    everyone = torch.arange(len(model.centres)).repeat(len(val), 1)
    expected = density(model.embed(val.paths), model, everyone)
    torch.testing.assert_close(model.familiar, expected, rtol=1e-3, atol=1e-3)
    model = train(data, settings(n_neighbours=0, epochs=1, val_fraction=0.0), out=tmp_path / "n")
    m = len(model.centres)
    others = torch.tensor([[j for j in range(m) if j != i] for i in range(m)])
    torch.testing.assert_close(model.familiar, density(model.centres, model, others), rtol=1e-4, atol=1e-4)


def test_the_saved_model_is_the_returned_one(data, tmp_path):
    model = train(data, settings(), out=tmp_path / "m")
    loaded = Model.load(tmp_path / "m")
    assert torch.equal(loaded.centres, model.centres) and loaded.info == model.info


# -- the start of the embedding layer


@pytest.mark.parametrize("freeze", [False, True])
def test_a_run_begins_with_the_discriminant_of_its_features(data, tmp_path, freeze):
    run = make_run(data, tmp_path / "run", embedding_start="discriminant", freeze=freeze, layer_norm=True)
    before = run.network.head.linear.weight.detach().clone()
    run.begin()
    assert not torch.equal(run.network.head.linear.weight, before)
    raw = run.network.head.linear(parts_features(run))
    torch.testing.assert_close(raw.mean(0), torch.zeros(8), atol=1e-4, rtol=0)  # centred on the training images
    other = make_run(data, tmp_path / "other", freeze=freeze, layer_norm=True)
    untouched = other.network.head.linear.weight.detach().clone()
    other.begin()
    assert torch.equal(other.network.head.linear.weight, untouched)


def test_a_run_may_begin_with_a_projection_that_keeps_distances(data, tmp_path):
    run = make_run(data, tmp_path / "run", embedding_start="projection")
    run.begin()
    linear = run.network.head.linear
    torch.testing.assert_close(
        linear.weight @ linear.weight.T, torch.eye(8) * linear.in_features / 8, atol=1e-5, rtol=1e-5
    )


def parts_features(run):
    """What the embedding layer reads of the training images."""
    images = run.parts.plain(run.parts.train.source.batch(torch.arange(len(run.parts.train))), None)
    head = run.network.eval().head
    with torch.no_grad():
        pooled = images if run.frozen else head.pool(run.network.backbone(images))
        return head.layer_norm(pooled)


def test_training_crops_may_have_a_size_of_their_own(data, tmp_path):
    run = make_run(data, tmp_path / "run", train_crop_size=12)
    images = run.parts.train.source.batch(torch.arange(3))
    assert run.parts.augment(images, None).shape[-1] == 12 and run.parts.plain(images, None).shape[-1] == 16


@pytest.mark.parametrize("freeze", [False, True])
def test_trained_wide_and_kept_narrow(data, tmp_path, freeze):
    model = train(data, settings(dim=3, wide=10, freeze=freeze), out=tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert model.network.dim == again.network.dim == again.centres.shape[1] == 3
    assert torch.equal(again.theta, model.theta) and model.theta.abs().sum() > 0  # what the centres learned is kept
    image = np.zeros((16, 16, 3), dtype=np.uint8)
    assert model.classify(image).label == again.classify(image).label


def test_as_wide_as_it_is_kept_is_as_without(data, tmp_path):
    same, plain = (train(data, settings(dim=8, wide=wide), out=tmp_path / str(wide)) for wide in (8, None))
    assert torch.equal(same.centres, plain.centres)


def test_what_cannot_be_reduced_is_refused(data, tmp_path):
    with pytest.raises(InputError, match="at least as large"):
        settings(dim=8, wide=4)
    with pytest.raises(InputError, match="cannot be reduced"):
        make_run(data, tmp_path / "run", loss="softmax", dim=3, wide=8)


def test_a_model_is_not_replaced_by_mistake(data, tmp_path):
    model = train(data, settings(), out=tmp_path / "m")
    model.add("extra", [data.paths[0]])
    model.save(tmp_path / "m")
    with pytest.raises(InputError, match=r"holds a model.*--force"):
        train(data, settings(), out=tmp_path / "m")
    assert "extra" in Model.load(tmp_path / "m").class_names
    train(data, settings(), out=tmp_path / "m", force=True)
    assert "extra" not in Model.load(tmp_path / "m").class_names


def test_a_rival_needs_no_bank_before_the_end(data, tmp_path, monkeypatch):
    renewed = []
    real = CentreBank.replace
    monkeypatch.setattr(CentreBank, "replace", lambda *a, **k: renewed.append(1) or real(*a, **k))
    train(data, settings(loss="softmax", epochs=3), out=tmp_path / "m")
    assert len(renewed) == 1


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
