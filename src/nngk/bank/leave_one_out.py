"""The width σ that suits a bank, found by leaving each of its examples out."""

import torch
from torch import Tensor

from nngk.bank.centres import CentreBank, neighbour_facts
from nngk.kernel.sigma import best_sigma
from nngk.search.exact import Exact

# The width that minimises the leave-one-out loss of a bank classifies it best as it stands; training wants a wider
# kernel, which pulls and pushes more than the very nearest centres. 1.5 to 2 times trained best on CUB-200-2011.
TRAINING_FACTOR = 1.5
# Neighbours that stand for all centres where the bank keeps no lists: the far ones decide nothing about the best width.
STAND_IN = 200


def training_sigma(bank: CentreBank, factor: float = TRAINING_FACTOR) -> float:
    """Return the σ to train with: ``factor`` times the one that minimises the leave-one-out loss."""
    return factor * leave_one_out_sigma(bank)


def leave_one_out_sigma(bank: CentreBank, limit: int = 20_000) -> float:
    """Return the σ that minimises the leave-one-out loss of the bank, over ``limit`` of its examples at most."""
    chosen = torch.arange(len(bank), device=bank.centres.device)
    if len(bank) > limit:
        chosen = torch.linspace(0, len(bank) - 1, limit, device=chosen.device).long()
    if bank.n_neighbours is None:
        found = Exact(bank.centres).search(bank.centres[chosen], min(STAND_IN + 1, len(bank)))[1]
        neighbours = found.masked_fill(found == chosen[:, None], -1)
        return neighbour_sigma(bank, bank.centres[chosen], bank.labels[chosen], neighbours)
    return best_sigma(*bank.left_out(chosen))


def neighbour_sigma(bank: CentreBank, x: Tensor, labels: Tensor, neighbours: Tensor) -> float:
    """Return the σ that minimises the loss of embeddings ``x`` with these neighbours in the bank."""
    return best_sigma(*neighbour_facts(bank, x, labels, neighbours))
