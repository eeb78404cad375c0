"""A second generation: the relaxed contrastive loss by plain loops, and what its teachers are asked."""

import math

import pytest
import torch
from torch import nn

from nngk.errors import InputError
from nngk.losses import samplers
from nngk.losses.relaxed import RelaxedContrastive, distances, relaxed_contrastive


def by_loops(x, likeness, margin):
    n, total = len(x), 0.0
    for i in range(n):
        row = [math.dist(x[i], x[j]) for j in range(n)]
        mean = sum(row) / n
        for j in range(n):
            if j != i:
                d = row[j] / mean
                total += likeness[i][j] * d**2 + (1 - likeness[i][j]) * max(0.0, margin - d) ** 2
    return total / n


def likeness_by_loops(embeddings, width):
    """Kernels of the mean squared distance of several teachers' embeddings, each scaled to unit length."""
    unit = [[[v / math.hypot(*row) for v in row] for row in x] for x in embeddings]
    n = len(unit[0])
    d2 = [[sum(math.dist(x[i], x[j]) ** 2 for x in unit) / len(unit) for j in range(n)] for i in range(n)]
    return [[math.exp(-value / width) for value in row] for row in d2]


@pytest.mark.parametrize("margin", [0.7, 1.0, 1.6])
def test_formula_and_gradient(margin):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    likeness = torch.rand(7, 7, generator=generator, dtype=torch.float64)
    found = relaxed_contrastive(x, likeness, margin)
    assert found.item() == pytest.approx(by_loops(x.tolist(), likeness.tolist(), margin), rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: relaxed_contrastive(x, likeness, margin), x)


def test_scale_and_place_do_not_count():
    x, likeness = torch.randn(6, 3, dtype=torch.float64), torch.rand(6, 6, dtype=torch.float64)
    first = relaxed_contrastive(x, likeness, 1.0)
    torch.testing.assert_close(relaxed_contrastive(30 * x + 5, likeness, 1.0), first)


def test_embeddings_learn_who_is_alike():
    torch.manual_seed(0)
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    likeness = (groups[:, None] == groups).double()
    x = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([x], lr=0.05)
    for _ in range(300):
        optimiser.zero_grad()
        relaxed_contrastive(x, likeness, 1.0).backward()
        optimiser.step()
    d = distances(x.detach()).fill_diagonal_(0)
    apart = groups[:, None] != groups
    assert d[~apart].max() < 0.3 * d[apart].min()


def test_equal_embeddings_have_a_finite_gradient():
    x = torch.zeros(4, 3, requires_grad=True)
    relaxed_contrastive(x, torch.full((4, 4), 0.5), 1.0).backward()
    assert x.grad.isfinite().all()
    x = torch.tensor([[0.0, 1.0], [0.0, 1.0], [3.0, 1.0]], requires_grad=True)
    relaxed_contrastive(x, torch.rand(3, 3), 1.0).backward()
    assert x.grad.isfinite().all() and x.grad.abs().max() > 0


def test_distances_far_from_the_origin_are_those_of_plain_loops():
    x = 1000 + torch.rand(5, 8)
    expected = [[math.dist(a, b) for b in x.tolist()] for a in x.tolist()]
    torch.testing.assert_close(distances(x), torch.tensor(expected), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("width", [0.5, 2.0])
def test_teachers_say_how_alike_images_are(count, width):
    torch.manual_seed(1)
    teachers = [nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).double() for _ in range(count)]
    images = torch.randn(6, 3, 2, 2, dtype=torch.float64)
    loss = RelaxedContrastive(teachers, width=width)
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    loss.see(images)
    found = loss(x, torch.zeros(6, dtype=torch.long))
    likeness = likeness_by_loops([teacher(images).tolist() for teacher in teachers], width)
    assert found.item() == pytest.approx(by_loops(x.tolist(), likeness, 1.0), rel=1e-5)  # teachers' are in float32
    found.backward()
    assert x.grad.abs().max() > 0
    assert all(p.grad is None for teacher in teachers for p in teacher.parameters())
    assert not list(loss.parameters()) and not loss.state_dict()


def test_each_step_shows_its_own_images():
    loss = RelaxedContrastive([nn.Flatten()])
    x, labels = torch.randn(4, 2), torch.zeros(4, dtype=torch.long)
    with pytest.raises(InputError, match=r"Show the images of the batch to the loss before .* loss.see\(images\)"):
        loss(x, labels)
    loss.see(torch.rand(4, 3, 2, 2))
    loss(x, labels)
    with pytest.raises(InputError, match="Show the images"):  # those of the step before do not serve again
        loss(x, labels)
    loss.see(torch.rand(3, 3, 2, 2))
    with pytest.raises(InputError, match="Show the images"):
        loss(x, labels)
    with pytest.raises(InputError, match="at least one teacher"):
        RelaxedContrastive([])


def test_every_image_comes_twice():
    labels = torch.arange(4).repeat_interleave(5)
    batches = RelaxedContrastive([nn.Flatten()], sampler=samplers.per_class(2)).batches(labels, 8, 0, 0)
    assert batches and all(len(batch) == 8 and (batch[:4] == batch[4:]).all() for batch in batches)
    assert all(len(batch[:4].unique()) == 4 for batch in batches)
