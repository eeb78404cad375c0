"""Trained weights on their way back to where training started: what a network knew before serves classes to come."""

import torch
from torch import Tensor

from nngk.networks import EmbeddingNetwork
from nngk.training.build import network_of
from nngk.training.run import Run, start_layer


def started(run: Run) -> EmbeddingNetwork:
    """Return the run's network as it was before the first step, made anew."""
    with torch.random.fork_rng():
        torch.manual_seed(run.settings.seed)
        network = network_of(run.settings).to(run.device).to(memory_format=torch.channels_last).eval()
    start_layer(run, network)
    return network


def blended(trained: dict[str, Tensor], start: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    """Return weights that went a share of the way back from where they are to the start.

    >>> blended({"w": torch.tensor([1.0])}, {"w": torch.tensor([5.0])}, 0.25)
    {'w': tensor([2.])}
    """
    return {
        name: torch.lerp(tensor, start[name], share) if tensor.is_floating_point() else tensor
        for name, tensor in trained.items()
    }


def blend_with_start(run: Run) -> None:
    """Bring the weights of a trained network the share of ``blend`` of the way back to their start."""
    share = run.settings.blend
    if share:
        weights = blended(run.network.state_dict(), started(run).state_dict(), share)
        run.network.load_state_dict(weights)
