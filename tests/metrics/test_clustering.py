import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nngk.errors import InputError
from nngk.metrics import clustering, evaluate, kmeans, nmi, normalised_mutual_information

sklearn_cluster = pytest.importorskip("sklearn.cluster")
sklearn_metrics = pytest.importorskip("sklearn.metrics")


def blobs(n, classes, dim, spread, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=n)
    return rng.normal(size=(classes, dim))[y] + spread * rng.normal(size=(n, dim)), y


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 6), st.integers(0, 5)), min_size=1, max_size=60))
@pytest.mark.thorough
def test_nmi_equals_scikit_learn(pairs):
    a, b = (list(column) for column in zip(*pairs))
    expected = sklearn_metrics.normalized_mutual_info_score(a, b, average_method="arithmetic")
    assert normalised_mutual_information(a, b) == pytest.approx(expected, abs=1e-10)


def test_nmi_by_plain_loops():
    rng = np.random.default_rng(0)
    a, b = rng.integers(4, size=50), rng.integers(5, size=50)
    information = entropy_a = entropy_b = 0.0
    for i in range(4):
        p = np.mean(a == i)
        entropy_a -= p * np.log(p)
        for j in range(5):
            q, joint = np.mean(b == j), np.mean((a == i) & (b == j))
            information += joint * np.log(joint / (p * q)) if joint else 0.0
    for j in range(5):
        entropy_b -= np.mean(b == j) * np.log(np.mean(b == j))
    assert normalised_mutual_information(a, b) == pytest.approx(2 * information / (entropy_a + entropy_b), abs=1e-12)


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
@pytest.mark.thorough
def test_kmeans_is_as_good_as_scikit_learn(spread):
    x, _ = blobs(400, 10, 6, spread, 1)
    ours = [kmeans(x, 10, seed=s).inertia for s in range(30)]
    theirs = [sklearn_cluster.KMeans(10, n_init=1, random_state=s).fit(x).inertia_ for s in range(30)]
    assert np.mean(ours) <= np.mean(theirs) * 1.02
    best = kmeans(x, 10, restarts=10)
    assert best.inertia <= np.median(ours)
    distances = ((x[:, None] - best.centres.numpy()[None]) ** 2).sum(-1)
    assert (distances.argmin(1) == best.clusters.numpy()).all()
    assert best.inertia == pytest.approx(distances.min(1).sum())


@pytest.mark.parametrize("seed", range(8))
def test_points_are_reassigned_as_if_all_centres_were_looked_at(seed):
    """Whatever bounds leave out after several moves of the centres, some far and some near, would have stayed."""
    rng = np.random.default_rng(seed)
    x, centres = torch.from_numpy(rng.normal(size=(60, 3))), torch.from_numpy(rng.normal(size=(9, 3)))
    assigned = clustering._assigned(x, centres)
    for _ in range(6):
        moves = torch.from_numpy(rng.normal(size=(9, 3)) * rng.choice([0, 0.001, 0.03, 0.5], size=(9, 1)))
        centres = centres + moves
        assigned = clustering._reassigned(x, centres, moves.norm(dim=1), assigned)
        for point, own, within, beyond in zip(x, *assigned):
            distances = [float((point - centre).square().sum().sqrt()) for centre in centres]
            assert int(own) == int(np.argmin(distances))
            assert distances.pop(own) <= float(within) + 1e-12
            assert min(distances) >= float(beyond) - 1e-12


def test_an_empty_cluster_moves_to_the_farthest_point_whatever_its_bound_says():
    x = torch.tensor([[0.0], [1.0], [5.0], [10.0], [12.0]])
    centres = torch.tensor([[1.0], [11.0], [99.0]])
    bounds = torch.tensor([9.0, 8.0, 4.5, 7.0, 7.0])  # those of points that were long not looked at have grown
    assigned = clustering.Assigned(torch.tensor([0, 0, 0, 1, 1]), bounds, torch.zeros(5))
    assert clustering._means(x, assigned, centres).tolist() == [[2.0], [11.0], [5.0]]


