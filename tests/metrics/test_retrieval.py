import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nngk.errors import InputError
from nngk.metrics import (
    evaluate,
    mean_average_precision_at_r,
    r_precision,
    recall_at_k,
    retrieval,
    retrieval_scores,
)


def plain_loops(x, y, ks):
    """Every metric by definition, one query at a time; queries without another of their class are skipped."""
    sums = dict.fromkeys([*(f"recall@{k}" for k in ks), "r_precision", "map@r"], 0.0)
    queries = 0
    for i in range(len(x)):
        others = [j for j in range(len(x)) if j != i]
        others.sort(key=lambda j: math.dist(x[i], x[j]))
        right = [y[j] == y[i] for j in others]
        relevant = sum(right)
        if not relevant:
            continue
        queries += 1
        for k in ks:
            sums[f"recall@{k}"] += any(right[:k])
        sums["r_precision"] += sum(right[:relevant]) / relevant
        sums["map@r"] += sum(sum(right[: r + 1]) / (r + 1) for r in range(relevant) if right[r]) / relevant
    return {name: value / queries for name, value in sums.items()}


def clustered(n, classes, dim, spread, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=n)
    return rng.normal(size=(classes, dim))[y] + spread * rng.normal(size=(n, dim)), y


@pytest.mark.parametrize("seed", range(5))
def test_equals_plain_loops(seed):
    x, y = clustered(60, 7, 5, 0.8, seed)
    ours = retrieval_scores(x, y, (1, 2, 4, 8))
    assert ours == pytest.approx(plain_loops(x.tolist(), y.tolist(), (1, 2, 4, 8)), abs=1e-12)


@pytest.mark.parametrize("imbalance", [False, True])
def test_equals_pytorch_metric_learning(imbalance):
    accuracy = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    x, y = clustered(300, 20, 8, 0.7, 3)
    if imbalance:
        y = np.where(y < 12, 0, y)
        y[:3] = [100, 101, 102]  # classes of one example
    x = x.astype(np.float32)
    ours = retrieval_scores(x, y, (1,))
    calculator = accuracy.AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"), k="max_bin_count"
    )
    theirs = calculator.get_accuracy(torch.from_numpy(x), torch.from_numpy(y))
    assert ours["recall@1"] == pytest.approx(theirs["precision_at_1"], abs=1e-6)
    assert ours["r_precision"] == pytest.approx(theirs["r_precision"], abs=1e-6)
    assert ours["map@r"] == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-6)


@pytest.mark.parametrize("neighbours", [1, 60, 101, 700])  # of one block: less than one query has, and more
def test_blocks_do_not_change_the_answer(neighbours, monkeypatch):
    x, y = clustered(101, 9, 4, 0.6, 1)
    whole = retrieval_scores(x, y)
    monkeypatch.setattr(retrieval, "BLOCK", neighbours)
    assert retrieval_scores(x, y) == pytest.approx(whole, abs=1e-12)


def test_a_sample_asks_and_everybody_answers():
    x, y = clustered(50, 6, 4, 0.8, 5)
    each = [retrieval_scores(x, y, (1, 3), queries=[i]) for i in range(50)]
    whole = retrieval_scores(x, y, (1, 3))
    assert {name: np.mean([one[name] for one in each]) for name in whole} == pytest.approx(whole, abs=1e-12)
    some = evaluate(x, y, ks=(1, 3), nmi_seeds=0, queries=np.array([4, 17]))
    assert some == pytest.approx({name: (each[4][name] + each[17][name]) / 2 for name in whole}, abs=1e-12)
    for wrong in ([], [50], [-1], [0.5], [[1]], "all"):
        with pytest.raises(InputError, match="Queries must be"):
            retrieval_scores(x, y, queries=wrong)


def test_own_index_is_never_an_answer_and_duplicates_are():
    x = torch.zeros(4, 3)
    x[2:] = 1.0
    assert recall_at_k(x, [0, 1, 2, 2], k=1) == 1.0  # only the last two ask, and each finds its duplicate
    assert recall_at_k(x, [0, 1, 0, 1], k=1) == 0.0  # nearest is the duplicate of another class, not oneself


def test_single_examples_are_left_out_of_the_mean_but_can_be_answers():
    x = torch.tensor([[0.0], [0.1], [0.3]])
    assert recall_at_k(x, [0, 1, 0], k=1) == 0.0
    assert recall_at_k(x, [0, 1, 0], k=2) == 1.0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(6, 30), st.integers(2, 4))
