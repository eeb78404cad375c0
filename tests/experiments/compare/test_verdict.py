import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nngk.experiments.compare.verdict import Score, markdown, summarise, verdict, within_noise


def rows(**scores):
    return [
        {
            "loss": loss,
            "seed": i,
            "lr": 1e-3,
            "seconds": 2.0,
            "data": "birds",
            "network": "net",
            "dim": 64,
            "recall@1": v,
        }
        for loss, values in scores.items()
        for i, v in enumerate(values)
    ]


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 6), st.integers(2, 6), st.floats(0, 3), st.integers(0, 1000))
def test_noise_agrees_with_welchs_test(n, m, gap, seed):
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=n), gap + 2 * rng.normal(size=m)
    scores = [Score(float(v.mean()), float(v.std(ddof=1)), len(v)) for v in (a, b)]
    p = stats.ttest_ind(a, b, equal_var=False).pvalue
    # Degrees of freedom are rounded down, so a difference near the border may be called noise, never the reverse.
    if p > 0.05:
        assert within_noise(*scores) is True
    if p < 0.005:
        assert within_noise(*scores) is False or n + m < 7


def test_one_seed_says_nothing_about_noise():
    assert within_noise(Score(0.5, None, 1), Score(0.9, 0.1, 3)) is None
    text = verdict(summarise(rows(a=[0.5], nngk=[0.4]), ("recall@1",)), "recall@1")
    assert "One seed does not tell" in text
    assert "'nngk' is 10.00 points below" in text


def test_verdict_names_who_is_near_and_who_is_behind():
    scores = summarise(rows(best=[0.8, 0.81, 0.82], near=[0.79, 0.8, 0.81], far=[0.5, 0.51, 0.52]), ("recall@1",))
    text = verdict(scores, "recall@1")
    assert "'best' is highest with 81.00 ± 1.00" in text
    assert "Within noise of it (Welch's test at 95%, degrees of freedom rounded down): near." in text
    assert "Behind it by more than noise: far." in text


def test_equal_runs_are_not_different():
    assert within_noise(Score(0.5, 0.0, 3), Score(0.5, 0.0, 3)) is True
    assert within_noise(Score(0.5, 0.0, 3), Score(0.6, 0.0, 3)) is False


def test_table_is_ordered_and_marks_the_best():
    text = markdown(rows(low=[0.1, 0.2], high=[0.8, 0.9]), "metric")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert lines[1].startswith("| high | **85.00 ± 7.07**")
    assert lines[2].startswith("| low | 15.00 ± 7.07")
    assert lines[1].endswith("| 0.001 | 2 | 2 |")


def test_failed_runs_do_not_count():
    failed = rows(a=[0.5, 0.6], b=[0.7])
    failed.append(
        {"loss": "b", "seed": 1, "lr": 1e-3, "error": "diverged", "data": "birds", "network": "net", "dim": 64}
    )
    text = markdown(failed, "metric")
    assert "| 1 of 2 |" in text
    assert "- b, seed 1: diverged" in text
