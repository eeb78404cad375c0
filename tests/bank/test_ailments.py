"""A bank from which nothing is learnt is noticed, and what to do about it is said; a healthy one is left in peace."""

import pytest
import torch

from nngk.bank.ailments import ailment
from nngk.bank.centres import CentreBank


def filled(centres, n_neighbours):
    bank = CentreBank(torch.arange(len(centres)) % 4, centres.shape[1], n_neighbours)
    bank.renew(centres)
    return bank


@pytest.mark.parametrize("n_neighbours", [5, None])
def test_what_is_wrong_is_said(n_neighbours):
    normal = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    assert ailment(filled(normal, n_neighbours), 1.0) == ""
    for collapsed in (torch.ones(40, 8), torch.ones(40, 8) + 1e-9 * normal, torch.eye(40)):
        assert "collapsed" in ailment(filled(collapsed, n_neighbours), 1.0)
    nearest = float(torch.cdist(normal, normal).fill_diagonal_(torch.inf).min())
    said = ailment(filled(normal, n_neighbours), nearest / 6.1)
    assert "within 6 sigma" in said and f"{nearest:.3g}" in said and "--sigma" in said
    assert ailment(filled(normal, n_neighbours), nearest / 5.9) == ""


def test_of_few_images_or_none_nothing_is_said():
    assert ailment(filled(torch.ones(9, 8), 3), 1.0) == ""
    assert ailment(CentreBank(torch.arange(40) % 4, 8), 1.0) == ""
