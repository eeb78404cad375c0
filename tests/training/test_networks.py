"""One epoch of each of the paper's networks through the ordinary loop, at a reduced size, with random weights."""

import pytest

from nngk.training.loop import train
from nngk.training.settings import Settings
from shapes import write_shapes

SLOW = ("alexnet", "vgg16", "googlenet", "resnet50-v1")
NETWORKS = ["googlenet-bvlc", "resnet50"]
NETWORKS += [pytest.param(name, marks=pytest.mark.slow) for name in SLOW]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.filterwarnings("ignore:.*gives a vector, not a map")
@pytest.mark.thorough
def test_an_epoch(network, tmp_path):
    folder = write_shapes(tmp_path / "shapes", count=6)
    settings = Settings(
        network=network,
        weights="random",
        dim=16,
        crop_size=64,
        batch_size=4,
        epochs=1,
        optimiser="sgd",
        pool="avg",
        lr=1e-4,
        hold_out=True,
    )
    model = train(folder, settings, out=tmp_path / "model")
    assert model.network.config["name"] == network and model.centres.shape[1] == 16
    assert model.centres.isfinite().all()
    assert 0 <= model.info["test"]["accuracy"] <= 1
