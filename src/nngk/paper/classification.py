"""Tables 3 and 4 and the figures of classification: softmax against kernels with the same network."""

from dataclasses import replace

from nngk.paper.presets import classify_rates, classify_settings
from nngk.paper.trial import Experiment, Trial, View

NETWORKS = {"alexnet": "AlexNet", "vgg16": "VGG16", "resnet50": "ResNet50"}
CLASSES = {"cub200": 200, "flowers102": 102, "cars196": 196, "leafsnap": 184}
DATASETS = {"flowers102": "Oxford 102 Flowers", "cars196": "Stanford Cars196", "leafsnap": "Leafsnap Field"}
LOSSES = ("softmax", "nngk")
EXAMPLES = (2, 4, 8, 12, 16, 0)  # a class has about 24 once validation images are taken; 0: all of them
NEIGHBOURS = (5, 10, 25, 50, 100, 200, 400)


def classify_trial(preset: str, dataset: str, network: str, loss: str = "nngk", variant: str = "") -> Trial:
    """A classification of a whole dataset."""
    rates = classify_rates(preset, loss)
    return Trial(dataset, network, classify_settings(preset, network, loss, CLASSES[dataset]), variant, rates)


def _architectures(preset: str, network: str) -> list[Trial]:
    return [classify_trial(preset, "cub200", each, loss, name) for each, name in NETWORKS.items() for loss in LOSSES]


def _fine_grained(preset: str, network: str) -> list[Trial]:
    trials = [
        classify_trial(preset, dataset, network, loss, name) for dataset, name in DATASETS.items() for loss in LOSSES
    ]
    # What the learned weights add is a claim of its own, and these are the datasets a reader has at hand.
    for trial in [trial for trial in trials if trial.settings.loss == "nngk"]:
        fixed = replace(trial.settings, learn_weights=False)
        trials.append(replace(trial, settings=fixed, variant=f"{trial.variant}, weights fixed at one"))
    return trials


def _examples(preset: str, network: str) -> list[Trial]:
    return [
        replace(classify_trial(preset, "cub200", network, loss, "all" if count == 0 else str(count)), examples=count)
        for count in EXAMPLES
        for loss in LOSSES
    ]


def _neighbours(preset: str, network: str) -> list[Trial]:
    trial = classify_trial(preset, "cub200", network)
    # One learning rate for the whole curve: its points differ by the length of the lists alone.
    return [
        replace(trial, settings=replace(trial.settings, n_neighbours=count), variant=str(count), rates=trial.rates[1:2])
        for count in NEIGHBOURS
    ]


ARCHITECTURES = Experiment(
    "birds-architectures",
    "Three networks on birds",
    "Table 3",
    "Classification of all 200 species, images cropped to their boxes; softmax and kernels on the same network.",
    _architectures,
    View("losses"),
)
FINE_GRAINED = Experiment(
    "fine-grained",
    "Flowers, cars and leaves",
    "Table 4",
    "Classification with the standard splits (Cars: 30% of the training images validate; Leafsnap: 50/20/30).",
    _fine_grained,
    View("losses"),
    "resnet50",
)
EXAMPLES_PER_CLASS = Experiment(
    "examples-per-class",
    "Training images a class",
    "Figure 3",
    "How accuracy on birds falls when training images are scarce: the kernels' lead is largest there.",
    _examples,
    View("curves", ("accuracy",), "examples", "training images a class"),
    "vgg16",
)
NEIGHBOURHOOD = Experiment(
    "neighbours",
    "Neighbourhood size",
    "Supplement, Figure 4a",
    "Accuracy on birds against the number of neighbours that training considers: too short lists go stale.",
    _neighbours,
    View("curves", ("accuracy",), "variant", "neighbours"),
    "vgg16",
)
