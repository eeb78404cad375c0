"""How far kernels are drawn to the means of their classes: as far as validation images say."""

import torch

from nngk.bank.centres import CentreBank
from nngk.training.validation import classifier_sigma, drawn_score


def bank_of(centres, labels):
    bank = CentreBank(labels, centres.shape[1], n_neighbours=20)
    with torch.no_grad():
        bank.centres.copy_(centres)
    return bank


def test_noisy_classes_are_better_drawn_to_their_means():
    generator = torch.Generator().manual_seed(0)
    means, labels = torch.randn(10, 30, generator=generator), torch.arange(10).repeat_interleave(6)
    rows, asked = (means[labels] + 1.5 * torch.randn(60, 30, generator=generator) for _ in range(2))
    bank = bank_of(rows, labels)
    right = [drawn_score(bank, share, asked, labels)[0] for share in (0.0, 0.5)]
    assert right[1] > right[0] + 0.02
    assert classifier_sigma(bank, "classify", asked, labels, 0.5) != classifier_sigma(bank, "classify", asked, labels)


def test_classes_of_several_kinds_are_not():
    generator = torch.Generator().manual_seed(0)
    places = torch.tensor([[0.0, 0.0], [3.0, 0.0], [3.0, 3.0], [0.0, 3.0]])  # two classes at opposite corners
    kinds = torch.arange(4).repeat_interleave(8)
    rows, asked = (places[kinds] + torch.randn(32, 2, generator=generator) for _ in range(2))
    labels = kinds % 2
    scores = [drawn_score(bank_of(rows, labels), share, asked, labels) for share in (0.0, 0.75)]
    assert scores[0] > scores[1]
