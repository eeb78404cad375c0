import pickle

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import forked
from nngk.errors import InputError
from nngk.search import Exact
from nngk.sklearn import KernelClassifier


@parametrize_with_checks(
    [
        KernelClassifier(),
        KernelClassifier(sigma=2.0, n_neighbours=None),
        KernelClassifier(n_neighbours=5, learn_weights=True, weight_steps=5),
    ]
)
@pytest.mark.thorough
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return train_test_split(x, y, test_size=0.5, random_state=0, stratify=y)


def probabilities_by_loops(x, centres, labels, theta, sigma, k, n_classes):
    rows = []
    for query in x:
        squared = [sum((a - b) ** 2 for a, b in zip(query, c)) for c in centres]
        nearest = sorted(range(len(centres)), key=squared.__getitem__)[:k]
        shares = [0.0] * n_classes
        for j in nearest:
            shares[labels[j]] += np.exp(theta[j] - squared[j] / (2 * sigma**2))
        rows.append([share / sum(shares) for share in shares])
    return np.array(rows)


@pytest.mark.parametrize("k", [3, None])
@pytest.mark.parametrize("learn_weights", [False, True])
def test_probabilities_equal_the_formula(k, learn_weights):
    x, y = make_blobs(40, n_features=3, centers=4, cluster_std=4.0, random_state=0)
    model = KernelClassifier(n_neighbours=k, learn_weights=learn_weights).fit(x[:30], y[:30])
    expected = probabilities_by_loops(
        x[30:], model.centres_, model.labels_, model.log_weights_, model.sigma_, k or 30, 4
    )
    np.testing.assert_allclose(model.predict_proba(x[30:]), expected, rtol=1e-9, atol=1e-12)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(model.predict_log_proba(x[30:]), np.log(expected), rtol=1e-9, atol=1e-9)
    assert (model.log_weights_ != 0).any() == learn_weights


def test_digits_are_read(digits):
    x, x_test, y, y_test = digits
    ours = KernelClassifier().fit(x, y).score(x_test, y_test)
    theirs = KNeighborsClassifier(5).fit(x, y).score(x_test, y_test)
    assert ours > 0.97
    assert ours >= theirs - 0.01


def test_automatic_sigma_is_the_widest_that_leave_one_out_cannot_tell_from_the_best():
    x, y = make_blobs(120, n_features=4, centers=5, cluster_std=3.0, random_state=1)
    model = KernelClassifier(n_neighbours=None).fit(x, y)

    def loss(sigma):
        total = 0.0
        for i in range(len(x)):
            squared = ((x - x[i]) ** 2).sum(1)
            kernels = np.exp(-squared / (2 * sigma**2))
            kernels[i] = 0
            total -= np.log(kernels[y == y[i]].sum() / kernels.sum())
        return total / len(x)

    limit = min(loss(sigma) for sigma in np.geomspace(0.2, 20, 400)) + 1 / len(x)
    assert loss(model.sigma_) <= limit + 1e-4
    assert all(loss(model.sigma_ * factor) > limit for factor in (1.02, 1.5, 3))


def test_learned_weights_lower_the_leave_one_out_loss():
    """Mislabelled centres lose weight."""
    x, y = make_blobs(200, n_features=2, centers=2, cluster_std=1.0, random_state=3)
    wrong = np.arange(0, 200, 20)
    noisy = y.copy()
    noisy[wrong] = 1 - noisy[wrong]
    model = KernelClassifier(learn_weights=True, n_neighbours=20).fit(x, noisy)
    right = np.setdiff1d(np.arange(200), wrong)
    assert model.log_weights_[wrong].mean() < model.log_weights_[right].mean() - 0.5


def test_more_rows_in_parts_equal_all_at_once():
    x, y = make_blobs(60, n_features=3, centers=6, cluster_std=2.0, random_state=0)
    names = np.array(["f", "b", "d", "a", "c", "e"])[y]
    first = np.unique(y, return_index=True)[1]  # one of each class, so that none is new later
    order = np.concatenate([first, np.setdiff1d(np.arange(60), first)])
    x, names = x[order], names[order]
    whole = KernelClassifier(sigma=2.0).fit(x, names)
    parts = KernelClassifier(sigma=2.0)
    for start in range(0, 60, 15):
        parts.partial_fit(x[start : start + 15], names[start : start + 15])
    assert parts.classes_.tolist() == whole.classes_.tolist() == list("abcdef")
    queries = x + 0.5
    np.testing.assert_allclose(parts.predict_proba(queries), whole.predict_proba(queries), rtol=1e-12)
    assert (parts.predict(queries) == whole.predict(queries)).all()


def test_new_classes_in_parts_are_all_known():
    x, y = make_blobs(60, n_features=3, centers=6, random_state=0)
    names = np.array(["f", "b", "d", "a", "c", "e"])[y]
    order = np.argsort(y, kind="stable")
    x, names = x[order], names[order]
    parts = KernelClassifier(sigma=2.0)
    for start in range(0, 60, 15):
        parts.partial_fit(x[start : start + 15], names[start : start + 15])
    assert parts.classes_.tolist() == list("abcdef") and parts.score(x, names) > 0.9


