"""The rows of the paper's experiments: which are the same run, and which are done."""

from pathlib import Path

import pytest

from nngk.experiments.paper.contents import find_experiment
from nngk.experiments.paper.results import trial_key
from nngk.experiments.paper.runner import measured_settings
from nngk.experiments.record import read_rows

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "preset", "network", "given"),
    [
        ("birds-metric", "paper", "googlenet-bvlc", "googlenet_bvlc_fp16.safetensors"),
        ("birds-metric", "best", "googlenet-bvlc", "googlenet_bvlc_fp16.safetensors"),
        ("neighbours", "best", "googlenet-bvlc", "googlenet_bvlc_fp16.safetensors"),
        ("neighbours", "frozen", "efficientnet-lite0", "imagenet"),
    ],
)
def test_published_rows_keep_their_keys(name, preset, network, given):
    """A setting that comes, goes or changes its default must not make finished runs look unfinished."""
    keys = {row["key"] for row in read_rows(ROOT / "results" / f"{name}.csv")}
    for trial in find_experiment(name).trials(preset, network):
        assert trial_key(trial, measured_settings(trial.settings, network, given)) in keys, trial
