"""Several ranks give what one process gives: losses, gradients, bank, lists, θ, σ and metrics."""

import numpy as np
import pytest

from shapes import TINY, write_shapes
from together import together
from together_work import trained

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
    "sharded, few neighbours, centres dropped, two guaranteed": {
        "bank": "sharded",
        "n_neighbours": 1,
        "guaranteed": 2,
        "drop_centres": 0.3,
    },
    "sharded, frozen, sigma by validation": {"bank": "sharded", "freeze": True, "sigma": "validation", "lr": 1e-2},
    "frozen": {"freeze": True, "lr": 1e-2},
    "a batch smaller than the ranks": {"batch_size": 2},
    "softmax": {"loss": "softmax"},
    "triplets": {"loss": "triplet-semihard"},
    "without clipping, sigma by validation": {"clip": 0.0, "sigma": "validation"},
    "adamw": {"optimiser": "adamw", "lr": 1e-3},
    "sharded, adamw": {"bank": "sharded", "optimiser": "adamw", "lr": 1e-3},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_shapes(tmp_path_factory.mktemp("shapes"), ("disc", "frame", "cross", "stripes"), count=9)


def require_equal(found, alone):
    for name, expected in alone.items():
        assert len(found[name]) == len(expected), name
        for one, other in zip(found[name], expected):
            # Validation finds a σ for its loss to a thousandth; rounding decides which.
            atol = 1e-3 if name == "scores" else 1e-5
            np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=name)


def compare(count, photos, tmp_path, **changes):
    values = BASE | changes
    alone = trained(photos, tmp_path / "alone", values)
    for found in together(count, trained, photos, tmp_path / "ranks", values):
        require_equal(found, alone)
    assert np.ptp(alone["loss"]) > 0


@pytest.mark.thorough
def test_two_ranks_give_what_one_process_gives(photos, tmp_path):
    compare(2, photos, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_way_of_training_is_shared_out(count, variant, photos, tmp_path):
    compare(count, photos, tmp_path, **VARIANTS[variant])
