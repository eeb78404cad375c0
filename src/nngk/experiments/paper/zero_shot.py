"""Tables 1 and 2 and the figures of embedding size: retrieval among classes that were not trained."""

from dataclasses import replace
from functools import partial

from nngk.experiments.paper.trial import Experiment, Trial, View
from nngk.training.presets import metric_settings

SIZES = (64, 128, 256, 512, 1024)
RIVALS = ("triplet-semihard", "lifted-structure")
RIVAL_RATES = (1e-5, 2e-5, 4e-5, 1e-4, 2e-4)
# Our recipe was settled on birds. Other data choose their rate and their epochs, up to these, on held-out classes.
OWN_CHOICE = {"cars196": ((4e-5, 1e-4), 20)}
METRICS = ("recall@1", "recall@2", "recall@4", "recall@8", "nmi", "map@r")


def metric_trials(datasets: tuple[str, ...], preset: str, network: str) -> list[Trial]:
    """Return one trial per dataset and embedding size."""
    return [_metric_trial(dataset, preset, network, dim) for dataset in datasets for dim in SIZES]


def _metric_trial(dataset: str, preset: str, network: str, dim: int) -> Trial:
    settings = metric_settings(preset, dim, network)
    if preset == "best" and dataset in OWN_CHOICE:
        rates, epochs = OWN_CHOICE[dataset]
        return Trial(dataset, network, replace(settings, epochs=epochs), rates=rates)
    return Trial(dataset, network, settings, settled=preset != "frozen")


def _dimensions(preset: str, network: str) -> list[Trial]:
    """Return the trials of both datasets, and for our recipe those of the losses that the figure compares with.

    Each of them is trained at its own size, and chooses its rate and its epochs on held-out classes.
    """
    trials = metric_trials(("cub200", "cars196"), preset, network)
    if preset != "best":  # the text says nothing of their settings
        return trials
    rivals = [
        replace(
            trial,
            settings=replace(trial.settings, loss=loss, wide=None, whiten=0.0),
            rates=RIVAL_RATES,
            settled=False,
        )
        for loss in RIVALS
        for trial in trials
    ]
    return trials + rivals


CARS = Experiment(
    "cars-metric",
    "Retrieval of unseen cars",
    "Table 1",
    "The first 98 classes of Stanford Cars196 train, the other 98 are searched among themselves; no bounding boxes.",
    partial(metric_trials, ("cars196",)),
    View("retrieval", METRICS),
    "googlenet",
)
BIRDS = Experiment(
    "birds-metric",
    "Retrieval of unseen birds",
    "Table 2",
    "The first 100 classes of CUB-200-2011 train, the other 100 are searched among themselves; no bounding boxes.",
    partial(metric_trials, ("cub200",)),
    View("retrieval", METRICS),
    "googlenet",
)
DIMENSIONS = Experiment(
    "dimensions",
    "Embedding size",
    "Figure 2",
    "In the paper, more dimensions make retrieval and clustering better; for triplet losses they do not.",
    _dimensions,
    View("curves", ("nmi", "recall@1", "recall@8"), "dim", "dimensions", ("birds-metric", "cars-metric")),
    "googlenet",
)
