"""The fused losses against the plain formula in float64, on the CPU through Triton's interpreter."""

import pytest
import torch

from interpreter import interpreted
from nngk.accel import usable
from nngk.errors import InputError
from nngk.kernel import formulas as kernel
from nngk.kernel.triton.losses import fused_all_centres_loss, fused_neighbour_loss

# The interpreter computes with numpy, which warns of the log of an empty sum.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def problem(batch=4, m=30, k=9, dim=19, sigma=1.5, dtype=torch.float32, classes=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, dim, generator=g).to(dtype)
    centres = torch.randn(m, dim, generator=g).to(dtype)
    theta = torch.randn(m, generator=g)
    neighbours = torch.stack([torch.randperm(m, generator=g)[:k] for _ in range(batch)])
    neighbours[torch.rand(batch, k, generator=g) < 0.1] = -1
    own = neighbours[:, k // 2].clone()
    own[0] = -1
    labels = torch.randint(0, classes, (batch,), generator=g)
    centre_labels = torch.randint(0, classes, (m,), generator=g)
    return x, centres, theta, torch.tensor(sigma), neighbours, labels, centre_labels, own


def plain(x, centres, theta, sigma, neighbours, labels, centre_labels, own):
    """Equation 3 with all differences written out, differentiable; a row without a same-class neighbour gives 0."""
    present = (neighbours >= 0) & (neighbours != own[:, None])
    same = present & (centre_labels[neighbours.clamp(min=0)] == labels[:, None])
    squared = (x[:, None] - centres[neighbours.clamp(min=0)]).square().sum(2)
    values = theta[neighbours.clamp(min=0)] - squared / (2 * sigma**2)
    losses = [
        v[p].logsumexp(0) - v[s].logsumexp(0) if s.any() else 0 * v.sum() for v, p, s in zip(values, present, same)
    ]
    return torch.stack(losses), same.any(1)


def leaves(x, centres, theta, sigma, dtype=None):
    return [t.detach().clone().to(dtype or t.dtype).requires_grad_() for t in (x, centres, theta, sigma)]


def error(found, expected):
    assert torch.isfinite(found).all()
    expected = expected.detach().double()
    return float((found.detach().double() - expected).norm() / expected.norm().clamp(min=1e-30))


CASES = [
    {},
    {"batch": 1, "m": 3, "k": 1, "dim": 1},
    {"k": 33, "m": 40, "dim": 70},
    {"dim": 530, "k": 20, "sigma": 20.0, "batch": 2},
    {"sigma": 1e-3},
    {"sigma": 1e4},
    {"sigma": 1e-22},
]


@interpreted
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_neighbour_loss_and_gradients(case, index):
    x, centres, theta, sigma, neighbours, *ids = problem(**case)
    given, expected = leaves(x, centres, theta, sigma), leaves(x, centres, theta, sigma, torch.float64)
    outer = torch.randn(len(x))
    loss, learns = fused_neighbour_loss(*given, neighbours.to(index), *ids)
    truth, some = plain(*expected, neighbours, *ids)
    assert learns.tolist() == some.tolist() and not learns.requires_grad
    if case.get("sigma", 1) < 1e-20:  # the loss itself leaves float32: finite, and the direction is right
        assert torch.isfinite(loss).all()
        loss.backward(outer)
        assert not any(t.grad.isnan().any() for t in (given[0], given[2], given[3]))
        return
    loss.backward(outer)
    truth.backward(outer.double())
    assert error(loss, truth) < 1e-5
    for name, i in (("x", 0), ("theta", 2), ("sigma", 3)):
        assert error(given[i].grad, expected[i].grad) < 1e-5, name
    assert given[1].grad is None


@interpreted
@pytest.mark.parametrize("case", [{"dim": 40, "sigma": 3.0}, *(c for c in CASES if c.get("sigma", 1) > 1e-20)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_banks(dtype, case):
    if dtype == torch.float16 and not 1 <= case.get("sigma", 1) <= 100:
        pytest.skip("the gradient by x, about 1/σ², has no place in float16's range")
    x, centres, theta, sigma, *ids = problem(dtype=dtype, **case)
    given, expected = leaves(x, centres, theta, sigma), leaves(x, centres, theta, sigma, torch.float64)
    loss, _ = fused_neighbour_loss(*given, *ids)
    truth, _ = plain(*expected, *ids)
    loss.sum().backward()
    truth.sum().backward()
    assert error(loss, truth) < 1e-5  # the numbers in the bank are what they are; all arithmetic is float32
    assert given[0].grad.dtype == dtype and error(given[0].grad, expected[0].grad) < 1e-2
    assert error(given[2].grad, expected[2].grad) < 1e-5


@interpreted
def test_only_the_gradients_asked_for():
    x, centres, theta, sigma, *ids = problem()
    full = leaves(x, centres, theta, sigma)
    fused_neighbour_loss(*full, *ids)[0].sum().backward()
    for chosen in (0, 2, 3):
        part = [t.clone().requires_grad_(i == chosen) for i, t in enumerate((x, centres, theta, sigma))]
        fused_neighbour_loss(*part, *ids)[0].sum().backward()
        torch.testing.assert_close(part[chosen].grad, full[chosen].grad, rtol=0, atol=0)


@interpreted
def test_example_without_same_class_neighbour_is_silent():
    x, centres, theta, sigma, neighbours, labels, centre_labels, own = problem(batch=3)
    labels[1] = 99
    neighbours[2] = -1
    given = leaves(x, centres, theta, sigma)
    loss, learns = fused_neighbour_loss(*given, neighbours, labels, centre_labels, own)
    loss.sum().backward()
    assert learns.tolist() == [True, False, False]
    assert loss[1:].tolist() == [0, 0] and not given[0].grad[1:].any()


@interpreted
def test_nan_gradient_is_not_hidden():
    x, centres, theta, sigma, *ids = problem()
    given = leaves(x, centres, theta, sigma)
    loss, _ = fused_neighbour_loss(*given, *ids)
    loss.backward(torch.tensor([1.0, torch.nan, 1.0, 1.0]))
    assert given[2].grad.isnan().any()


@interpreted
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("row", ["learns", "has no same-class neighbour", "has no neighbour"])
@pytest.mark.parametrize("centres_are", ["anywhere", "positive"])
def test_embeddings_that_are_not_finite_have_no_good_answer(bad, row, centres_are):
    """A loss and gradients of NaN for the row, and what they would have been for the others."""
    x, centres, theta, sigma, neighbours, labels, centre_labels, own = problem(batch=3)
    centres = centres.abs() if centres_are == "positive" else centres
    labels[1] = centre_labels[neighbours[1].clamp(min=0)][1] if row == "learns" else 99
    if row == "has no neighbour":
        neighbours[1] = -1
    ids = (labels, centre_labels, own)
    good = leaves(x, centres, theta, sigma)
    fused_neighbour_loss(*good, neighbours, *ids)[0].sum().backward()
    x[1, 2] = bad
    given = leaves(x, centres, theta, sigma)
    loss, _ = fused_neighbour_loss(*given, neighbours, *ids)
    loss.sum().backward()
    assert loss.isnan().tolist() == [False, True, False]
    assert given[0].grad.isnan().any(1).tolist() == [False, True, False] and given[3].grad.isnan()
    assert torch.equal(given[0].grad[[0, 2]], good[0].grad[[0, 2]])
    if row != "has no neighbour":
        assert given[2].grad.isnan().any()
    given = leaves(x, centres, theta, sigma)
    loss = fused_all_centres_loss(*given, *ids)
    loss.sum().backward()
    assert loss.isnan().tolist() == [False, True, False]
    assert given[0].grad.isnan().any(1).tolist() == [False, True, False] and given[2].grad.isnan().any()


@interpreted
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_reference_that_is_not_finite_spoils_all_that_meet_it(bad):
    x, centres, theta, sigma, _, *ids = problem()
    centres[3, 1] = bad
    assert fused_all_centres_loss(x, centres, theta, sigma, *ids).isnan().all()


@interpreted
def test_a_long_list_in_two_programs_gives_the_same():
    from nngk.kernel.triton import lists_forward as lists

    given = problem(k=20)
    one, two = lists.forward(*given), lists.forward(*given, one_program=8)
    assert all(torch.equal(a, b) for a, b in zip(one, two))


@interpreted
def test_views_of_wider_matrices():
    x, centres, theta, sigma, *ids = problem(dim=8)
    wide, wide_bank = torch.randn(len(x), 20), torch.randn(len(centres), 11)
    wide[:, 3:11], wide_bank[:, :8] = x, centres
    a = fused_neighbour_loss(x, centres, theta, sigma, *ids)[0]
    b = fused_neighbour_loss(wide[:, 3:11], wide_bank[:, :8], theta, sigma, *ids)[0]
    torch.testing.assert_close(a, b)


@interpreted
@pytest.mark.parametrize("case", [c for c in CASES if c.get("sigma", 1) > 1e-20], ids=str)
@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
def test_all_centres_loss_and_gradients(case, precision):
    x, centres, theta, sigma, _, *ids = problem(**case)
    given, expected = leaves(x, centres, theta, sigma), leaves(x, centres, theta, sigma, torch.float64)
    outer = torch.randn(len(x))
    everything = torch.arange(len(centres)).expand(len(x), -1)
    loss = fused_all_centres_loss(*given, *ids, precision=precision)
    truth, _ = plain(*expected, everything, *ids)
    loss.backward(outer)
    truth.backward(outer.double())
    assert error(loss, truth) < 1e-5
    for name, i in (("x", 0), ("centres", 1), ("theta", 2)):
        assert error(given[i].grad, expected[i].grad) < 1e-5, name
    assert error(given[3].grad, expected[3].grad) < 1e-4


@interpreted
def test_all_centres_in_pieces(monkeypatch):
    from nngk.kernel.triton import dense

    monkeypatch.setattr(dense, "TILE", 128)
    x, centres, theta, sigma, _, *ids = problem(m=300, batch=2, dim=4)
    given, expected = leaves(x, centres, theta, sigma), leaves(x, centres, theta, sigma, torch.float64)
    fused_all_centres_loss(*given, *ids).sum().backward()
    kernel.all_centres_loss(*expected, *ids).sum().backward()
    assert all(error(a.grad, b.grad) < 1e-5 for a, b in zip(given[:3], expected))


@interpreted
def test_all_centres_in_bfloat16():
    x, centres, theta, sigma, _, *ids = problem(dtype=torch.bfloat16, dim=32, sigma=4.0)
    given, expected = leaves(x, centres, theta, sigma), leaves(x, centres, theta, sigma, torch.float64)
    loss = fused_all_centres_loss(*given, *ids, precision="bf16")
    truth = kernel.all_centres_loss(*expected, *ids)
    loss.sum().backward()
    truth.sum().backward()
    assert error(loss, truth) < 1e-2
    assert all(error(a.grad, b.grad) < 1e-2 for a, b in zip(given[:3], expected))


def test_elsewhere_the_eager_answer():
    x, centres, theta, sigma, *ids = problem()
    x, centres, theta, sigma = (t.double() for t in (x, centres, theta, sigma))
    assert not usable(x)
    loss, learns = fused_neighbour_loss(x, centres, theta, sigma, *ids)
    truth, some = plain(x, centres, theta, sigma, *ids)
    torch.testing.assert_close(loss, truth)
    assert learns.tolist() == some.tolist()
    everything = torch.arange(len(centres)).expand(len(x), -1)
    loss = fused_all_centres_loss(x, centres, theta, sigma, *ids[1:])
    torch.testing.assert_close(loss, plain(x, centres, theta, sigma, everything, *ids[1:])[0])


def test_mismatched_batches_are_refused():
    x, centres, theta, sigma, neighbours, *ids = problem()
    with pytest.raises(InputError, match="one row for each"):
        fused_neighbour_loss(x, centres, theta, sigma, neighbours[1:], *ids)
    with pytest.raises(InputError, match="precision"):
        fused_all_centres_loss(x, centres, theta, sigma, *ids, precision="fp8")
