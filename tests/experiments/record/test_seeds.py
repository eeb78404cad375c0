"""Welch's test against its formula with an integrated density, and what one seed cannot say."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nngk.experiments.record.seeds import Score, score_over_seeds, within_noise


def student_tail(t: float, freedom: float) -> float:
    """Two-sided tail of Student's t by plain integration of its density."""
    x = np.linspace(0.0, t, 200_001)
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    density = np.exp(log_scale - (freedom + 1) / 2 * np.log1p(x**2 / freedom))
    return 1 - 2 * float(np.trapezoid(density, x))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(2, 6), st.floats(0, 6), st.integers(0, 1000))
def test_noise_is_welchs_test_at_95_per_cent(n, m, gap, seed):
    pytest.importorskip("scipy")
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=n), gap + 2 * rng.normal(size=m)
    parts = [v.var(ddof=1) / len(v) for v in (a, b)]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(v) - 1) for part, v in zip(parts, (a, b)))
    p = student_tail(abs(a.mean() - b.mean()) / math.sqrt(sum(parts)), freedom)
    if abs(p - 0.05) > 1e-5:
        assert within_noise(score_over_seeds(a.tolist()), score_over_seeds(b.tolist())) is (p > 0.05)


def test_equal_runs_are_not_different():
    assert within_noise(Score(0.5, 0.0, 3), Score(0.5, 0.0, 3)) is True
    assert within_noise(Score(0.5, 0.0, 3), Score(0.6, 0.0, 3)) is False


def test_one_seed_has_no_deviation():
    assert score_over_seeds([0.25]) == Score(0.25, None, 1) and score_over_seeds([]) is None
    assert within_noise(Score(0.25, None, 1), Score(0.5, 0.1, 3)) is None
