import itertools

import numpy as np
import pytest
import torch

from nngk.losses.structured_clustering import Clustering, assign, best_medoids, class_medoids, scores_with
from nngk.metrics import normalised_mutual_information


def problem(seed, n=10, classes=3, dim=3, spread=0.8):
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(classes), rng.integers(classes, size=n - classes)])
    x = rng.normal(size=(classes, dim))[y] + spread * rng.normal(size=(n, dim))
    x = torch.from_numpy(x / np.linalg.norm(x, axis=1, keepdims=True))
    return x, torch.from_numpy(y)


def distances_of(x):
    return torch.linalg.vector_norm(x[:, None] - x[None], dim=2)


def objective(d, y, medoids, gamma):
    """F + γΔ by definition, one point at a time; a medoid belongs to itself."""
    cost, clusters = 0.0, []
    for i, row in enumerate(d.tolist()):
        nearest = i if i in medoids else min(medoids, key=lambda j: row[j])
        clusters.append(nearest)
        cost += row[nearest]
    return -cost + gamma * (1 - normalised_mutual_information(clusters, y))


def test_scores_of_all_candidates_equal_the_definition():
    for seed in range(5):
        x, y = problem(seed)
        d = distances_of(x)
        gaps = d.clone().fill_diagonal_(-1)
        for chosen in ([], [4], [7, 2], [1, 0, 9]):
            ours = scores_with(gaps, y, 3, torch.tensor([chosen], dtype=torch.long), 2.0)[0]
            for j in range(len(d)):
                if j in chosen:
                    assert ours[j] == -torch.inf
                else:
                    assert float(ours[j]) == pytest.approx(objective(d, y, [*chosen, j], 2.0), abs=1e-9)


@pytest.mark.parametrize("gamma", [1.0, 5.0])
@pytest.mark.thorough
def test_finds_the_true_maximum_and_never_less_than_greedy(gamma):
    found = 0
    for seed in range(60):
        classes = 2 + seed % 3
        x, y = problem(seed, n=8 + seed % 4, classes=classes)
        d = distances_of(x)
        subsets = itertools.combinations(range(len(d)), classes)
        best = max(objective(d, y, subset, gamma) for subset in subsets)
        refined = objective(d, y, best_medoids(d, y, gamma, rounds=5).tolist(), gamma)
        greedy = objective(d, y, best_medoids(d, y, gamma, rounds=0, starts=1).tolist(), gamma)
        assert greedy - 1e-9 <= refined <= best + 1e-9
        found += refined >= best - 1e-6
    assert found >= 54


def test_medoids_are_distinct_and_members():
    x, y = problem(3, n=24, classes=6)
    d = distances_of(x)
    chosen = best_medoids(d, y, 1.0, 5)
    assert len(chosen.unique()) == 6
    assert (assign(d, chosen)[chosen] == torch.arange(6)).all()
    for c, medoid in enumerate(class_medoids(d, y).tolist()):
        members = (y == c).nonzero().flatten().tolist()
        assert medoid == min(members, key=lambda j: float(d[members, j].sum()))


def plain_loss(x, y, gamma):
    """The loss by enumeration, with the gradient through the distances to the best medoids."""
    u = x / x.norm(dim=1, keepdim=True)
    d = distances_of(u.detach())
    classes = int(y.max()) + 1
    best = max(itertools.combinations(range(len(d)), classes), key=lambda s: objective(d, y, s, gamma))
    value = torch.zeros((), dtype=x.dtype)
    clusters = []
    for i in range(len(d)):
        nearest = i if i in best else min(best, key=lambda j: float(d[i, j]))
        clusters.append(nearest)
        if nearest != i:
            value = value - (u[i] - u[nearest]).pow(2).sum().sqrt()
    value = value + gamma * (1 - normalised_mutual_information(clusters, y))
    for c in range(classes):
        members = [i for i in range(len(d)) if y[i] == c]
        medoid = min(members, key=lambda j: sum(float(d[i, j]) for i in members))
        value = value + sum((u[i] - u[medoid]).pow(2).sum().sqrt() for i in members if i != medoid)
    return torch.relu(value)


@pytest.mark.parametrize("seed", range(8))
def test_value_and_gradient_equal_plain_loops(seed):
    x, y = problem(seed, n=9)
    x = (2 * x).requires_grad_()
    y[[0, 4]] = y[[4, 0]]
    loss = Clustering(gamma=2.0)
    loss.start_epoch(2)
    ours, expected = loss(x, y), plain_loss(x, y, 2.0 * 0.94**2)
    assert ours.item() == pytest.approx(expected.item(), abs=1e-9)
    torch.testing.assert_close(*(torch.autograd.grad(value, x)[0] for value in (ours, expected)), rtol=1e-8, atol=1e-9)


def test_perfect_clusters_cost_nothing_and_labels_need_no_order():
    x = torch.eye(3).repeat_interleave(3, 0)
    y = torch.tensor([40, 40, 40, 7, 7, 7, 19, 19, 19])
    assert float(Clustering()(x, y)) == 0.0
    assert float(Clustering()(x, y[torch.tensor([0, 3, 6, 1, 4, 7, 2, 5, 8])])) > 0.5
    assert float(Clustering()(torch.randn(5, 3), torch.zeros(5, dtype=torch.long))) >= 0.0


def test_gamma_decays_and_is_restored():
    loss = Clustering()
    loss.start_epoch(7)
    other = Clustering()
    other.load_state_dict(loss.state_dict())
    assert int(other.epoch) == 7
