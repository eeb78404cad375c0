"""Parameter groups, optimiser and learning-rate schedule."""

import math
from typing import Any

import torch
from torch import nn

from nngk.errors import InputError
from nngk.training.settings import Settings
from nngk.training.sharded_network import by_rows


def create_optimiser(
    backbone: list[nn.Parameter], embedding: list[nn.Parameter], extra: list[dict[str, Any]], settings: Settings
) -> torch.optim.Optimizer:
    """Return an optimiser of the backbone, the embedding layer at its own rate, and ``extra``, what the loss learns."""
    groups: list[dict[str, Any]] = []
    own = rate_of(settings)
    for parameters, lr in ((backbone, own), (embedding, own * settings.embedding_lr_factor)):
        learned = [p for p in parameters if p.requires_grad]
        # Biases and normalisation scales are not what weight decay is for.
        for chosen, decay in (
            ([p for p in learned if p.ndim > 1], settings.weight_decay),
            ([p for p in learned if p.ndim <= 1], 0.0),
        ):
            if chosen:
                groups.append({"params": chosen, "lr": lr, "weight_decay": decay})
    groups += [g for g in extra if any(p.requires_grad for p in g["params"])]
    if not groups:
        raise InputError(
            "There is nothing to train: the network is frozen, has no embedding layer, and the loss has no parameters. "
            "Give --dim, or train the whole network with --no-freeze."
        )
    for group in groups:
        group["base_lr"] = group["lr"]
    learned = [p for g in groups for p in g["params"]]
    fused = all(p.is_cuda for p in learned)
    if settings.optimiser == "sgd":
        shared = any(by_rows(p) for p in learned)  # PyTorch has no fused step of SGD for these
        return torch.optim.SGD(groups, lr=own, momentum=settings.momentum, fused=fused and not shared)
    return torch.optim.AdamW(groups, lr=own, fused=fused)


def rate_of(settings: Settings) -> float:
    """Return the learning rate of settings that leave nothing open. Raise InputError if they do.

    >>> rate_of(Settings(lr=1e-4))
    0.0001
    """
    if settings.lr is None:
        raise InputError("The setting 'lr' is auto, and an optimiser needs a number: build_run() settles it.")
    return settings.lr


def rate(step: int, total: int, settings: Settings) -> float:
    """Return the share of the base learning rate at a step: a linear rise, then half a cosine, stairs or level.

    >>> [round(rate(s, 100, Settings(warmup=0.1)), 2) for s in (0, 9, 55, 99)]
    [0.1, 1.0, 0.5, 0.0]
    >>> [rate(s, 100, Settings(warmup=0.0, schedule="steps", epochs=4, step_epochs=2)) for s in (0, 49, 50, 99)]
    [1.0, 1.0, 0.5, 0.5]
    """
    rise = round(settings.warmup * total)
    if step < rise:
        return (step + 1) / rise
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "steps":
        epoch = step * settings.epochs // total
        return settings.step_factor ** (epoch // settings.step_epochs)
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, total - rise)))


def set_rate(optimiser: torch.optim.Optimizer, share: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = group["base_lr"] * share
