import numpy as np
import pytest
import torch

from nngk.errors import InputError
from nngk.metrics import expected_calibration_error, top_k_accuracy, wilson_interval


def random_probabilities(n, classes, seed, sharpness=2.0):
    rng = np.random.default_rng(seed)
    logits = sharpness * rng.normal(size=(n, classes))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return p, rng.integers(classes, size=n)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_k_equals_scikit_learn(k):
    metrics = pytest.importorskip("sklearn.metrics")
    p, y = random_probabilities(200, 7, 0)
    expected = metrics.top_k_accuracy_score(y, p, k=k, labels=range(7))
    assert top_k_accuracy(p, y, k) == pytest.approx(expected)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_calibration_error_equals_plain_loops(bins):
    p, y = random_probabilities(300, 5, 1)
    expected = 0.0
    for b in range(bins):
        rows = [i for i in range(300) if b / bins < p[i].max() <= (b + 1) / bins]
        if rows:
            accuracy = np.mean([p[i].argmax() == y[i] for i in rows])
            confidence = np.mean([p[i].max() for i in rows])
            expected += len(rows) / 300 * abs(accuracy - confidence)
    assert expected_calibration_error(p, y, bins) == pytest.approx(expected, abs=1e-12)


def test_a_calibrated_classifier_has_almost_none_and_a_boaster_has_it_all():
    rng = np.random.default_rng(2)
    p, _ = random_probabilities(20_000, 4, 2)
    y = np.array([rng.choice(4, p=row) for row in p])
    assert expected_calibration_error(p, y) < 0.015
    certain = torch.tensor([[1.0, 0.0]]).repeat(10, 1)
    assert expected_calibration_error(certain, [1] * 10) == 1.0
    assert expected_calibration_error(certain, [0] * 10) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: top_k_accuracy([[0.5, 0.5]], [0], k=3), "between 1 and the number of classes, 2; got 3"),
        (lambda: top_k_accuracy([[0.5, 0.5]], [2]), "between 0 and 1"),
        (lambda: top_k_accuracy([[0.5, 0.5]], [0, 1]), "one label for each of the 1 rows"),
        (lambda: top_k_accuracy([[0.5, float("nan")]], [0]), "NaN"),
        (lambda: expected_calibration_error([[2.0, 3.0]], [0]), "sum to one"),
        (lambda: expected_calibration_error([[0.5, 0.5]], [0], bins=0), "at least one bin"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(("right", "count"), [(0, 5), (3, 7), (27, 36), (10, 10)])
def test_wilsons_interval_solves_its_equation(right, count):
    """Its ends are the shares p from which the measured one is exactly z standard deviations away."""
    share, z = right / count, 1.959964
    low, high = wilson_interval(share, count)
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        if 1e-12 < end < 1 - 1e-12:
            assert (share - end) ** 2 == pytest.approx(z * z * end * (1 - end) / count, rel=1e-6)


def test_wilsons_interval_refuses_nonsense():
    for share, count in ((0.5, 0), (1.5, 3), (float("nan"), 3)):
        with pytest.raises(InputError):
            wilson_interval(share, count)
