"""Frozen networks on cached features, the start of the embedding layer, and embeddings trained wide and kept narrow."""

import numpy as np
import pytest
import torch

from nngk.data import centre_crop, split
from nngk.errors import InputError
from nngk.metrics import evaluate
from nngk.model.model import Model
from nngk.networks.embedding_layer.reduction import reduced
from nngk.training import loop
from nngk.training.build import build_run
from nngk.training.feed import Features
from nngk.training.finish import WHITENINGS, narrow
from nngk.training.loop import train
from nngk.training.settings import left_open
from runs import make_run, settings


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
            out = network(centre_crop(spec.size, spec.mean, spec.std)(squares(paths, spec.resize)))
        network.train()
        return out

    torch.testing.assert_close(run.embed(run.feed.train), slow(), rtol=1e-5, atol=1e-6)
    loop.train_epoch(run, lambda: False, 0.0)
    torch.testing.assert_close(run.embed(run.feed.train), slow(), rtol=1e-5, atol=1e-6)
    after = run.network.backbone.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_frozen_model_answers_from_images_as_it_was_trained_on_features(data, tmp_path):
    model = train(data, settings(freeze=True), out=tmp_path / "m")
    assert model.info["frozen"]
    torch.testing.assert_close(model.embed(model.sources), model.centres, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_features_of_an_earlier_attempt_are_not_mistaken_for_ones_own(data, tmp_path):
    """Same folder, no checkpoint yet, then other pooling, other weights, other images."""
    attempts = {"first": {}, "pool": {"pool": "max"}, "seed": {"seed": 1}, "crop": {"crop_size": 12}}
    folder = tmp_path / "shared"
    folder.mkdir()
    for name, changes in attempts.items():
        s = settings(freeze=True, **changes)
        parts = split(data, s.task, s.val_fraction, s.test_fraction, 0)
        shared, alone = build_run(parts, s, folder), build_run(parts, s, _made(tmp_path / name))
        assert torch.equal(shared.feed.train.source.rows, alone.feed.train.source.rows), name
    files = sorted(folder.glob("features-*.safetensors"))
    assert len(files) == 12  # three parts of each attempt
    before = [file.stat().st_mtime_ns for file in files]
    build_run(parts, s, folder)
    assert [file.stat().st_mtime_ns for file in files] == before  # and are used where they are one's own
    for file in files:
        file.write_bytes(b"cut short")
    assert torch.equal(build_run(parts, s, folder).feed.train.source.rows, alone.feed.train.source.rows)


def test_runs_with_a_shared_cache_compute_features_once(data, tmp_path, monkeypatch):
    s = settings(freeze=True, cache=str(tmp_path / "cache"))
    train(data, s, out=tmp_path / "first")
    monkeypatch.setattr("nngk.training.feed.embed_parts", None)  # nothing is left to compute
    parts = split(data, s.task, s.val_fraction, s.test_fraction, s.seed)
    assert len(build_run(parts, s, _made(tmp_path / "second")).feed.train.source.rows) == len(parts.train)


def _made(folder):
    folder.mkdir()
    return folder


def test_nothing_to_train_is_said(data, tmp_path):
    with pytest.raises(InputError, match="nothing to train"):
        train(data, settings(freeze=True, dim=0, learn_weights=False), out=tmp_path / "m")


def test_no_embedding_layer(data, tmp_path):
    model = train(data, settings(dim=0, epochs=1), out=tmp_path / "m")
    assert model.network.dim == model.centres.shape[1] == 128


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
    images = run.feed.plain(run.feed.train.source.batch(torch.arange(len(run.feed.train))), None)
    head = run.network.eval().head
    with torch.no_grad():
        pooled = images if run.frozen else head.pool(run.network.backbone(images))
        return head.layer_norm(pooled)


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.thorough
def test_trained_wide_and_kept_narrow(data, tmp_path, freeze):
    model = train(data, settings(dim=3, wide=10, freeze=freeze), out=tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert model.network.dim == again.network.dim == again.centres.shape[1] == 3
    assert torch.equal(again.theta, model.theta) and model.theta.abs().sum() > 0  # what the centres learned is kept
    image = np.zeros((16, 16, 3), dtype=np.uint8)
    assert model.classify(image).label == again.classify(image).label


@pytest.mark.thorough
def test_as_wide_as_it_is_kept_is_as_without(data, tmp_path):
    same, plain = (train(data, settings(dim=8, wide=wide), out=tmp_path / str(wide)) for wide in (8, None))
    assert torch.equal(same.centres, plain.centres)


def test_what_cannot_be_reduced_is_refused(data, tmp_path):
    with pytest.raises(InputError, match="at least as large"):
        settings(dim=8, wide=4)
    with pytest.raises(InputError, match="'dim' is none"):
        settings(dim=None, whiten=0.5)
    for changes in ({"wide": 8}, {"whiten": 0.5}):
        with pytest.raises(InputError, match="cannot be reduced"):
            make_run(data, tmp_path / next(iter(changes)), loss="softmax", dim=3, **changes)


@pytest.mark.thorough
def test_what_is_not_reduced_can_be_evened_out(data, tmp_path):
    spreads = []
    for whiten in (0.0, 0.5):
        model = train(data, settings(dim=8, whiten=whiten, normalise=False), out=tmp_path / str(whiten))
        values = torch.linalg.svdvals(model.centres - model.centres.mean(0))
        spreads.append(values[:6] / values[0])
    torch.testing.assert_close(spreads[1], spreads[0].sqrt(), rtol=0.05, atol=0.01)


def test_how_far_to_even_out_is_chosen_on_validation_classes(data, tmp_path):
    run = make_run(
        data, tmp_path / "run", task="metric", dim=8, whiten=None, epochs=1, val_fraction=0.5, test_fraction=0.0
    )
    run.begin()
    features = Features(run.network, run.frozen)
    known, new = (run.embed(part, features) for part in (run.feed.train, run.feed.val))
    scores = []
    for share in WHITENINGS:
        with torch.no_grad():
            x = reduced(run.network.head.linear, known, 8, share)(new)
        found = evaluate(torch.nn.functional.normalize(x), run.feed.val.labels, ks=(1,), nmi_seeds=0)
        scores.append(found["recall@1"] + found["map@r"])
    narrow(run)
    assert run.settings.whiten == WHITENINGS[scores.index(max(scores))]
    assert "whiten" not in left_open(run.settings)  # a last training on everything takes the same share
