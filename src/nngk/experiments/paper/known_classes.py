"""Tables 3 and 4 and the figures of classification: softmax against kernels with the same network."""

from dataclasses import replace

from nngk.experiments.paper.trial import Experiment, Trial, View
from nngk.training.presets import FEWEST_DIMENSIONS, classify_rates, classify_settings, of_family

NETWORKS = {"alexnet": "AlexNet", "vgg16": "VGG16", "resnet50": "ResNet50"}
CLASSES = {"cub200": 200, "flowers102": 102, "cars196": 196, "leafsnap": 184}
DATASETS = {"flowers102": "Oxford 102 Flowers", "cars196": "Stanford Cars196", "leafsnap": "Leafsnap Field"}
LOSSES = ("softmax", "nngk")
EXAMPLES = (2, 4, 8, 12, 16, 0)  # per class, which has about 24 after the validation images are taken; 0: all
STEPS = 750  # about as many for every point of our curves, whatever its number of images
# The rate of all points of a loss's curve, chosen from three on validation images: GoogLeNet's on birds with all of the
# training images, ResNet50's on Flowers (results/fine-grained.csv), which serve the networks that have none.
CURVE_RATES = {"googlenet": {"softmax": 3e-4, "nngk": 1e-4}, "resnet50": {"softmax": 3e-5, "nngk": 1e-4}}
NEIGHBOURS = (5, 10, 25, 50, 100, 200, 400)


def classify_trial(preset: str, dataset: str, network: str, loss: str = "nngk", variant: str = "") -> Trial:
    """Return the trial that classifies a whole dataset."""
    rates = classify_rates(preset, loss)
    settings = classify_settings(preset, network, loss, CLASSES[dataset])
    if preset == "frozen":  # as the published rows were measured, before features were dropped
        dim = max(CLASSES[dataset] - 1, FEWEST_DIMENSIONS) if settings.dim else None
        settings = replace(settings, dropout=0.0, epochs=30, lr=1e-3, dim=dim)
    return Trial(dataset, network, settings, variant, rates)


def _architectures(preset: str, network: str) -> list[Trial]:
    return [classify_trial(preset, "cub200", each, loss, name) for each, name in NETWORKS.items() for loss in LOSSES]


def _fine_grained(preset: str, network: str) -> list[Trial]:
    trials = [
        classify_trial(preset, dataset, network, loss, name) for dataset, name in DATASETS.items() for loss in LOSSES
    ]
    # What the learned weights add is a claim of its own, and these are the datasets a reader has at hand.
    for trial in [trial for trial in trials if trial.settings.loss == "nngk"]:
        if preset == "best":  # how much of a lead is the start's, and not the loss's
            like, rates = replace(trial.settings, loss="softmax"), classify_rates(preset, "softmax")
            started = f"{trial.variant}, softmax with our start"
            trials.append(replace(trial, settings=like, rates=rates, variant=started))
        fixed = replace(trial.settings, learn_weights=False)
        trials.append(replace(trial, settings=fixed, variant=f"{trial.variant}, weights fixed at one"))
    return trials


def _examples(preset: str, network: str) -> list[Trial]:
    trials = [
        replace(curve_trial(preset, network, count, loss), variant=str(count or "all"), examples=count)
        for count in EXAMPLES
        for loss in LOSSES
    ]
    if preset == "frozen":  # where a run takes seconds, every point of both losses chooses its rate
        trials = [replace(t, rates=classify_rates(preset, t.settings.loss)) for t in trials]
    return trials


def _neighbours(preset: str, network: str) -> list[Trial]:
    trial = curve_trial(preset, network)
    return [
        replace(trial, settings=replace(trial.settings, n_neighbours=count), variant=str(count)) for count in NEIGHBOURS
    ]


def curve_trial(preset: str, network: str, examples: int = 0, loss: str = "nngk") -> Trial:
    """Return the trial of one point of a curve on birds, with one learning rate for the whole curve.

    Our recipe gives every point about as many steps; the same number of epochs would be few steps for few images.
    """
    trial = classify_trial(preset, "cub200", network, loss)
    if preset == "paper":
        return trial
    images = CLASSES["cub200"] * (examples or 24)
    epochs = min(40, max(10, STEPS * trial.settings.batch_size // images))
    rate = trial.rates[1]
    if preset == "best":
        rate = of_family(CURVE_RATES, network, CURVE_RATES["resnet50"])[loss]
    return replace(trial, settings=replace(trial.settings, epochs=epochs), rates=(rate,))


ARCHITECTURES = Experiment(
    "birds-architectures",
    "Three networks on birds",
    "Table 3",
    "Classification of all 200 species, images cropped to their boxes; softmax and kernels on the same network. "
    "A network is run where its ImageNet weights are at hand: see `--weights`.",
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
    "Training images per class",
    "Figure 3",
    "How accuracy on birds falls when training images are scarce: the kernels' lead is largest there.",
    _examples,
    View("curves", ("accuracy",), "examples", "training images per class"),
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
