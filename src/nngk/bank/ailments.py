"""What is wrong with a bank from which nothing is learnt: embeddings that are all alike, kernels that reach nobody."""

import torch
from torch import Tensor

from nngk.bank.centres import CentreBank

REACH = 6.0  # widths; the kernel of anything farther away is below 2e-8
EQUAL = 1e-3  # how much distances that are all alike may differ, as a share of the largest
_FEW = 10  # images of which nothing can be said
_SAMPLE = 200


@torch.no_grad()
def ailment(bank: CentreBank, sigma: float) -> str:
    """Return what is wrong with the embeddings of a sample of the bank, or with σ; '' where nothing is."""
    if not bank.filled or len(bank) < _FEW:
        return ""
    rows = torch.linspace(0, len(bank) - 1, min(_SAMPLE, len(bank)), device=bank.centres.device).long()
    sample = bank.some_centres(rows).double()
    distances = torch.pdist(sample)
    most = float(distances.max())
    if most <= 1e-6 * float(sample.norm(dim=1).max()) or most - float(distances.min()) <= EQUAL * most:
        return (
            f"All embeddings are equally far from each other ({most:.3g}), so that no image can be told from another: "
            "the embedding has collapsed. Lower --lr, or start from pretrained weights (--weights)."
        )
    nearest = float(_nearest(bank, rows).min())
    if nearest > REACH * sigma:
        return (
            f"No image has another within {REACH:g} sigma (the nearest is {nearest:.3g} away, sigma is {sigma:.3g}), "
            "so that the kernels reach nobody: raise --sigma, or leave it out and it is found for the images."
        )
    return ""


def _nearest(bank: CentreBank, rows: Tensor) -> Tensor:
    """Return the distance of each row's nearest other centre, among its neighbours where it has a list of them."""
    if bank.n_neighbours is not None:
        return bank.left_out(rows)[0].amin(1).sqrt()
    centres = bank.centres
    return (
        torch.cdist(centres[rows], centres, compute_mode="donot_use_mm_for_euclid_dist")
        .scatter(1, rows[:, None], torch.inf)
        .amin(1)
    )
