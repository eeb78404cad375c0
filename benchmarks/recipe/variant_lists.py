"""The variants that ``variants.py`` tries: their names, and which settings each of them changes."""

from typing import Any

from nngk.losses import LOSSES

# The paper's settings as they were first read.
FIRST: dict[str, Any] = {"momentum": 0.9, "embedding_start": "random", "sigma": 10.0}
STILL = FIRST | {"momentum": 0.0}
OF_THE_MEAN: dict[str, Any] = {"lr": 1e-5, "weight_decay": 2e-4}
FASTER: dict[str, Any] = {"momentum": 0.9, "embedding_lr_factor": 10.0}
# Readings of the paper that go further from its words, each of them with and without the floor of the authors' code.
READINGS: dict[str, dict[str, Any]] = {
    "the preset": {},
    "momentum, the embedding ten times as fast": FASTER,
    "the mean, momentum, the embedding ten times as fast": OF_THE_MEAN | FASTER,
    # The solver of Song and others (lifted structure), which the tables compare with: 20,000 steps, which are 68 epochs
    # of all training classes and 136 of one half. Their layer starts with Caffe's filler: see the list 'paper'.
    "the solver of Song and others": FASTER
    | {"lr": 1e-4, "weight_decay": 2e-4, "resize": 256, "crop_size": 227, "dropout": 0.4}
    | {"epochs": 136, "embedding_start": "random", "sigma": 10 / 3**0.5, "embedding_lr_factor": 10 / 3},
    "sigma from 10 to 30, 100 epochs": {"sigma": 10.0, "sigma_end": 30.0, "epochs": 100},
    "sigma from 10 to 30, 150 epochs": {"sigma": 10.0, "sigma_end": 30.0, "epochs": 150},
    # What the released code has, where it is not the text.
    "Adam": {"optimiser": "adamw", "lr": 1e-5, "weight_decay": 0.0, "weight_lr_factor": 1.0, "batch_size": 32}
    | {"n_neighbours": 200, "update_interval": 5, "sigma": 10.0},
}
FLOOR: dict[str, Any] = {"floor": 1e-10}
# Each variant changes the base (our recipe, or the paper's preset for the list 'paper') in what its name says.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "best": {
        "base": {},
        # the start of the embedding layer
        "random start": {"embedding_start": "random"},
        "trained at 512": {"wide": 512},
        "trained at 1024": {"wide": 1024},
        "trained at 2048": {"wide": 2048},
        "shrinkage 1": {"shrinkage": 1.0},
        "shrinkage 10": {"shrinkage": 10.0},
        "embedding x 1": {"embedding_lr_factor": 1.0},
        "embedding x 10": {"embedding_lr_factor": 10.0},
        # before the embedding
        "two layers": {"layers": 2},
        "three layers": {"layers": 3},
        "two layers, trained at 1024": {"layers": 2, "wide": 1024},
        "three layers, trained at 1024": {"layers": 3, "wide": 1024},
        "three layers, trained at 1024, shrinkage 10": {"layers": 3, "wide": 1024, "shrinkage": 10.0},
        "two layers, crops of 256 pixels": {"layers": 2, "train_crop_size": 256},
        "max pool": {"pool": "max"},
        "GeM pool": {"pool": "gem"},
        "no LayerNorm": {"layer_norm": False},
        "not normalised": {"normalise": False},
        "dropout 0.2": {"dropout": 0.2},
        # the kernels
        "sigma x 1": {"sigma_factor": 1.0},
        "sigma x 1.5": {"sigma_factor": 1.5},
        "sigma x 3": {"sigma_factor": 3.0},
        "sigma x 4": {"sigma_factor": 4.0},
        "sigma learned": {"sigma": "learned"},
        "drop no centre": {"drop_centres": 0.0},
        "drop 0.8 of the centres": {"drop_centres": 0.8},
        "drop 0.97 of the centres": {"drop_centres": 0.97},
        "drop 0.95 of 400": {"drop_centres": 0.95, "n_neighbours": 400},
        "50 neighbours": {"n_neighbours": 50},
        "400 neighbours": {"n_neighbours": 400},
        "all centres": {"n_neighbours": None, "drop_centres": 0.0},
        "weights fixed": {"learn_weights": False},
        "weights at the network's rate": {"weight_lr_factor": 1.0},
        "weights at 1000 times": {"weight_lr_factor": 1000.0},
        # the bank
        "update every 0.25 epochs": {"update_interval": 0.25},
        "update every 3 epochs": {"update_interval": 3},
        # the images
        "crops from 0.08": {"crop_scale": 0.08},
        "crops from 0.3": {"crop_scale": 0.3},
        "plain random crops": {"crop": "random"},
        "trained at 224, read at 256": {"resize": 256, "crop_size": 256, "train_crop_size": 224},
        "256 pixels": {"resize": 256, "crop_size": 256},
        "crops of 256 pixels": {"train_crop_size": 256},
        "256 of 288 pixels": {"resize": 288, "crop_size": 256},
        "trained at 224, read at 256 of 288": {"resize": 288, "crop_size": 256, "train_crop_size": 224},
        "trained at 224, read at 288 of 320": {"resize": 320, "crop_size": 288, "train_crop_size": 224},
        "256 of 288 pixels, trained at 1024": {"resize": 288, "crop_size": 256, "wide": 1024},
        "256 of 288 pixels, trained at 2048": {"resize": 288, "crop_size": 256, "wide": 2048},
        # the batches
        "random batches": {"per_class": 0},
        "8 a class": {"per_class": 8},
        "batch 48": {"batch_size": 48},
        "batch 192": {"batch_size": 192},
        # the optimisation
        "lr 1e-5": {"lr": 1e-5},
        "lr 6e-5": {"lr": 6e-5},
        "lr 1e-4": {"lr": 1e-4},
        "lr 1e-4, embedding x 1": {"lr": 1e-4, "embedding_lr_factor": 1.0},
        "weight decay 0.01": {"weight_decay": 0.01},
        "weight decay 0.1": {"weight_decay": 0.1},
        "16 epochs": {"epochs": 16},
        "20 epochs": {"epochs": 20},
        "4 epochs": {"epochs": 4},
        "40 epochs, lr 1e-5": {"epochs": 40, "lr": 1e-5},
        "bfloat16": {"amp": True},
        "live BatchNorm": {"freeze_batchnorm": False},
        # luck alone, and with --soup what the mean of lucky weights is worth
        "another seed": {"seed": 101},
        "a third seed": {"seed": 202},
    },
    # The rivals, with what serves our loss and two rates to choose from.
    "rivals": {
        f"{loss}, lr {lr:g}": {"loss": loss, "lr": lr}
        for loss in LOSSES
        if loss not in ("triplet-global", "clustering", "smart-mining")  # far behind before, and slow
        for lr in (3e-5, 1e-4)
    },
    "readings": READINGS | {f"{name}, floor": changes | FLOOR for name, changes in READINGS.items()},
    # Readings of the paper's text. The preset came out of them; the first ones had PyTorch's start of the layer.
    "paper": {
        "literal": FIRST | {"embedding_lr_factor": 10.0},
        # Caffe's 'xavier' filler draws the embedding layer √3 larger than PyTorch does. The same network and steps with
        # PyTorch's start: σ smaller by √3, and the layer's rate by 3.
        "Caffe's filler, 64 dimensions": FIRST | {"sigma": 10 / 3**0.5, "embedding_lr_factor": 10 / 3},
        "embedding at the base rate": FIRST,
        "the rate is of the mean": FIRST | OF_THE_MEAN,
        "no momentum": STILL,
        "no momentum, sigma 3": STILL | {"sigma": 3.0},
        "no momentum, GoogLeNet's own dropout": STILL | {"dropout": 0.4},  # as its Caffe model has
        "no momentum, the pooled features themselves": STILL | {"dim": None, "sigma": 30.0},  # GoogLeNet's are 1024
        "no momentum, a projection": {},  # the preset; what follows changes it
        "no momentum, a projection, the embedding ten times as fast": {"embedding_lr_factor": 10.0},
        "the rate is of the mean, the embedding ten times as fast": OF_THE_MEAN
        | {"momentum": 0.9, "embedding_lr_factor": 10.0},
        "the pooled features themselves": {"dim": None},
        "GoogLeNet's own dropout": {"dropout": 0.4},
        "update every epoch": {"update_interval": 1},
        "update every 5 epochs": {"update_interval": 5},
        "clipped at 1": {"clip": 1.0},
        "sigma by leave-one-out": {"sigma": "auto", "sigma_factor": 1.0},
        "weights fixed": {"learn_weights": False},
        "normalised": {"normalise": True, "sigma": "auto"},
    },
}
