"""Equation 3 for new examples, against plain loops."""

import math

import pytest
import torch

from nngk.errors import InputError
from nngk.kernel.predict import answer, predict
from nngk.search import Exact


def problem(n=7, m=25, dim=3, classes=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    x, centres = torch.randn(n, dim, generator=g).double(), torch.randn(m, dim, generator=g).double()
    return x, centres, torch.randint(classes - 1, (m,), generator=g), torch.randn(m, generator=g).double()


@pytest.mark.parametrize("k", [1, 6, 25, 400])
@pytest.mark.parametrize("chunk", [2, 4096])
def test_equals_plain_loops(k, chunk):
    x, centres, labels, theta = problem()
    sigma = 0.7
    found = predict(x, Exact(centres), labels, theta, sigma, k, 4, chunk=chunk)
    for i in range(len(x)):
        d = (centres - x[i]).square().sum(1).tolist()
        nearest = sorted(range(len(d)), key=d.__getitem__)[:k]
        kernels = {j: math.exp(float(theta[j]) - d[j] / (2 * sigma**2)) for j in nearest}
        total = sum(kernels.values())
        assert found.neighbours[i].tolist() == nearest
        assert found.squared[i].tolist() == pytest.approx([d[j] for j in nearest])
        assert found.shares[i].tolist() == pytest.approx([kernels[j] / total for j in nearest])
        assert float(found.log_density[i]) == pytest.approx(math.log(total))
        by_class = [sum(v for j, v in kernels.items() if labels[j] == c) / total for c in range(4)]
        assert found.log_probabilities[i].exp().tolist() == pytest.approx(by_class)
    assert (found.log_probabilities[:, 3] == -math.inf).all()  # a class without a centre
    torch.testing.assert_close(found.shares.sum(1), torch.ones(7).double())


def test_far_from_everything_the_answer_is_still_a_distribution():
    x, centres, labels, theta = problem()
    found = predict(x * 1e6, Exact(centres), labels, theta, 1e-3, 5, 4)
    assert found.log_probabilities.exp().sum(1).tolist() == pytest.approx([1] * 7)
    assert (found.log_density < -1e12).all() and found.log_density.isfinite().all()


def test_narrow_kernels_far_from_everything_leave_the_nearest_class():
    """In float32 the kernels themselves are zero there, all of them; their shares are not."""
    x, centres = torch.tensor([[1e15], [0.0]]), torch.tensor([[-1.0], [2e14]])
    found = predict(x, Exact(centres), torch.tensor([0, 1]), torch.zeros(2), 1e-15, 2, 2)
    assert found.log_probabilities.exp().tolist() == [[0, 1], [1, 0]]
    assert found.shares.tolist() == [[1, 0], [1, 0]]
    assert not found.log_density.isnan().any()


def test_a_missing_neighbour_adds_nothing():
    squared, neighbours = torch.tensor([[1.0, math.inf]]), torch.tensor([[1, -1]])
    found = answer(squared, neighbours, torch.tensor([0, 1]), torch.tensor([5.0, 0.3]), 1.0, 2)
    assert found.shares.tolist() == [[1, 0]] and found.log_probabilities.exp().tolist() == [[0, 1]]
    assert float(found.log_density) == pytest.approx(0.3 - 0.5)


def test_nan_is_refused():
    x, centres, labels, theta = problem()
    x[2, 0] = math.nan
    with pytest.raises(InputError, match="NaN or infinity, first in row 2"):
        predict(x, Exact(centres), labels, theta, 1.0, 5, 4)
