"""Presets: named sets of settings that the command line, the experiments and the benchmarks share.

docs/recipe.md explains how they were found, and how open passages of the paper were read; the reason for a value stands
beside it here.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from nngk import defaults
from nngk.errors import InputError
from nngk.training.settings import Settings

T = TypeVar("T")
PRESETS = {
    "best": "our recipe, which trains the whole network; the default on a GPU",
    "frozen": "our recipe on a frozen network; the default on a CPU",
    "paper": "the paper's settings, as far as its text gives them",
    "quick": "a tiny network and two epochs, to try that everything works",
}
MEASURED = ("paper", "best", "frozen")  # those that experiments report on
BATCH = 20  # the paper's
BASE_RATE = 1e-5  # the paper's, for a loss that is the sum over a batch

PAPER = Settings(
    pool="avg",  # GoogLeNet's and ResNet's own
    layers=1,
    layer_norm=False,
    normalise=False,
    embedding_start="projection",  # a random layer that keeps distances: only then does one σ suit every size
    freeze=False,
    hold_out=True,
    squash=True,  # 256 × 256, in the text
    crop="random",
    n_neighbours=100,
    guaranteed=0,  # an example without a same-class neighbour has no gradient
    sigma_factor=1.5,  # of no effect where σ is given
    weight_lr_factor=10.0,  # like every layer that does not come from ImageNet
    update_interval=10,
    epochs=30,  # not in the text: where validation classes stop gaining
    batch_size=BATCH,
    optimiser="sgd",
    # Our loss is the mean over a batch: for SGD the sum at BASE_RATE is the mean at 20 times that rate, and weight
    # decay, which the rate multiplies too, is divided by as much.
    lr=BASE_RATE * BATCH,
    weight_decay=2e-4 / BATCH,
    embedding_lr_factor=1.0,  # ten times, as in the papers it compares with, is no better: see docs/recipe.md
    momentum=0.0,  # none in the text; with 0.9 the embedding leaves its stale centres behind
    warmup=0.0,
    schedule="constant",
    clip=0.0,
    amp=False,
)

# For classes never seen; what is not said here is the default of the settings.
BEST = Settings(
    pool="max",
    layers=1,
    freeze=False,
    crop_scale=0.08,
    sigma_factor=1.5,
    drop_centres=0.9,
    embedding_start="discriminant",
    epochs=10,
    batch_size=96,
    per_class=4,
    lr=2e-5,
)


# Pictures are read larger than trained with: objects in resized crops are larger than in whole pictures.
LARGER: dict[str, Any] = {"resize": 320, "crop_size": 288, "train_crop_size": 224}
# What else serves unseen classes, by network: see docs/recipe.md.
OWN: dict[str, dict[str, Any]] = {
    "googlenet": {"layers": 3, "wide": 2048, "whiten": 0.2, "lr": 4e-5},
    "resnet50": {"wide": 2048, "resize": 400, "crop_size": 352, "train_crop_size": 224},
}


# The network is not trained: what is left to learn is small, learns fast, and sees no crops.
FROZEN: dict[str, Any] = {"freeze": True, "layers": None, "lr": 1e-3, "weight_lr_factor": 10.0}

# A second generation, from a teacher's distances: each image comes twice in a batch, and nothing is learnt by heart.
TAUGHT: dict[str, Any] = {"normalise": False, "epochs": 20, "per_class": 2}
TAUGHT_RATE = 2e-4

# Features of one crop each are learnt by heart soon: half of them are dropped in every step, which is what crops and
# flips do for a network that is trained. Many dimensions cost little here and serve the classes that are added later.
FROZEN_CLASSIFY: dict[str, Any] = FROZEN | {"dropout": 0.5, "lr": 3e-4, "epochs": 15}

# The path and not the figures: seconds on any machine.
QUICK = Settings(
    network="small", weights="random", dim=16, n_neighbours=20, epochs=2, batch_size=8, lr=1e-3, hold_out=True
)

# With few classes a discriminant of one dimension less would leave no room for the classes that are added later.
FEWEST_DIMENSIONS = 64


def preset_settings(
    name: str | None, given: Mapping[str, Any], *, classes: int = 0, gpu: bool = False, source: str = "the settings"
) -> Settings:
    """Return the settings of a preset for the task, network, dimensions and loss in ``given``; what is given wins.

    ``classes`` is the number of classes in the data, which decides the size of a discriminant. Without a name it is the
    preset that suits the network and the machine, with or without a GPU: what ``nngk train`` does by default.

    >>> preset_settings("best", {"task": "metric", "network": "resnet50", "epochs": 3}).crop_size
    352
    >>> preset_settings(None, {"task": "metric"}) == preset_settings("frozen", {"task": "metric"})
    True
    """
    decisive = ("task", "network", "dim", "loss", "weights", "freeze", "teacher")
    asked = Settings.from_dict({key: given[key] for key in decisive if key in given}, source)
    name = require_preset(suitable(asked, gpu) if name is None else name, PRESETS)
    if name == "quick":
        base = QUICK
    elif asked.task == "metric":
        base = metric_settings(name, asked.dim, asked.network)
    else:
        base = classify_settings(name, asked.network, asked.loss, classes)
        rates = classify_rates(name, asked.loss)
        if rates:  # an experiment chooses among them
            base = replace(base, lr=rates[len(rates) // 2])
    if name in ("best", "frozen"):  # the data choose these; an untrained network has nothing to discriminate
        base = replace(base, lr=None, embedding_start="auto")
        if asked.task == "metric":
            base = replace(base, whiten=base.whiten or None)
    taught = TAUGHT if asked.teacher and name == "best" else {}
    return Settings.from_dict(base.to_dict() | taught | dict(given), source)


def suitable(asked: Settings, gpu: bool) -> str:
    """Return the preset for a network and a machine: a pretrained network is left as it is where there is no GPU.

    >>> suitable(Settings(), gpu=False), suitable(Settings(network="small"), gpu=False), suitable(Settings(), gpu=True)
    ('frozen', 'best', 'best')
    """
    if asked.freeze is not None:
        return "frozen" if asked.freeze else "best"
    pretrained = asked.weights != "random" and asked.network != "small"
    return "frozen" if pretrained and not gpu and asked.trains_kernels else "best"


def usual_rate(settings: Settings, frozen: bool) -> float:
    """Return the learning rate of our recipe, for settings that leave it open and data that cannot choose it.

    >>> usual_rate(Settings(task="metric"), frozen=False), usual_rate(Settings(), frozen=True)
    (2e-05, 0.0003)
    """
    if settings.teacher:
        return TAUGHT_RATE
    if settings.task == "metric":
        return metric_settings("frozen" if frozen else "best", settings.dim, settings.network).lr or 0.0
    return float(FROZEN_CLASSIFY["lr"]) if frozen else classify_rates("best", settings.loss)[1]


def sigma_by_size(dim: int) -> float:
    """Return σ by the paper's rule for metric learning, 'between 10 and 30, depending on the number of dimensions'.

    Within these bounds validation classes prefer 20 at 64 dimensions and 12 at 1024; a power law lies between.

    >>> [sigma_by_size(d) for d in (64, 256, 1024)]
    [20.0, 15.492, 12.0]
    """
    return round(20.0 * 0.6 ** (math.log2(dim / 64) / 4), 3)


def metric_settings(preset: str, dim: int | None, network: str = "googlenet") -> Settings:
    """Return the settings of a zero-shot retrieval run; without ``dim`` it is on the network's own features."""
    if require_preset(preset) == "paper":
        return replace(PAPER, task="metric", dim=dim, sigma=sigma_by_size(dim) if dim else "validation")
    if preset == "frozen":
        return replace(BEST, task="metric", dim=dim, **FROZEN)
    own = of_family(OWN, network, {})
    own = own | ({"wide": None, "whiten": 0.0} if not dim or dim >= (own.get("wide") or 0) else {})
    return replace(BEST, task="metric", dim=dim, **own)


