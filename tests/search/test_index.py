import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nngk.errors import InputError
from nngk.search import Index
from nngk.search.index import MEASURES
from nngk.search.native import core

needs_core = pytest.mark.skipif(core() is None, reason="needs the compiled core")
WAYS = [("exact", measure) for measure in MEASURES]
WAYS += [pytest.param("fanng", measure, marks=needs_core) for measure in ("l2", "cosine")]


def best(points, ids, query, k, measure):
    """Return the ids of the best points by plain loops in float64, and their values."""
    found = []
    for i, p in zip(ids, points):
        if measure == "l2":
            value = sum((float(a) - float(b)) ** 2 for a, b in zip(p, query))
        else:
            value = sum(float(a) * float(b) for a, b in zip(p, query))
            if measure == "cosine":
                value /= sum(float(a) ** 2 for a in p) ** 0.5 * sum(float(b) ** 2 for b in query) ** 0.5
        found.append((value if measure == "l2" else -value, i, value))
    found.sort()
    return [i for _, i, _ in found[:k]], [value for _, _, value in found[:k]]


def cloud(n, dim, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=generator) * torch.rand(n, 1, generator=generator).mul(3)


@pytest.mark.parametrize(("engine", "measure"), WAYS)
def test_answers_are_those_of_plain_loops(engine, measure):
    points, queries = cloud(150, 6), cloud(5, 6, seed=1)
    ids = list(range(1000, 1150))
    index = Index(6, measure, engine=engine)
    index.add(points[:100], ids[:100])
    index.add(points[100:].numpy(), ids[100:])
    values, found = index.search(queries, 7)
    for row, query in enumerate(queries):
        want, measured = best(points, ids, query, 7, measure)
        assert found[row].tolist() == want
        assert values[row].tolist() == pytest.approx(measured, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(("engine", "measure"), WAYS)
@pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
def test_only_what_is_allowed_is_found(engine, measure, share):
    points, queries = cloud(400, 5), cloud(4, 5, seed=1)
    index = Index(5, measure, engine=engine)
    index.add(points)
    allowed = np.random.default_rng(0).permutation(400)[: int(400 * share)]
    _, found = index.search(queries, 6, allowed=allowed)
    for row, query in enumerate(queries):
        assert found[row].tolist() == best(points[allowed], allowed.tolist(), query, 6, measure)[0]


def test_the_rest_is_compared_where_walks_do_not_find_enough():
    # Everything allowed is as far away as can be, so that every search for nearest points misses it at first.
    near, far = cloud(300, 4), cloud(60, 4, seed=2) + 100
    index = Index(4, engine="exact")
    index._kind = "other"  # an engine that is asked for more and more
    index.add(torch.cat([near, far]))
    allowed = list(range(300, 360))
    _, found = index.search(cloud(3, 4, seed=3), 5, allowed=allowed)
    for row, query in enumerate(cloud(3, 4, seed=3)):
        assert found[row].tolist() == best(far, allowed, query, 5, "l2")[0]


@pytest.mark.parametrize(("engine", "measure"), WAYS)
def test_removed_points_are_gone_and_their_ids_free(engine, measure):
    points = cloud(80, 4)
    index = Index(4, measure, engine=engine)
    index.add(points)
    index.remove([0, 5, 79])
    assert len(index) == 77 and not {0, 5, 79} & set(index.ids.tolist())
    index.add(4 * points[:1], ids=[5])  # a longer one, for which inner products are placed anew
    kept = [i for i in range(80) if i not in (0, 5, 79)]
    now = torch.cat([points[kept], 4 * points[:1]])
    _, found = index.search(points[:3], 4)
    for row in range(3):
        assert found[row].tolist() == best(now, [*kept, 5], points[row], 4, measure)[0]


def test_ids_count_on():
    index = Index(2)
    index.add(torch.eye(2), ids=[7, 3])
    index.add(torch.eye(2) * 2)
    assert index.ids.tolist() == [7, 3, 8, 9]
    index.add(torch.empty(0, 2))
    assert len(index) == 4


@pytest.mark.parametrize(
    ("does", "sentence"),
    [
        (lambda index: index.add(torch.eye(2), ids=[1]), "2 points but 1 ids"),
        (lambda index: index.add(torch.eye(2), ids=[5, 5]), "5 is given twice"),
        (lambda index: index.add(torch.eye(2), ids=[9, 0]), "0 is given twice"),
        (lambda index: index.add(torch.eye(2), ids=[-1, 4]), "count from 0"),
        (lambda index: index.add(torch.eye(3)), "shape"),
        (lambda index: index.remove([44]), "No point has the id 44"),
        (lambda index: index.search(torch.eye(2), 4), "at most 3"),
        (lambda index: index.search(torch.eye(2), 2, allowed=[1]), "at most 1.*allowed"),
        (lambda index: index.search(torch.eye(2), 1, allowed=[8]), "No point has the id 8"),
        (lambda index: index.search(torch.eye(2), 1.5), "whole number"),
        (lambda index: index.search(torch.tensor([[0.0, torch.nan]]), 1), "NaN"),
        (lambda _: Index(2, "manhattan"), "one of l2, cosine"),
        (lambda _: Index(2, engine="faiss"), "'exact' or by 'fanng'"),
        (lambda _: Index(2, "inner product", engine="fanng"), "engine='exact'"),
    ],
)
def test_mistakes_get_a_sentence_and_change_nothing(does, sentence):
    index = Index(2)
    index.add(torch.rand(3, 2))
    before = index.search(torch.eye(2), 3)
    with pytest.raises(InputError, match=sentence):
        does(index)
    after = index.search(torch.eye(2), 3)
    assert len(index) == 3 and all(torch.equal(a, b) for a, b in zip(before, after))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_points_and_any_filter(data):
    n, dim = data.draw(st.integers(1, 25)), data.draw(st.integers(1, 4))
    measure = data.draw(st.sampled_from(MEASURES))
    # Whole numbers: ties are real ties, and rounding decides nothing.
    numbers = st.lists(st.integers(-4, 4), min_size=dim, max_size=dim)
    points = torch.tensor(data.draw(st.lists(numbers, min_size=n, max_size=n))).float()
    query = torch.tensor([data.draw(numbers)]).float()
    allowed = data.draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True))
    k = data.draw(st.integers(1, len(allowed)))
    index = Index(dim, measure)
    index.add(points)
    values, found = index.search(query, k, allowed=allowed)
    assert set(found[0].tolist()) <= set(allowed) and len(set(found[0].tolist())) == k
    if measure != "cosine" or (points.any(1).all() and query.any()):
        want = best(points[allowed], allowed, query[0], k, measure)[1]
        assert values[0].tolist() == pytest.approx(want, abs=1e-4)
