"""Open-set metrics against plain loops and scikit-learn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nngk.errors import InputError
from nngk.metrics import auroc, false_alarms, open_set_classification_rate, open_set_scores

scores = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 2.0]), min_size=1, max_size=12)


def loop_auroc(known, unknown):
    wins = [1.0 if u > k else 0.5 if u == k else 0.0 for k in known for u in unknown]
    return sum(wins) / len(wins)


def loop_false_alarms(known, unknown, detection):
    best = 1.0
    for threshold in sorted(unknown):
        if sum(u >= threshold for u in unknown) >= detection * len(unknown) - 1e-9:
            best = sum(k >= threshold for k in known) / len(known)
    return best


def loop_oscr(known, right, unknown):
    area, last = 0.0, (0.0, 0.0)
    for threshold in sorted({*known, *unknown}):
        here = (
            sum(u <= threshold for u in unknown) / len(unknown),
            sum(k <= threshold and r for k, r in zip(known, right)) / len(known),
        )
        area += (here[0] - last[0]) * (here[1] + last[1]) / 2
        last = here
    return area


@given(scores, scores, st.data())
def test_every_metric_is_its_definition(known, unknown, data):
    right = data.draw(st.lists(st.booleans(), min_size=len(known), max_size=len(known)))
    detection = data.draw(st.sampled_from([0.05, 0.5, 0.9, 0.95, 1.0]))
    assert auroc(known, unknown) == pytest.approx(loop_auroc(known, unknown), abs=1e-12)
    assert false_alarms(known, unknown, detection) == pytest.approx(loop_false_alarms(known, unknown, detection))
    assert open_set_classification_rate(known, right, unknown) == pytest.approx(loop_oscr(known, right, unknown))
    # With every answer right OSCR is the AUROC; a wrong answer can only cost.
    everything = open_set_classification_rate(known, [True] * len(known), unknown)
    assert everything == pytest.approx(auroc(known, unknown))
    assert open_set_classification_rate(known, right, unknown) <= everything + 1e-12


def test_scikit_learn_agrees():
    metrics = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(0)
    known, unknown = draw.normal(0, 1, 300).round(1), draw.normal(1, 1, 200).round(1)
    truth, score = np.r_[np.zeros(300), np.ones(200)], np.r_[known, unknown]
    assert auroc(known, unknown) == pytest.approx(metrics.roc_auc_score(truth, score))
    wrong, caught, _ = metrics.roc_curve(truth, score, drop_intermediate=False)
    assert false_alarms(known, unknown) == pytest.approx(wrong[caught >= 0.95].min())


def test_the_summary_holds_all_three():
    known, right, unknown = torch.tensor([0.1, 0.6]), torch.tensor([True, False]), torch.tensor([0.5, 0.9])
    assert open_set_scores(known, right, unknown) == {
        "auroc": auroc(known, unknown),
        "false_alarms": false_alarms(known, unknown),
        "oscr": open_set_classification_rate(known, right, unknown),
    }


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: auroc([], [1.0]), "at least one"),
        (lambda: auroc([1.0], [[1.0]]), "list of numbers"),
        (lambda: auroc([math.nan], [1.0]), "known scores hold NaN"),
        (lambda: false_alarms([1.0], [1.0], 0), "above 0"),
        (lambda: open_set_classification_rate([1.0, 2.0], [True], [1.0]), "one mark per known image"),
    ],
)
def test_wrong_input_is_a_sentence(call, message):
    with pytest.raises(InputError, match=message):
        call()
