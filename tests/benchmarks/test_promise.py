"""The baselines of the promise: logistic regression as scikit-learn has it, k-NN and Mahalanobis by plain loops."""

import math
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks" / "promise"


@pytest.fixture
def here(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in ("cached", "logistic", "neighbours", "ours", "unknown", "incremental", "tables"):
        sys.modules.pop(name, None)


def clusters(classes=4, each=15, channels=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(classes).repeat_interleave(each)
    means = torch.randn(classes, channels, generator=generator)
    return means[y] + torch.randn(len(y), channels, generator=generator), y


@pytest.mark.parametrize("strength", [0.01, 1.0])
def test_logistic_regression_is_the_one_of_scikit_learn(here, strength):
    from logistic import fitted
    from sklearn.linear_model import LogisticRegression

    x, y = clusters()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        theirs = LogisticRegression(C=strength, tol=1e-8, max_iter=2000).fit(x.double().numpy(), y.numpy())
    ours = fitted(x, y, strength, steps=500).logits(x).log_softmax(1)
    expected = theirs.predict_log_proba(x.double().numpy())
    np.testing.assert_allclose(ours.numpy(), expected, rtol=0.02, atol=0.02)


def test_cross_validation_takes_the_strength_with_most_right_answers(here):
    from logistic import FOLDS, cross_validated, dealt, fitted

    x, y = clusters(each=9, channels=30)
    strengths = (0.001, 0.01, 1.0)
    folds = dealt(y, FOLDS, 3)
    assert torch.bincount(y * FOLDS + folds).tolist() == [3] * (4 * FOLDS)
    right = dict.fromkeys(strengths, 0)
    for fold in range(FOLDS):
        for strength in strengths:
            found = fitted(x[folds != fold], y[folds != fold], strength)
            right[strength] += int((found.logits(x[folds == fold]).argmax(1) == y[folds == fold]).sum())
    assert right[cross_validated(x, y, 3, strengths).strength] == max(right.values())


def test_neighbours_by_plain_loops(here):
    import neighbours

    x, y = clusters(each=6)
    near, places = neighbours.nearest(x, x, 4, itself=True)
    for i, row in enumerate(x):
        cosines = {j: float(row @ other / row.norm() / other.norm()) for j, other in enumerate(x) if j != i}
        expected = sorted(cosines, key=cosines.get, reverse=True)[:4]
        assert places[i].tolist() == expected
        assert near[i].tolist() == pytest.approx([cosines[j] for j in expected], abs=1e-5)
    right, k = neighbours.accuracy(x, y, x, y)
    assert right > 0.5 and k in neighbours.NEIGHBOURS


def test_relative_mahalanobis_by_inverses(here):
    from unknown import mahalanobis

    x, y = clusters(channels=5)
    asked = torch.randn(6, 5, generator=torch.Generator().manual_seed(9))
    score, named = mahalanobis(x, y, asked)
    means = torch.stack([x[y == c].mean(0) for c in range(4)]).double()

    def inverse(rows):
        spread = rows.T @ rows / len(rows)
        return torch.linalg.inv(spread + 0.01 * spread.diagonal().mean() * torch.eye(5).double())

    within, overall = inverse(x.double() - means[y]), inverse(x.double() - x.double().mean(0))
    for i, row in enumerate(asked.double()):
        each = [float((row - mean) @ within @ (row - mean)) for mean in means]
        rest = row - x.double().mean(0)
        assert float(score[i]) == pytest.approx(min(each) - float(rest @ overall @ rest))
        assert int(named[i]) == int(np.argmin(each))


def test_accuracies_of_sessions(here):
    from incremental import accuracies

    truth, answers = torch.tensor([0, 0, 1, 2, 3]), torch.tensor([0, 2, 1, 2, 3])
    classes = [[0, 1], [2], [3]]
    values = accuracies(truth, answers, classes, 1)
    assert values == pytest.approx({"all": 3 / 4, "old": 2 / 3, "new": 1.0, "harmonic": 4 / 5})
    assert accuracies(truth, answers, classes, 0) == pytest.approx({"all": 2 / 3, "old": 2 / 3})
    nothing = accuracies(truth, torch.full((5,), 9), classes, 2)
    assert nothing["harmonic"] == 0 and not math.isnan(nothing["new"])


def test_a_table_has_means_over_seeds(here):
    from tables import comparison, table

    rows = [
        {"method": method, "dataset": dataset, "auroc": value}
        for method, dataset, value in [
            ("ours", "a", "0.5"),
            ("ours", "a", "0.7"),
            ("ours", "b", "1"),
            ("theirs", "b", ""),
        ]
    ]
    lines = ["| method | a | b | mean |", "|---|---|---|---|", "| ours | 60.0 ± 14.1 | 100.0 | 80.0 |"]
    assert table(rows, "auroc", "dataset").splitlines() == lines
    rows += [{"method": "theirs", "dataset": "a", "auroc": value} for value in ("0.63", "0.65")]
    rows += [{"method": "theirs", "dataset": "b", "auroc": "0.9"}]
    assert comparison(rows, "auroc", "dataset") == "- ahead of theirs by 3.0 in the mean; behind on a by 4.0"


def test_a_page_has_its_tables_written_anew(here, tmp_path, monkeypatch):
    from tables import main, renewed

    (tmp_path / "results").mkdir()
    (tmp_path / "results/a.csv").write_text(
        "method,dataset,kind,x\nours,one,k,0.5\nours,one,other,0.9\ntheirs,one,k,0.4\n"
    )
    monkeypatch.chdir(tmp_path)
    marked = "Before.\n\n<!-- results/a.csv x --where kind=k -->\nold\n<!-- end -->\n\nAfter."
    lines = renewed(marked).splitlines()
    assert lines[0] == "Before." and lines[-1] == "After." and "old" not in lines
    assert "| ours | 50.0 | 50.0 |" in lines and "- ahead of theirs by 10.0 in the mean" in lines
    page = tmp_path / "page.md"
    page.write_text(renewed(marked))
    main(["--page", str(page)])
    assert page.read_text() == renewed(marked)