def of_family(table: dict[str, T], network: str, otherwise: T) -> T:
    """Return what a table has for the family that a network belongs to.

    >>> of_family({"resnet50": 1}, "resnet50-v1", 2), of_family({"resnet50": 1}, "vgg16", 2)
    (1, 2)
    """
    return next((values for family, values in table.items() if network.startswith(family)), otherwise)


def classify_settings(preset: str, network: str, loss: str = "nngk", classes: int = 0) -> Settings:
    """Return the settings of a classification run.

    It is on the network's own features, as in the paper, or, for our recipe with ``classes`` given, on their
    discriminant, which has one direction less than there are classes.
    """
    vector = network.startswith(("alexnet", "vgg16"))  # FC7, 4096 dimensions
    if require_preset(preset) == "paper":
        sigma: Any = 100.0 if vector else "validation"  # 'around 100' for FC7; the others by validation loss
        chosen = replace(PAPER, dropout=0.5, n_neighbours=200, sigma=sigma, epochs=40)  # the best of them is kept
    else:
        # A class may have fewer images than a group of the metric recipe wants: batches at random.
        own: dict[str, Any] = {"batch_size": 64, "per_class": 0, "drop_centres": 0.0, "epochs": 30}
        own |= {"crop_scale": 0.16, "sigma_factor": 1.7, "pool": "avg" if vector else "avg+max"}
        if preset == "frozen":
            own |= FROZEN_CLASSIFY
        elif network.startswith("resnet50"):
            own |= LARGER | {"layers": 2}
        chosen = replace(BEST, **own)
        if loss == "nngk" and classes:
            fewest = defaults.DIM if preset == "frozen" else FEWEST_DIMENSIONS
            return replace(chosen, task="classify", dim=max(classes - 1, fewest))
    return replace(chosen, task="classify", dim=None, loss=loss)


def classify_rates(preset: str, loss: str) -> tuple[float, ...]:
    """Return the learning rates to choose from on the validation part; none where the text gives one."""
    if preset == "best":
        return (3e-5, 1e-4, 3e-4)
    if preset == "frozen":
        return (1e-4, 1e-3, 1e-2)
    # The text gives the kernels' rate and leaves softmax's open ('hyperparameters that minimise the validation loss');
    # without momentum the usual ones, 2e-4 to 3e-3, are ten times as high.
    return () if loss == "nngk" else (2e-3, 1e-2, 3e-2)


def require_preset(preset: str, among: Iterable[str] = MEASURED) -> str:
    """Return the preset itself, or raise InputError with the names there are."""
    if preset not in among:
        raise InputError(f"The presets are {', '.join(map(repr, among))}; there is no {preset!r}.")
    return preset
