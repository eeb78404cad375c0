"""The losses under the trainer: from a folder to a model, and resumed in the middle of an epoch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from nngk.losses import LOSSES
from nngk.model.model import Model
from nngk.training import loop
from nngk.training.settings import Settings
from runs import stop_after

SETTINGS = Settings(
    task="classify",
    network="small",
    weights="random",
    dim=8,
    epochs=4,
    lr=1e-3,
    flip=False,
    crop="centre",
    resize=16,
    crop_size=16,
    batch_size=12,
    n_neighbours=10,
    test_fraction=0.0,
    val_fraction=0.0,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three classes of stripes, ten noisy images each."""
    home = tmp_path_factory.mktemp("stripes")
    rng = np.random.default_rng(0)
    for label, pattern in enumerate((np.indices((16, 16))[0] % 4 < 2, np.indices((16, 16))[1] % 4 < 2, np.eye(16) > 0)):
        (home / f"class{label}").mkdir()
        for i in range(10):
            pixels = 150 * pattern + 100 * rng.random((16, 16))
            Image.fromarray(pixels.astype(np.uint8)).save(home / f"class{label}" / f"{i}.png")
    return home


IN_THE_SUITE = ("softmax", "smart-mining", "proxy-anchor", "clustering")  # the others take minutes


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in IN_THE_SUITE else pytest.mark.slow) for n in LOSSES if n != "nngk"],
)
@pytest.mark.thorough
def test_stopped_in_an_epoch_and_resumed_is_as_if_it_had_not_been(name, folder, tmp_path, monkeypatch):
    if LOSSES[name].extra:
        pytest.importorskip("pytorch_metric_learning")
    settings = replace(SETTINGS, loss=name)
    whole = loop.train(folder, settings, out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_stop_on_ctrl_c", stop_after(8))  # the third epoch's second batch of three
        with pytest.raises(loop.Interrupted):
            loop.train(folder, settings, out=tmp_path / "cut")
    cut = loop.train(folder, settings, out=tmp_path / "cut", resume=True)
    assert torch.equal(whole.centres, cut.centres)
    for (key, a), b in zip(whole.network.state_dict().items(), cut.network.state_dict().values()):
        assert torch.equal(a, b), key
    # The same kind of model as the kernels leave: it embeds, searches, classifies, and loads again.
    model = Model.load(tmp_path / "whole")
    image = folder / "class1" / "3.png"
    assert model.embed(image).shape == (1, 8)
    assert model.search(image, k=3)[0].distance < 1e-2
    assert model.classify(image).label in model.class_names
    assert (model.softmax is not None) == (name in ("softmax", "normalized-softmax"))
    assert model.network.head.normalise == (name not in ("softmax", "lifted-structure", "n-pairs"))


@pytest.mark.thorough
def test_compare_from_the_command_line(folder, tmp_path):
    from nngk.cli.compare import compare_command

    options = "--task classify --network small --weights random --dim 8 --epochs 1 --batch-size 12 --no-flip"
    arguments = [str(folder), "--losses", "nngk, softmax", "--seeds", "1", "--out", str(tmp_path / "out"), "--quiet"]
    sizes = ["--resize", "16", "--crop-size", "16"]
    result = CliRunner().invoke(compare_command, [*arguments, *options.split(), *sizes], catch_exceptions=False)
    assert result.exit_code == 0
    assert "| softmax |" in result.output
    bad = CliRunner().invoke(compare_command, [*arguments, "--rates", "fast"])
    assert "--rates expects numbers" in str(bad.exception)