def test_a_new_class_gets_the_weight_of_added_classes():
    from nngk.model.adding import added_log_weight

    x, y = make_blobs(120, n_features=3, centers=4, cluster_std=3.0, random_state=1)
    old, new = y < 3, np.flatnonzero(y == 3)[:5]
    model = KernelClassifier(sigma=1.5).fit(x[old], y[old])
    centres, theta = torch.from_numpy(x[old]), torch.zeros(int(old.sum())).double()
    expected = added_log_weight(
        Exact(centres), centres, theta, 1.5, torch.from_numpy(x[new]), len(centres), np.log(30 / 5)
    )
    model.partial_fit(x[new], y[new])
    assert model.log_weights_[-5:] == pytest.approx(expected) and not model.log_weights_[:-5].any()
    model.partial_fit(x[new] + 0.1, y[new])
    assert model.log_weights_[-5:] == pytest.approx(expected)  # as the rest of its class


def test_rows_of_unknown_classes_score_higher():
    x, y = make_blobs(400, n_features=8, centers=8, cluster_std=1.5, random_state=2)
    known, new = y < 6, np.arange(400) % 3 == 0
    model = KernelClassifier().fit(x[known & ~new], y[known & ~new])
    usual, strange = model.unknown_score(x[known & new]), model.unknown_score(x[~known])
    assert np.mean(usual > 0.5) < 0.3 < 0.7 < np.mean(strange > 0.5)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.unknown_score(x), model.unknown_score(x))
    model.partial_fit(x[~known], y[~known])
    assert np.mean(model.unknown_score(x[~known]) > 0.5) < 0.3


def test_partial_fit_tunes_sigma_as_the_centres_grow():
    x, y = make_blobs(200, n_features=3, centers=4, cluster_std=2.0, random_state=0)
    model = KernelClassifier().partial_fit(x[:100], y[:100])
    before = model.sigma_
    assert before == KernelClassifier().fit(x[:100], y[:100]).sigma_
    model.partial_fit(x[100:120], y[100:120])
    assert model.sigma_ == before
    model.partial_fit(x[120:], y[120:])
    assert model.sigma_ == pytest.approx(KernelClassifier().fit(x, y).sigma_)


def test_classes_can_be_named_before_they_come():
    model = KernelClassifier(sigma=1.0).partial_fit([[0.0], [1.0]], ["a", "b"], classes=["a", "b", "z"])
    assert model.classes_.tolist() == ["a", "b", "z"]
    assert model.predict_proba([[0.2]])[0, 2] == 0
    assert model.partial_fit([[9.0]], ["z"]).predict([[8.5]])[0] == "z"


def test_one_example_a_class():
    model = KernelClassifier().fit([[0.0], [4.0], [9.0]], [3, 7, 5])
    assert model.predict([[1.0], [5.0], [100.0]]).tolist() == [3, 7, 5]
    assert KernelClassifier().fit([[2.0]], [1]).predict([[5.0]]).tolist() == [1]


def test_far_queries_keep_their_logarithms():
    model = KernelClassifier(sigma=0.01).fit([[0.0], [1.0]], [0, 1])
    assert model.predict([[1000.0]]).tolist() == [1]
    assert np.isfinite(model.predict_log_proba([[1000.0]])).all()
    near, far = model.score_samples([[0.0], [1000.0]])
    assert near > far


