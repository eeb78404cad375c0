"""The start of an embedding layer: directions that tell classes apart, against scikit-learn and plain algebra."""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import nn

from nngk.errors import InputError
from nngk.networks.embedding_layer.discriminant import REST, discriminant, start_embedding


def blobs(classes=6, each=30, channels=10, seed=0):
    """Classes whose means differ in a few directions, with a spread that is longer in others."""
    g = torch.Generator().manual_seed(seed)
    means = torch.randn(classes, channels, generator=g) * torch.linspace(2, 0, channels)
    labels = torch.arange(classes).repeat_interleave(each)
    spread = torch.linspace(0.3, 4, channels)
    return means[labels] + torch.randn(len(labels), channels, generator=g) * spread, labels


def test_the_first_directions_are_those_of_linear_discriminant_analysis():
    x, labels = blobs()
    ours = discriminant(x, labels, 5, shrinkage=1e-9).double().numpy()
    theirs = LinearDiscriminantAnalysis(solver="eigen").fit(x.numpy(), labels.numpy()).scalings_[:, :5]
    # The same subspace: the projectors on it agree.
    a, b = (np.linalg.qr(w)[0] for w in (ours, theirs))
    np.testing.assert_allclose(a @ a.T, b @ b.T, atol=1e-4)


def test_classes_are_round_and_directions_uncorrelated_for_the_spread():
    x, labels = blobs()
    w = discriminant(x, labels, 10, shrinkage=0.5).double()
    within = x.double() - torch.stack([x[labels == c].double().mean(0) for c in range(6)])[labels]
    spread = within.T @ within / len(x)
    spread += 0.5 * spread.diagonal().mean() * torch.eye(10, dtype=torch.float64)
    scale = torch.tensor([1.0] * 5 + [REST] * 5, dtype=torch.float64)  # five directions tell six classes apart
    torch.testing.assert_close(w.T @ spread @ w, scale.square().diag(), atol=1e-4, rtol=1e-4)


def test_shrinkage_without_end_is_the_means_own_directions():
    x, labels = blobs()
    w = discriminant(x, labels, 5, shrinkage=1e9).double()
    means = torch.stack([x[labels == c].double().mean(0) for c in range(6)]) - x.double().mean(0)
    v = torch.linalg.svd(means, full_matrices=False)[2][:5].T
    q = torch.linalg.qr(w)[0]
    torch.testing.assert_close(q @ q.T, v @ v.T, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dim", [3, 10, 13])
def test_a_layer_starts_centred_at_its_own_scale(dim):
    x, labels = blobs()
    linear = nn.Linear(10, dim)
    before = linear.weight.detach().clone()
    start_embedding(linear, x, labels)
    torch.testing.assert_close(linear(x).mean(0), torch.zeros(dim), atol=1e-4, rtol=0)
    after = linear.weight.detach()[:10]
    assert float(after.pow(2).mean().sqrt()) == pytest.approx(float(before.pow(2).mean().sqrt()), rel=1e-4)
    assert torch.equal(linear.weight[10:], before[10:])  # more rows than the features have directions: left at random


def test_few_images_and_equal_features_do_no_harm():
    linear = nn.Linear(10, 4)
    start_embedding(linear, torch.randn(4, 10), torch.tensor([0, 0, 1, 1]))
    assert linear.weight.isfinite().all()
    start_embedding(linear, torch.ones(4, 10), torch.tensor([0, 0, 1, 1]))
    assert linear.weight.isfinite().all() and linear.bias.isfinite().all()


def test_one_class_is_refused():
    with pytest.raises(InputError, match="two classes"):
        discriminant(torch.randn(5, 3), torch.zeros(5, dtype=torch.long), 2)


def test_many_images_are_sampled(monkeypatch):
    from nngk.networks.embedding_layer import discriminant as module

    x, labels = blobs(each=200)
    whole = discriminant(x, labels, 5)
    monkeypatch.setattr(module, "ENOUGH", 600)
    some = discriminant(x, labels, 5)
    assert not torch.equal(whole, some)
    torch.testing.assert_close(some, discriminant(*(t[torch.linspace(0, 1199, 600).long()] for t in (x, labels)), 5))
