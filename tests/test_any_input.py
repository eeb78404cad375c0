"""Whatever a user gives to a model, estimator, bank, loss, engine, metric or to the settings works or is refused.

Each property is tried with 200 examples, and with 2,000 in the slow tier.
"""

import warnings
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from examples import try_examples
from nngk import CentreBank, GaussianKernelLoss, InputError, KernelClassifier, Settings, metrics
from nngk.search import FANNG, Index
from nngk.search.native import core
from small_models import small_model

pytestmark = pytest.mark.thorough  # hundreds of examples each

WORDS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=8),
    st.lists(st.integers(-9, 9), max_size=5), st.just({}), st.just([[1.0], [2.0, 3.0]]),
)  # fmt: skip
COUNTS = st.one_of(st.integers(1, 6), WORDS)


def numbers(shape, low=-3.0, high=3.0):
    """Values of a shape: mostly what fits, now and then what is huge, tiny or no number."""
    usual = arrays.arrays(np.float32, shape, elements=st.floats(low, high, width=32))
    return st.one_of(usual, usual, arrays.arrays(np.float32, shape, elements=st.floats(width=32)))


SHAPES = st.one_of(st.tuples(st.integers(0, 7), st.just(4)), arrays.array_shapes(min_dims=0, max_dims=3, max_side=5))
KINDS = ["float32", "float64", "float16", "int64", "uint8", "bool", "complex64"]


@st.composite
def points(draw):
    """An array or a tensor of points, mostly of four dimensions; or something else."""
    if draw(st.integers(0, 9)) == 0:
        return draw(WORDS)
    found = draw(numbers(draw(SHAPES)))
    with np.errstate(all="ignore"):
        found = found.astype(draw(st.sampled_from(["float32"] * 4 + KINDS)))
    return torch.from_numpy(found.copy()) if draw(st.booleans()) else found


@st.composite
def labels(draw):
    """Labels, mostly whole numbers from zero on; or something else."""
    if draw(st.integers(0, 9)) == 0:
        return draw(WORDS)
    kind = draw(st.sampled_from(["int64"] * 4 + ["int32", "float32", "bool"]))
    found = np.array(draw(st.lists(st.integers(-1, 4), max_size=7)), dtype=kind)
    return draw(st.sampled_from([torch.from_numpy(found), found, found.tolist()]))


def a_model(given_):
    method, x, name, count = given_
    model = small_model()
    pictures = {"embed": (), "classify": (count,), "search": (count,), "describe": (), "calibrate": ()}
    if method in pictures:
        getattr(model, method)(x, *pictures[method])
    elif method == "add":
        model.add(name, x)
    elif method in ("remove", "rename", "merge"):
        getattr(model, method)(name, *(() if method == "remove" else (x,)))
    else:
        found = getattr(model, method)(x)
        if method == "probabilities":
            assert torch.isfinite(found).all()
    assert len(model.labels) == len(model.centres) == len(model.sources)


def an_estimator(given_):
    x, y, queries, sigma = given_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's remarks about labels
        found = KernelClassifier(sigma).fit(x, y).predict_proba(queries)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-4)


def a_bank(given_):
    y, x, count, indices = given_
    bank = CentreBank(y, dim=4, n_neighbours=count)
    bank.renew(x)
    assert torch.isfinite(bank.centres).all()
    bank.neighbours_of(indices)


def a_loss(given_):
    x, y, references, of_references, sigma = given_
    loss = GaussianKernelLoss(sigma=sigma)(x, y, ref_emb=references, ref_labels=of_references)
    if isinstance(x, torch.Tensor) and len(x) and not torch.isfinite(x.float()).all():
        assert not torch.isfinite(loss)  # never a good answer


def an_engine(make):
    def holds(given_):
        x, more, queries, k, ids = given_
        engine = make()
        engine.add(x)
        engine.add(more)
        d, i = engine.search(queries, k)
        found = torch.as_tensor(i).flatten().tolist()
        assert not torch.isnan(d).any() and all(place < 99 for place in found)
        engine.remove(ids)

    return holds


def a_metric(given_):
    name, x, y, more = given_
    arguments = {"kmeans": (x, more), "recall_at_k": (x, y, more), "top_k_accuracy": (x, y, more)}
    arguments |= dict.fromkeys(("open_set_classification_rate", "open_set_scores"), (x, y, x))
    getattr(metrics, name)(*arguments.get(name, (x, y)))


def a_setting(given_):
    name, value = given_
    Settings(**{name: value})


MODEL = ["embed", "classify", "search", "describe", "add", "remove", "rename", "merge", "calibrate"]
MODEL += ["predict", "probabilities", "answers", "unknown"]
METRICS = ["auroc", "expected_calibration_error", "false_alarms", "kmeans", "mean_average_precision_at_r", "nmi"]
METRICS += ["normalised_mutual_information", "open_set_classification_rate", "open_set_scores", "r_precision"]
METRICS += ["recall_at_k", "retrieval_scores", "top_k_accuracy"]
ENGINE = st.tuples(points(), points(), points(), COUNTS, labels())
PROPERTIES = {
    "model": (st.tuples(st.sampled_from(MODEL), points(), st.one_of(st.just("new"), WORDS), COUNTS), a_model),
    "estimator": (st.tuples(points(), labels(), points(), st.one_of(st.just("auto"), WORDS)), an_estimator),
    "bank": (st.tuples(labels(), points(), COUNTS, labels()), a_bank),
    "loss": (st.tuples(points(), labels(), points(), labels(), st.one_of(st.floats(0.1, 2), WORDS)), a_loss),
    "index": (ENGINE, an_engine(lambda: Index(4))),
    "fanng": (ENGINE, an_engine(lambda: FANNG(4, degree=4, neighbours=4, threads=1))),
    "metric": (st.tuples(st.sampled_from(METRICS), points(), labels(), COUNTS), a_metric),
    "setting": (st.tuples(st.sampled_from([f.name for f in fields(Settings)]), WORDS), a_setting),
}
REFUSALS = {"estimator": (ValueError, TypeError)}  # as scikit-learn's own


def try_property(name, count):
    if name == "fanng" and core() is None:
        pytest.skip("the compiled core is not built")
    strategy, holds = PROPERTIES[name]

    def attempt(value):
        try:
            holds(value)
        except REFUSALS.get(name, InputError) as error:
            assert len(str(error)) > 20

    try_examples(strategy, attempt, count)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROPERTIES)
def test_anything_works_or_is_refused(name):
    try_property(name, 200)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROPERTIES)
def test_anything_works_or_is_refused_often(name):
    try_property(name, 2000)