def test_properties(seed, n, classes):
    x, y = clustered(n, classes, 3, 1.0, seed)
    if (np.bincount(y) < 2).all():
        return
    scores = retrieval_scores(x, y, (1, 2, 4, 100))
    assert 0 <= scores["map@r"] <= scores["r_precision"] <= 1
    assert scores["recall@1"] <= scores["recall@2"] <= scores["recall@4"] <= scores["recall@100"] == 1
    order = np.random.default_rng(seed).permutation(n)
    assert retrieval_scores(x[order] * 3 + 100, 50 - y[order], (1, 2, 4, 100)) == pytest.approx(scores, abs=1e-9)


def test_far_from_the_origin_in_float32():
    x, y = clustered(200, 10, 16, 0.5, 0)
    shifted = (x + 1000).astype(np.float32)
    assert retrieval_scores(shifted, y) == pytest.approx(retrieval_scores(shifted.astype(np.float64), y), abs=0.01)


def test_single_metrics_agree_with_the_pass():
    x, y = clustered(80, 8, 4, 0.5, 5)
    scores = evaluate(x, y, nmi_seeds=0)
    assert "nmi" not in scores
    assert scores["recall@4"] == recall_at_k(x, y, 4)
    assert scores["r_precision"] == r_precision(x, y)
    assert scores["map@r"] == mean_average_precision_at_r(x, y)


def test_ignores_autocast_and_accepts_half():
    x, y = clustered(120, 10, 6, 0.6, 2)
    x = torch.from_numpy(x).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert retrieval_scores(x, y) == retrieval_scores(x, y)
        inside = retrieval_scores(x, y)
    assert inside == retrieval_scores(x, y)
    assert retrieval_scores(x.half(), y) == retrieval_scores(x.half().float(), y)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([[0.0], [math.nan], [1.0]], [0, 0, 1], "NaN or infinity in 1 of 3 rows, first in row 1"),
        ([[0.0], [1.0]], [0, 0, 1], "one label for each of the 2 rows"),
        ([0.0, 1.0], [0, 0], "must be a matrix"),
        ([[0.0], [1.0]], [0, 1], "Every class has a single example"),
        ([[0.0]], [0], "at least two examples"),
        ([[0.0], [1.0]], [0.5, 0.5], "must be integers"),
    ],
)
def test_bad_input(x, y, message):
    with pytest.raises(InputError, match=message):
        evaluate(x, y)


def test_bad_k():
    with pytest.raises(InputError, match="at least 1, got 0"):
        recall_at_k([[0.0], [1.0]], [0, 0], k=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_equals_cpu():
    x, y = clustered(500, 20, 16, 0.6, 4)
    x = torch.from_numpy(x).float()
    on_gpu = evaluate(x.cuda(), torch.from_numpy(y))
    on_cpu = evaluate(x, y)
    assert on_gpu == pytest.approx(on_cpu, abs=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_queries_against_a_gallery_equal_plain_loops(seed):
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(40, 3, generator=g, dtype=torch.float64), torch.randint(5, (40,), generator=g)
    order = torch.randperm(40, generator=g)
    queries, gallery = order[:15], order[12:30]  # three ask and answer, but not themselves
    found = retrieval_scores(x, y, (1, 3), queries=queries, gallery=gallery)
    recalls, precisions = {1: [], 3: []}, []
    for q in queries.tolist():
        others = sorted((float((x[q] - x[a]).square().sum()), a) for a in gallery.tolist() if a != q)
        hits = [int(y[a] == y[q]) for _, a in others]
        if not (relevant := sum(hits)):
            continue
        for k, seen in recalls.items():
            seen.append(any(hits[:k]))
        precisions.append(sum(h * sum(hits[: i + 1]) / (i + 1) for i, h in enumerate(hits[:relevant])) / relevant)
    for k, seen in recalls.items():
        assert found[f"recall@{k}"] == pytest.approx(sum(seen) / len(seen))
    assert found["map@r"] == pytest.approx(sum(precisions) / len(precisions))


def test_a_gallery_without_the_class_of_a_query():
    with pytest.raises(InputError, match="No image of the gallery has the class of a query"):
        retrieval_scores([[0.0], [1.0], [2.0]], [0, 0, 1], queries=[0, 1], gallery=[2])
    with pytest.raises(InputError, match="Gallery must be indices"):
        retrieval_scores([[0.0], [1.0]], [0, 0], gallery=[7])
    # Every K may be asked for, and an example never finds itself.
    assert retrieval_scores([[0.0], [1.0], [2.0]], [0, 0, 1], (9,), queries=[0], gallery=[0, 2, 1])["recall@9"] == 1
