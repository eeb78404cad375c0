"""Several ranks give what one process gives: losses, gradients, bank, lists, θ, σ and metrics."""

import numpy as np
import pytest
import torch

from nngk.data import Augmentation, read_images
from nngk.ranks import ALONE
from nngk.training import loop
from runs import make_run, settings
from shapes import TINY, write_shapes
from together import together
from together_work import computing, trained

# AdamW makes much of what rounding leaves of a gradient of zero; SGD shows whether the gradients are the same.
BASE = {**TINY, "epochs": 3, "val_fraction": 0.25, "test_fraction": 0.25, "update_interval": "2 steps", "threads": 1}
BASE |= {"optimiser": "sgd", "lr": 0.02}
VARIANTS = {
    "lists, learned sigma": {"sigma": "learned"},
    "lists with centres dropped, balanced batches, metric": {
        "task": "metric",
        "drop_centres": 0.5,
        "per_class": 2,
        "batch_size": 4,
    },
    "all centres": {"n_neighbours": 0},
    "fanng": {"search": "fanng"},
    "sharded": {"bank": "sharded", "sigma": "learned"},
    "sharded, fanng": {"bank": "sharded", "search": "fanng"},
    "sharded, few neighbours, centres dropped, two guaranteed": {
        "bank": "sharded",
        "n_neighbours": 1,
        "guaranteed": 2,
        "drop_centres": 0.3,
    },
    "sharded, frozen, sigma by validation": {"bank": "sharded", "freeze": True, "sigma": "validation", "lr": 1e-2},
    "refreshed in the background": {"background": True, "update_interval": "1 steps", "sigma": "learned"},
    "sharded, refreshed in the background": {"bank": "sharded", "background": True, "update_interval": "1 steps"},
    "network shared out": {"shard_network": True, "sigma": "learned", "embedding_start": "discriminant"},
    "network and bank shared out, clipped": {"shard_network": True, "bank": "sharded", "clip": 0.5},
    "frozen": {"freeze": True, "lr": 1e-2},
    "a batch smaller than the ranks": {"batch_size": 2},
    "softmax": {"loss": "softmax"},
    "second generation": {"task": "metric", "teacher": "TEACHER"},
    "triplets": {"loss": "triplet-semihard"},
    "without clipping, sigma by validation": {"clip": 0.0, "sigma": "validation"},
    "adamw": {"optimiser": "adamw", "lr": 1e-3},
    "sharded, adamw": {"bank": "sharded", "optimiser": "adamw", "lr": 1e-3},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_shapes(tmp_path_factory.mktemp("shapes"), ("disc", "frame", "cross", "stripes"), count=9)


CLOSE = {"float32": 1e-5, "float64": 1e-7}  # centres are float32 in both, and may round to a neighbouring number


def require_equal(found, alone, close):
    for name, expected in alone.items():
        assert len(found[name]) == len(expected), name
        for one, other in zip(found[name], expected):
            np.testing.assert_allclose(one, other, rtol=0, atol=close, err_msg=name)


def compare(count, photos, tmp_path, kind="float32", **changes):
    values = BASE | changes
    alone = trained(photos, tmp_path / "alone", values, kind)
    for found in together(count, trained, photos, tmp_path / "ranks", values, kind):
        require_equal(found, alone, CLOSE[kind])
    assert np.ptp(alone["loss"]) > 0
    assert any(alone["staleness"]) == bool(changes.get("background"))


@pytest.mark.thorough
def test_a_process_that_is_alone_talks_to_nobody(photos, tmp_path, monkeypatch):
    """What one process does is what it did before there could be several: it sends nothing and wraps nothing."""
    monkeypatch.setattr("nngk.ranks.dist", None)
    for name in ("DistributedDataParallel", "dist", "rendezvous"):
        monkeypatch.setattr(f"nngk.training.distributed.{name}", None)
    for name, value in {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}.items():  # as torchrun starts one rank
        monkeypatch.setenv(name, value)
    table = read_images(photos)
    run = make_run(table, tmp_path / "run", **BASE | {"bank": "sharded"})
    assert run.stepping is run.trainee and not run.bank.partial and run.ranks is ALONE
    model = loop.train(table, settings(**BASE), out=tmp_path / "model")
    assert len(model.centres) and not ALONE.traffic.sent


@pytest.mark.parametrize("crop", ["resized", "random"])
def test_an_image_has_the_same_luck_in_a_part_as_in_the_whole_batch(crop):
    augment = Augmentation(size=8, crop=crop)
    batch = torch.randint(0, 256, (7, 3, 12, 14), dtype=torch.uint8)
    whole = augment(batch, torch.Generator().manual_seed(3))
    parts = [augment(batch[a:b], torch.Generator().manual_seed(3), (a, 7)) for a, b in ((0, 3), (3, 6), (6, 7))]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.thorough
def test_two_ranks_give_what_one_process_gives(photos, tmp_path):
    compare(2, photos, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLOSE)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_way_of_training_is_shared_out(count, variant, kind, photos, tmp_path, monkeypatch):
    if kind == "float64" and VARIANTS[variant].get("freeze"):
        pytest.skip("features of a frozen network are kept in float32")
    if "teacher" in VARIANTS[variant]:
        with computing(kind):
            loop.train(photos, settings(**BASE | {"task": "metric"}), out=tmp_path / "TEACHER")
        monkeypatch.chdir(tmp_path)
    compare(count, photos, tmp_path, kind, **VARIANTS[variant])