def test_centres_that_hardly_move_are_hardly_looked_at(monkeypatch):
    x, _ = blobs(2000, 20, 6, 0.3, 2)
    asked = []
    search = clustering.Exact.search

    def counted(engine, queries, k):
        asked.append(len(queries) * len(engine))
        return search(engine, queries, k)

    monkeypatch.setattr(clustering.Exact, "search", counted)
    x = torch.from_numpy(x)
    found = clustering._lloyd(x, x[:20], 100, 0.0)
    assert len(asked) > 5 and sum(asked[-5:]) < 2000 * 20 / 2 and sum(asked) > 2000 * 20
    assert found.inertia < 2000


def test_lloyd_from_the_same_seeds_equals_scikit_learn():
    x, _ = blobs(300, 8, 5, 0.7, 2)
    start = torch.from_numpy(x[:8])
    ours = clustering._lloyd(torch.from_numpy(x), start, 300, 0.0)
    theirs = sklearn_cluster.KMeans(8, init=x[:8], n_init=1, tol=0, max_iter=300, algorithm="lloyd").fit(x)
    assert ours.inertia == pytest.approx(theirs.inertia_, rel=1e-9)
    np.testing.assert_allclose(ours.centres, theirs.cluster_centers_, atol=1e-9)


def test_nmi_of_embeddings_agrees_with_scikit_learn():
    x, y = blobs(500, 12, 8, 0.6, 3)
    theirs = np.mean(
        [
            sklearn_metrics.normalized_mutual_info_score(y, sklearn_cluster.KMeans(12, random_state=s).fit_predict(x))
            for s in range(5)
        ]
    )
    assert nmi(x, y, seeds=5) == pytest.approx(theirs, abs=0.03)


