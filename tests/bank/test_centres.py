"""The bank: own centres never count, same-class neighbours are guaranteed, and everything is in the state."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nngk.bank.centres import CentreBank, with_same_class
from nngk.errors import InputError
from nngk.losses.gaussian import GaussianKernelLoss
from nngk.search import Exact
from nngk.search.engine import Engine


class Listed:
    """A search engine that returns the lists it was given."""

    def __init__(self, lists):
        self.lists, self.points = lists, torch.empty(0, 0)

    def __len__(self):
        return len(self.points)

    def add(self, x):
        self.points = x
        return torch.arange(len(x))

    def update(self, x):
        self.points = x

    def search(self, x, k):
        raise AssertionError("the bank asks for all neighbours")

    def all_neighbours(self, k):
        assert self.lists.shape[1] == k
        return torch.zeros(self.lists.shape), self.lists


def loss_by_loops(bank, x, labels, indices, sigma):
    """Equation 3 over the lists as the search returned them, the own index skipped wherever it stands."""
    out = []
    for row, label, own in zip(x.tolist(), labels.tolist(), indices.tolist()):
        above = below = 0.0
        for j in bank.neighbours[own].tolist():
            if j in (-1, own):
                continue
            d = sum((a - b) ** 2 for a, b in zip(row, bank.centres[j].tolist()))
            value = math.exp(float(bank.theta[j].detach()) - d / (2 * sigma**2))
            below += value
            above += value if int(bank.labels[j]) == label else 0.0
        out.append(-math.log(above / below) if above else 0.0)
    return torch.tensor(out, dtype=torch.float64)


def random_bank(seed, m=14, k=5, dim=3, classes=3, guaranteed=1):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (m,), generator=g)
    centres = torch.randn(m, dim, generator=g, dtype=torch.float64)
    return CentreBank(labels, dim, k, guaranteed).double(), centres, g


@given(st.integers(0, 10_000), st.sampled_from(["anywhere", "missed", "first", "twice"]), st.booleans())
@settings(max_examples=60, deadline=None)
@pytest.mark.thorough
def test_own_centre_never_contributes(seed, place, duplicates):
    """However a search orders its lists, and whether or not it returns the example itself or misses it."""
    bank, centres, g = random_bank(seed)
    m, k = len(bank), bank.n_neighbours
    if duplicates:  # the same image twice in the training set: different indices, and the twin does count
        centres[1::2] = centres[::2][: len(centres[1::2])]
    lists = torch.stack([torch.randperm(m, generator=g)[:k] for _ in range(m)])
    own = torch.arange(m)
    if place == "missed":
        lists = torch.where(lists == own[:, None], (lists + 1) % m, lists)
    elif place == "first":
        lists[:, 0] = own
    elif place == "twice":
        lists[:, 1] = lists[:, -1] = own
    engine = Listed(lists)
    assert isinstance(engine, Engine)
    bank.renew(centres, engine)
    with torch.no_grad():
        bank.theta.copy_(torch.randn(m, generator=g))

    given_lists = bank.neighbours_of(own)
    assert (given_lists != own[:, None]).all()
    others = [[j for j in row if j != i and j >= 0] for i, row in enumerate(lists.tolist())]
    for row, expected in zip(given_lists[:, :k].tolist(), others):
        assert [j for j in row if j >= 0] == expected  # nothing else was dropped in its stead

    loss = GaussianKernelLoss(bank, sigma=0.8, reduction="none")
    x = torch.randn(m, 3, generator=g, dtype=torch.float64)
    before = loss(x, bank.labels, own)
    torch.testing.assert_close(before, loss_by_loops(bank, x, bank.labels, own, loss.sigma), rtol=1e-8, atol=1e-10)
    # The loss of an example does not notice where its own centre is or what it weighs.
    for i in range(0, m, 3):
        moved = bank.centres[i].clone(), float(bank.theta[i].detach())
        with torch.no_grad():
            bank.centres[i], bank.theta[i] = 1e3, 50.0
        assert torch.equal(loss(x, bank.labels, own)[i], before[i])
        with torch.no_grad():
            bank.centres[i], bank.theta[i] = moved


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_order_of_a_list_changes_nothing(seed):
    bank, centres, g = random_bank(seed)
    bank.renew(centres)
    loss = GaussianKernelLoss(bank, sigma=0.7, reduction="none")
    own = torch.arange(len(bank))
    before = loss(centres, bank.labels, own)
    bank.neighbours.copy_(bank.neighbours[:, torch.randperm(bank.neighbours.shape[1], generator=g)])
    torch.testing.assert_close(loss(centres, bank.labels, own), before, rtol=1e-12, atol=1e-12)


def test_own_centre_is_left_out_of_all_centres_too():
    bank, centres, _ = random_bank(3)
    whole = CentreBank(bank.labels, 3, n_neighbours=None).double()
    whole.renew(centres)
    listed = CentreBank(bank.labels, 3, n_neighbours=len(bank) - 1).double()
    listed.renew(centres)
    own = torch.arange(len(bank))
    a = GaussianKernelLoss(whole, sigma=0.5, reduction="none")(centres, whole.labels, own)
    b = GaussianKernelLoss(listed, sigma=0.5, reduction="none")(centres, whole.labels, own)
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@given(st.integers(0, 10_000), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_same_class_neighbours_are_guaranteed(seed, guaranteed):
    """Against a plain search: the nearest of the class, for lists without one, and for them alone."""
    bank, centres, _ = random_bank(seed, m=20, k=2, classes=6, guaranteed=guaranteed)
    bank.renew(centres)
    labels, lonely = bank.labels.tolist(), 0
    for i, row in enumerate(bank.neighbours.tolist()):
        listed, extra = row[:2], [j for j in row[2:] if j >= 0]
        mates = [j for j in range(20) if labels[j] == labels[i] and j != i]
        if any(j in mates for j in listed):
            assert extra == []
            continue
        lonely += 1
        mates.sort(key=lambda j: float((centres[i] - centres[j]).square().sum()))
        assert extra == mates[:guaranteed]
    assert bank.n_lonely == lonely


def test_no_guarantee_is_the_papers_reading():
    centres = torch.tensor([[0.0], [1.0], [1.1], [2.0], [2.1], [9.0]])
    bank = CentreBank(torch.tensor([0, 1, 1, 1, 1, 0]), 1, n_neighbours=2, guaranteed=0)
    bank.renew(centres)
    assert bank.neighbours.shape == (6, 2) and bank.n_lonely == 2
    own = torch.arange(6)
    each = GaussianKernelLoss(bank, sigma=1.0, reduction="none")(centres, bank.labels, own)
    assert each[0] == each[5] == 0
    # The mean is over those that learn.
    assert GaussianKernelLoss(bank, sigma=1.0)(centres, bank.labels, own) == each.sum() / 4
    helped = CentreBank(bank.labels, 1, n_neighbours=2)
    helped.renew(centres)
    assert helped.neighbours[0].tolist() == [1, 2, 5] and helped.neighbours[5].tolist() == [4, 3, 0]
    assert (GaussianKernelLoss(helped, sigma=1.0, reduction="none")(centres, helped.labels, own)[[0, 5]] > 0).all()


def test_alone_in_its_class_has_nothing_to_append():
    centres = torch.tensor([[0.0], [1.0], [2.0]])
    lists, lonely = with_same_class(torch.tensor([[1], [2], [1]]), centres, torch.tensor([0, 1, 1]), 2)
    assert lists.tolist() == [[1, -1, -1], [2, -1, -1], [1, -1, -1]] and lonely == 1


@pytest.mark.parametrize("chunk", [1, 3, 1 << 16])
def test_guarantee_does_not_depend_on_the_chunks(chunk):
    _, centres, g = random_bank(5, m=30)
    labels = torch.randint(4, (30,), generator=g)
    nobody = torch.full((30, 2), -1)
    lists, lonely = with_same_class(nobody, centres, labels, 2, chunk=chunk)
    expected, _ = with_same_class(nobody, centres, labels, 2)
    assert torch.equal(lists, expected) and lonely == 30


def test_state_dict_is_complete():
    bank, centres, g = random_bank(1)
    bank.renew(centres, step=17)
    with torch.no_grad():
        bank.theta.copy_(torch.randn(len(bank), generator=g))
    other = CentreBank(torch.zeros(len(bank)).long(), 3, bank.n_neighbours).double()
    other.load_state_dict(bank.state_dict())
    assert set(bank.state_dict()) >= {"theta", "centres", "labels", "neighbours"}
    for name, value in bank.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert (other.refreshed_at, other.n_lonely, other.filled) == (17, bank.n_lonely, True)
    own = torch.arange(len(bank))
    a, b = (GaussianKernelLoss(x, sigma=1.0)(centres, bank.labels, own) for x in (bank, other))
    assert torch.equal(a, b)


@pytest.mark.parametrize("neighbours", [3, None])
def test_loaded_bank_knows_who_has_a_partner(neighbours):
    """The labels of the state decide, not those the empty bank was made with."""
    labels = torch.tensor([0, 0, 0, 0, 1])
    bank = CentreBank(labels, 2, neighbours)
    bank.renew(torch.randn(5, 2))
    other = CentreBank(torch.zeros(5).long(), 2, neighbours)
    other.load_state_dict(bank.state_dict())
    own = torch.arange(5)
    a, b = (GaussianKernelLoss(x, sigma=1.0)(bank.centres, labels, own) for x in (bank, other))
    assert torch.equal(a, b)


def test_lists_change_nothing_in_the_bank():
    bank, centres, _ = random_bank(2)
    bank.renew(centres, step=4)
    before = {k: v.clone() for k, v in bank.state_dict().items()}
    bank.lists(centres + torch.randn_like(centres))
    assert all(torch.equal(v, before[k]) for k, v in bank.state_dict().items())


def test_engine_is_updated_not_grown():
    bank, centres, _ = random_bank(2)
    engine = Exact()
    bank.renew(centres, engine)
    bank.renew(centres.flip(0), engine)
    assert len(engine) == len(bank) and torch.equal(engine.points, centres.flip(0))
    fresh = CentreBank(bank.labels, 3, 5).double()
    fresh.renew(centres.flip(0))
    assert torch.equal(fresh.neighbours, bank.neighbours)


def test_more_neighbours_than_centres():
    bank = CentreBank(torch.tensor([0, 0, 1]), 2, n_neighbours=100)
    bank.renew(torch.eye(3, 2))
    assert bank.n_neighbours == 2 and (bank.neighbours_of(torch.arange(3)) < 3).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("neighbours", [2, None])
def test_centres_that_are_no_numbers_are_refused(bad, neighbours):
    bank = CentreBank(torch.tensor([0, 0, 1, 1]), 2, neighbours)
    centres = torch.randn(4, 2)
    centres[1, 0] = bad
    with pytest.raises(InputError, match=r"1 of 4 embeddings are NaN or infinite.*learning rate"):
        bank.renew(centres)
    assert not bank.filled


def test_refusals():
    with pytest.raises(InputError, match="at least two"):
        CentreBank(torch.tensor([0]), 2)
    with pytest.raises(InputError, match="n_neighbours must be at least 1"):
        CentreBank(torch.tensor([0, 0]), 2, n_neighbours=0)
    with pytest.raises(InputError, match="guaranteed"):
        CentreBank(torch.tensor([0, 0]), 2, guaranteed=-1)


def test_centres_are_cut_from_the_pass_that_made_them():
    layer, images = torch.nn.Linear(3, 2), torch.randn(4, 3)
    bank = CentreBank(torch.tensor([0, 0, 1, 1]), dim=2, n_neighbours=2)
    bank.renew(layer(images))
    assert not bank.centres.requires_grad
    loss = GaussianKernelLoss(bank, sigma=1.0)
    for _ in range(2):  # a second pass would need the graph of the first
        loss(layer(images), bank.labels, torch.arange(4)).backward()
