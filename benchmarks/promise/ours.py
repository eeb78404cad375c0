"""What 'nngk train' makes of cached features, and what the model that it leaves says of others."""

import tempfile
from pathlib import Path

import torch
from cached import Cached
from torch import Tensor

from nngk import Model
from nngk.data import ImageTable, Split, split
from nngk.model.features import Described, Describer
from nngk.networks.embed import Rows, untransformed
from nngk.training.build import build_run
from nngk.training.everything import run_on_everything
from nngk.training.feed import Examples, Feed
from nngk.training.finish import finish
from nngk.training.loop import train_epoch, train_epochs
from nngk.training.presets import preset_settings
from nngk.training.tune import tuned_rate, use_rate


def trained(data: Cached, seed: int, *, tune: bool = True) -> Model:
    """Return the model that 'nngk train' would make of all but the test images.

    The validation part, or a share of the training images where a dataset has none, chooses the learning rate, the
    epoch and σ. Then everything but the test part is trained on. Without ``tune`` the learning rate is the recipe's.
    """
    device = data.x.device
    given = {"network": data.network, "seed": seed, "device": str(device), "hold_out": False, "amp": False}
    given |= {"weights": "random", "epochs": 2, "dim": 8} if data.quick else {}
    settings = preset_settings("frozen", given, classes=len(data.names))
    tables = split(data.table(), "classify", settings.val_fraction, 0.0, seed)
    tables = Split(tables.train, tables.val, tables.test.select([]))
    examples = [_examples(data, table) for table in tables]
    feed = Feed(*examples, untransformed, untransformed, device)
    with tempfile.TemporaryDirectory() as home:
        run = build_run(tables, settings, Path(home), feed)
        run.begin()
        if tune:
            use_rate(run, tuned_rate(run, train_epoch, never))
        train_epochs(run, never)
        measured = finish(run, 0.0)
        last = run_on_everything(run)
        last.begin()
        train_epochs(last, never)
        return finish(last, 0.0, measured)


def described(model: Model, x: Tensor) -> Described:
    """Return what the network makes of cached features."""
    both = Describer(model.network, pooled=True)
    with torch.inference_mode():
        return both.apart(both(x.to(model.device)))


def never() -> bool:
    return False


def _examples(data: Cached, table: ImageTable) -> Examples:
    rows = torch.tensor([int(path.stem) for path in table.paths], dtype=torch.int64)
    return Examples(Rows(data.x[rows.to(data.x.device)]), torch.as_tensor(table.labels))