def test_kneighbors_equal_scikit_learns():
    x, y = make_blobs(50, n_features=3, centers=3, random_state=0)
    model = KernelClassifier().fit(x, y)
    peer = NearestNeighbors(n_neighbors=7).fit(x)
    for ours, theirs in zip(model.kneighbors(x + 0.1, 7), peer.kneighbors(x + 0.1)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    for spelling in ("n_neighbors", "n_neighbours"):
        for ours, theirs in zip(model.kneighbors(**{spelling: 7}), peer.kneighbors(), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    assert model.kneighbors(x[:2], return_distance=False).shape == (2, 50)
    assert model.kneighbors()[1].shape == (50, 49)


def test_works_in_pipelines_and_searches(digits):
    x, x_test, y, y_test = digits
    search = GridSearchCV(
        make_pipeline(StandardScaler(), KernelClassifier()), {"kernelclassifier__n_neighbours": [1, 20]}, cv=2
    )
    assert search.fit(x, y).score(x_test, y_test) > 0.9
    assert clone(KernelClassifier(sigma=3.0)).sigma == 3.0


def test_blocks_and_float32_and_engine(monkeypatch):
    from nngk import sklearn as classifier

    x, y = make_blobs(90, n_features=3, centers=3, cluster_std=3.0, random_state=0)
    built = []

    def engine():
        built.append(Exact())
        return built[-1]

    model = KernelClassifier(engine=engine).fit(x, y)
    whole = model.predict_proba(x)
    monkeypatch.setattr(classifier, "BLOCK", 500)
    np.testing.assert_allclose(model.predict_proba(x), whole, rtol=1e-12)
    assert len(built) == 1
    assert len(built[0]) == 90
    single = KernelClassifier(sigma=model.sigma_).fit(x.astype(np.float32), y).predict_proba(x)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, whole, atol=1e-4)


SINGLE = np.array([[0.0], [1.0]], dtype=np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: KernelClassifier(sigma=0).fit([[0.0], [1.0]], [0, 1]), "positive number or 'auto', got 0"),
        (lambda: KernelClassifier(sigma="best").fit([[0.0], [1.0]], [0, 1]), "'auto', got 'best'"),
        (lambda: KernelClassifier(n_neighbours=0).fit([[0.0], [1.0]], [0, 1]), "at least 1, or None"),
        (lambda: KernelClassifier().fit([[0.0], [1.0]], [0, 1]).kneighbors([[0.0]], 3), "between 1 and 2"),
        (lambda: KernelClassifier().fit([[0.0], [1.0]], [0, 1]).kneighbors([[0.0]], 1, n_neighbours=1), "not both"),
        (lambda: KernelClassifier(sigma=np.inf).fit([[0.0], [1.0]], [0, 1]), "positive number or 'auto', got inf"),
        (lambda: KernelClassifier(sigma=1e-200).fit([[0.0], [1.0]], [0, 1]), "from 1e-150 to 1e\\+150 for float64"),
        (lambda: KernelClassifier(sigma=1e-20).fit(SINGLE, [0, 1]), "from 1e-15 to 1e\\+15 for float32"),
        (lambda: KernelClassifier().fit(SINGLE * np.float32(1e25), [0, 1]), "values up to 1e\\+25.*float64"),
        (lambda: KernelClassifier().fit(SINGLE * np.float32(1e-25), [0, 1]), "differ by less than 1e-15.*float64"),
        (lambda: KernelClassifier().fit([[0.0], [1e200]], [0, 1]), "values up to 1e\\+200"),
        (lambda: KernelClassifier().fit(SINGLE, [0, 1]).predict([[1e25]]), "values up to 1e\\+25"),
        (lambda: KernelClassifier().fit(SINGLE, [0, 1]).predict([[1e300]]), "values up to inf"),
        (lambda: KernelClassifier().fit(SINGLE, [0, 1]).partial_fit(SINGLE * np.float32(1e25), [0, 1]), "up to 1e"),
    ],
)
def test_bad_settings(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.thorough
def test_without_scikit_learn_the_extra_is_named():
    program = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from nngk.errors import MissingExtra\n"
        "try:\n    import nngk.sklearn\n"
        "except MissingExtra as e:\n    sys.exit(0 if 'nngk[sklearn]' in str(e) else 1)\n"
        "sys.exit(1)"
    )
    assert forked.run(["-c", program]).returncode == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_fitted_model_can_be_pickled(dtype):
    x, y = make_blobs(60, n_features=3, centers=3, cluster_std=3.0, random_state=0)
    model = KernelClassifier().fit(x[:40].astype(dtype), y[:40])
    expected = model.predict_proba(x)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(x), expected)
    np.testing.assert_array_equal(
        again.partial_fit(x[40:], y[40:]).predict_proba(x), model.partial_fit(x[40:], y[40:]).predict_proba(x)
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_reversed_arrays(dtype):
    x, y = make_blobs(60, n_features=3, centers=3, cluster_std=3.0, random_state=0)
    x = x.astype(dtype)
    plain = KernelClassifier().fit(x[:, ::-1].copy(), y)
    turned = KernelClassifier().fit(x[:, ::-1], y)
    assert turned.sigma_ == plain.sigma_
    np.testing.assert_array_equal(turned.predict_proba(x[::-1, ::-1]), plain.predict_proba(x[::-1, ::-1].copy()))
    np.testing.assert_array_equal(turned.kneighbors(x[::-1, ::-1], 2)[1], plain.kneighbors(x[::-1, ::-1].copy(), 2)[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1.0, 1e6, 1e12])
@pytest.mark.parametrize("sigma", [1e-15, 1e-3, 1e15, "auto"])
@pytest.mark.thorough
def test_what_is_not_refused_has_no_nan(dtype, scale, sigma):
    """From far away too, and whichever kernels underflow; the nearest class wins where one kernel decides."""
    x = (np.array([[0.0, 1.0], [0.1, 1.0], [5.0, 5.0], [5.1, 5.0]]) * scale).astype(dtype)
    queries = np.concatenate([x + dtype(0.01 * scale), x * dtype(100)])
    model = KernelClassifier(sigma).fit(x, [0, 0, 1, 1])
    probabilities = model.predict_proba(queries)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert not np.isnan(model.score_samples(queries)).any()
    if sigma == 1e-15 and scale > 1e-9:
        assert model.predict(queries[:4]).tolist() == [0, 0, 1, 1]


def test_unfitted():
    for method in ("predict", "predict_proba", "kneighbors", "score_samples"):
        with pytest.raises(NotFittedError):
            getattr(KernelClassifier(), method)([[0.0]])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_equals_cpu(digits):
    x, x_test, y, _ = digits
    a, b = (KernelClassifier(sigma=8.0, device=d).fit(x, y).predict_proba(x_test) for d in ("cpu", "cuda"))
    np.testing.assert_allclose(a, b, atol=1e-9)