def test_seeding_spreads_out():
    """Each of well separated groups gets one seed, where uniform draws would leave most runs without one."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(np.repeat(np.arange(12.0)[:, None] * 100, 20, 0) + rng.normal(size=(240, 1)))
    for seed in range(10):
        seeds = clustering._seeds(x, 12, torch.Generator().manual_seed(seed))
        assert len({round(v / 100) for v in seeds[:, 0].tolist()}) == 12


def test_seeds_are_the_same_from_a_table_of_distances(monkeypatch):
    x = torch.as_tensor(blobs(300, 20, 6, 0.5, 5)[0])
    seeds = clustering._seeds(x, 20, torch.Generator().manual_seed(1))
    monkeypatch.setattr(clustering, "TABLE", 0)
    assert torch.equal(clustering._seeds(x, 20, torch.Generator().manual_seed(1)), seeds)


@pytest.mark.parametrize("spread", [0.2, 0.7])
def test_very_many_points_start_from_samples_and_end_better(spread, monkeypatch):
    x = torch.as_tensor(blobs(3000, 40, 8, spread, 2)[0])
    whole = [kmeans(x, 40, seed=seed).inertia for seed in range(5)]
    monkeypatch.setattr(clustering, "SEEDING", 4000)
    found = [kmeans(x, 40, seed=seed) for seed in range(5)]
    assert torch.equal(kmeans(x, 40, seed=3).clusters, found[3].clusters)
    assert np.mean([run.inertia for run in found]) < 0.995 * np.mean(whole)


def _sum(x, centres):
    return float(torch.cdist(x, centres).square().min(1).values.sum())


def test_a_swap_mends_a_split_and_a_merged_class():
    x = torch.as_tensor(blobs(400, 4, 6, 0.1, 7)[0])
    groups = kmeans(x, 4, restarts=5).clusters
    clusters = groups.clone()
    clusters[groups == 3] = 2  # two classes in one cluster, and one class in two
    clusters[(groups == 0) & (torch.arange(400) % 2 == 0)] = 3
    means = torch.stack([x[clusters == c].mean(0) for c in range(4)])
    swapped = clustering._swapped(x, clusters, means)
    expected = torch.stack([x[groups == c].mean(0) for c in range(4)])
    torch.testing.assert_close(swapped[swapped[:, 0].argsort()], expected[expected[:, 0].argsort()])
    torch.testing.assert_close(clustering._swapped(x, groups, expected), expected)  # nothing is left to mend


@pytest.mark.parametrize("seed", range(6))
def test_swaps_gain_what_they_promise(seed):
    """The halves' gain and the merges' cost are the changes of the sum; swaps never make it larger."""
    x = torch.as_tensor(blobs(200, 6, 3, 0.6, seed)[0])
    clusters = torch.as_tensor(np.random.default_rng(seed).integers(9, size=200))
    clusters[clusters == 4] = 5  # an empty cluster
    means = torch.stack([x[clusters == c].mean(0) if (clusters == c).any() else x[0] for c in range(9)])
    halves, gains = clustering._halves(x, clusters, means)
    costs, mates = clustering._cheapest_merges(means, torch.bincount(clusters, minlength=9).double())

    def within(points):
        return float((points - points.mean(0)).square().sum()) if len(points) else 0.0

    for c in range(9):
        own = x[clusters == c]
        assert within(own) - float(gains[c]) >= _sum(own, halves[c]) - 1e-9
        pair = [within(x[(clusters == c) | (clusters == d)]) - within(own) - within(x[clusters == d]) for d in range(9)]
        pair[c] = np.inf
        assert float(costs[c]) == pytest.approx(min(pair), abs=1e-9)
        assert pair[int(mates[c])] == pytest.approx(min(pair), abs=1e-9)
    before = sum(within(x[clusters == c]) for c in range(9))
    assert _sum(x, clustering._swapped(x, clusters, means)) < before


def test_halves_lie_across_the_longest_direction():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(300, 5)) * [1, 1, 6, 1, 1])
    halves, _ = clustering._halves(x, torch.zeros(300, dtype=torch.long), x.mean(0, keepdim=True))
    apart = (halves[0, 0] - halves[0, 1]).abs()
    assert apart[2] > 8 and apart[[0, 1, 3, 4]].max() < 1.5


def test_repeats_for_a_seed_and_over_blocks(monkeypatch):
    x, y = blobs(200, 6, 4, 0.8, 4)
    first = kmeans(x, 6, seed=5)
    assert (kmeans(x, 6, seed=5).clusters == first.clusters).all()
    assert nmi(x, y) == nmi(x, y)
    monkeypatch.setattr(clustering, "TILE", 100)
    assert (kmeans(x, 6, seed=5).clusters == first.clusters).all()


def test_empty_clusters_are_used_again():
    x = torch.tensor([[0.0], [0.1], [10.0], [10.1], [20.0]], dtype=torch.float64)
    found = clustering._lloyd(x, torch.tensor([[5.0], [1000.0], [2000.0]], dtype=torch.float64), 50, 0.0)
    assert found.inertia == pytest.approx(0.01)
    assert len(found.clusters.unique()) == 3


def test_identical_points_and_extremes():
    assert kmeans(torch.ones(7, 3), 4).inertia == 0.0
    assert kmeans(torch.arange(6.0)[:, None], 6).inertia == pytest.approx(0.0)
    assert nmi(torch.ones(6, 2), [0, 0, 0, 1, 1, 1]) == pytest.approx(0.0, abs=1e-12)
    assert normalised_mutual_information([1, 1], [2, 2]) == 1.0
    assert evaluate([[0.0], [0.2], [1.0]], [4, 4, 4])["nmi"] == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kmeans([[0.0], [1.0]], 3), "between 1 and 2 clusters"),
        (lambda: kmeans([[float("inf")], [1.0]], 1), "NaN or infinity"),
        (lambda: kmeans([[0.0], [1.0]], 1, restarts=0), "at least one restart"),
        (lambda: nmi([[0.0], [1.0]], [0]), "one label for each"),
        (lambda: nmi([[0.0], [1.0]], [0, 1], seeds=0), "at least one k-means seed"),
        (lambda: normalised_mutual_information([0, 1], [0]), "one label for each"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()
