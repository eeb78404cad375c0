"""The models whose distances a network learns."""

from pathlib import Path

import torch
from torch import nn

from nngk.errors import InputError
from nngk.model.model import Model
from nngk.networks import InputSpec


def teachers_of(named: str, spec: InputSpec, device: torch.device) -> list[nn.Module]:
    """Return the networks of the models in these folders, which commas separate, ready to answer.

    They are shown what the network is shown: raise InputError where that is not what they were trained to read.
    """
    found: list[nn.Module] = []
    for folder in (part.strip() for part in named.split(",")):
        network = Model.load(Path(folder), device).network.eval().requires_grad_(False)
        if (network.input.mean, network.input.std) != (spec.mean, spec.std):
            raise InputError(
                f"The teacher in {folder} reads colours on another scale than the network that is to be trained: "
                "take one with weights of the same kind."
            )
        found.append(network)
    return found
