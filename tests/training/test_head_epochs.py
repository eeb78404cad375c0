"""``head_epochs``: the embedding layer and what the loss learns begin alone."""

import pytest
import torch

from nngk.training.loop import train_epoch
from nngk.training.tune import _copy
from runs import make_run


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
@pytest.mark.parametrize("loss", ["nngk", "proxy-anchor"])
def test_the_rest_of_the_network_waits(loss, optimiser, data, tmp_path):
    how = {"epochs": 2, "head_epochs": 1, "optimiser": optimiser, "weight_decay": 0.1, "lr": 1e-3, "freeze": False}
    run = make_run(data, tmp_path / "run", loss=loss, task="metric", val_fraction=0.25, test_fraction=0.25, **how)
    run.begin()
    backbone, head = run.network.backbone_parameters(), run.network.embedding_parameters()
    for changes in (False, True):
        before = [[p.detach().clone() for p in part] for part in (backbone, head)]
        train_epoch(run, lambda: False, 0.0)
        moved = [
            any(not torch.equal(old, new) for old, new in zip(olds, part))
            for olds, part in zip(before, (backbone, head))
        ]
        assert moved == [changes, True]
        # The optimiser has seen nothing of what waits, so that its first step is as of a new one.
        assert any(p in run.optimiser.state for p in backbone) == changes
        run.at.epoch, run.at.batch = run.at.epoch + 1, 0


def test_short_runs_have_a_course_of_the_same_shape(data, tmp_path):
    how = {"epochs": 30, "head_epochs": 6, "schedule": "steps", "step_epochs": 9, "freeze": False}
    short = _copy(make_run(data, tmp_path / "run", **how), 1e-3).settings
    assert (short.epochs, short.head_epochs, short.step_epochs) == (10, 2, 3)
