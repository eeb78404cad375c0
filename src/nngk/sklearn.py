"""The kernel classifier for vectors, with scikit-learn's interface."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nngk.defaults import NARROWEST, WIDEST
from nngk.errors import InputError, MissingExtra
from nngk.kernel.formulas import attention_difference, log_kernels
from nngk.kernel.predict import Prediction, predict, predictions
from nngk.kernel.sigma import best_sigma
from nngk.model.adding import added_log_weight
from nngk.model.classes import Classes, drawn_together
from nngk.model.pretend import learn_familiar
from nngk.model.unknown import Familiar, measured
from nngk.search import Engine, Exact

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as missing:
    raise MissingExtra("scikit-learn", "sklearn", "KernelClassifier") from missing

# Elements of one block of queries by neighbours: 128 MiB of float64.
BLOCK = 1 << 24
# Training examples that sigma is tuned on; more would not change it.
TUNED_ON = 20_000
# The smallest and largest lengths whose squares, summed over the features, each type can tell from 0 and infinity.
RANGE = {np.dtype(np.float32): (NARROWEST, WIDEST), np.dtype(np.float64): (1e-150, 1e150)}


class KernelClassifier(ClassifierMixin, BaseEstimator):
    """Classify vectors by the Gaussian kernels of their nearest training examples.

    Every training example is a centre; a class's probability is its share of the kernels around a query, among the
    ``n_neighbours`` nearest centres (None: all). ``sigma="auto"`` takes the width with the least leave-one-out loss.
    With ``learn_weights`` every centre has a weight ``exp(θ)``, found by ``weight_steps`` of Adam on the same loss.
    ``engine`` builds a search engine of ``nngk.search`` (exact by default); ``device`` is where the work is done.

    After ``fit``: ``classes_``, ``centres_`` (n, features), ``labels_`` (n,) positions in ``classes_``,
    ``log_weights_`` (n,), ``sigma_``.

    >>> model = KernelClassifier().fit([[0.0], [1.0], [5.0], [6.0]], ["near", "near", "far", "far"])
    >>> model.predict([[0.4], [5.2]]).tolist()
    ['near', 'far']
    >>> model.partial_fit([[20.0], [21.0]], ["moon", "moon"]).predict([[19.0]]).tolist()
    ['moon']
    """

    classes_: np.ndarray
    centres_: np.ndarray
    labels_: np.ndarray
    log_weights_: np.ndarray
    sigma_: float
    _built: Engine | None
    _known: tuple[Classes, Familiar] | None  # what the unknown score is made of, once it was asked for
    _tuned_at: int

    def __init__(
        self,
        sigma: float | str = "auto",
        n_neighbours: int | None = 100,
        *,
        learn_weights: bool = False,
        weight_steps: int = 100,
        weight_rate: float = 0.05,
        engine: Callable[[], Engine] | None = None,
        device: str = "cpu",
    ) -> None:
        self.sigma = sigma
        self.n_neighbours = n_neighbours
        self.learn_weights = learn_weights
        self.weight_steps = weight_steps
        self.weight_rate = weight_rate
        self.engine = engine
        self.device = device

    def fit(self, X: Any, y: Any) -> Self:
        """Take the rows of ``X`` (n, features) with labels ``y`` (n,) as centres, forgetting earlier ones."""
        self._check_settings()
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32))
        check_classification_targets(y)
        self.classes_, self.labels_ = np.unique(y, return_inverse=True)
        self._start(X)
        self._tune()
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Add centres, of known or new classes, at once.

        ``classes`` may name classes that come later. The rows of a new class become centres as in ``Model.add``: drawn
        together as long as they are few, with a weight between that of an average class and the one with the least
        leave-one-out loss, of its own rows and of the rows around them. Further centres of a known class have the mean
        weight of that class. An automatic sigma is tuned again whenever the centres have grown by half since then.
        """
        first = not hasattr(self, "centres_")
        self._check_settings()
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32), reset=first)
        check_classification_targets(y)
        known = [y] if classes is None else [y, np.asarray(classes)]
        self._known = None
        if first:
            self.classes_ = np.unique(np.concatenate(known))
            self.labels_ = np.searchsorted(self.classes_, y)
            self._start(X)
        else:
            old = self.classes_
            self.classes_ = np.unique(np.concatenate([old, *known]))
            self.labels_ = np.concatenate(
                [np.searchsorted(self.classes_, old)[self.labels_], np.searchsorted(self.classes_, y)]
            )
            X = self._in_range(X.astype(self.centres_.dtype, copy=False))
            X, weights = self._added(X, self.labels_[len(self.centres_) :])
            self.centres_ = np.concatenate([self.centres_, X])
            self.log_weights_ = np.concatenate([self.log_weights_, weights])
            if self._built is not None:
                self._built.add(self._tensor(X))
        if first or (self.sigma == "auto" and len(self.centres_) >= 1.5 * self._tuned_at):
            self._tune()
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return class probabilities (n, n_classes), in the order of ``classes_``."""
        return np.concatenate([found.log_probabilities.exp().cpu().numpy() for found in self._answers(X)])

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return logarithms of the class probabilities, exact where the probabilities round to zero."""
        return np.concatenate([found.log_probabilities.cpu().numpy() for found in self._answers(X)])

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of every row (n,)."""
        best = np.concatenate([found.log_probabilities.argmax(1).cpu().numpy() for found in self._answers(X)])
        return self.classes_[best]

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the logarithm of the summed kernels around every row (n,): low where nothing is near."""
        return np.concatenate([found.log_density.cpu().numpy() for found in self._answers(X)])

    def unknown_score(self, X: Any) -> np.ndarray:
        """Return how unknown every row is (n,), from 0 to 1: above one half it is unlike all classes.

        At one half, 5% of new rows of known classes are taken for unknown. The score is found when it is first asked
        for: some classes pretend to be unknown, as at the end of training a network (``nngk.model.pretend``).
        """
        check_is_fitted(self)
        x = self._queries(X)
        if self._known is None:
            names, sources = [str(i) for i in range(len(self.classes_))], [""] * len(self.centres_)
            labels, theta, centres = map(self._tensor, (self.labels_, self.log_weights_, self.centres_))
            known = Classes(names, centres, labels, theta, sources)
            familiar, coordinates = learn_familiar(known, centres, self.sigma_, self._k())
            self._known = replace(known, coordinates=coordinates), familiar
        known, familiar = self._known
        found = predict(x, known.engine, known.labels, known.theta, self.sigma_, self._k(), len(known.names))
        space = familiar.space
        places = None if space is None else space.coordinates(x)
        seen = measured(found, known.class_means, places, space=space, counts=known.class_sizes)
        alike = familiar.alike(seen)
        return np.asarray(familiar.score(alike).numpy())

    def kneighbors(
        self,
        X: Any = None,
        n_neighbors: int | None = None,
        return_distance: bool = True,
        *,
        n_neighbours: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray] | np.ndarray:
        """Return distances and indices of the nearest centres (n, n_neighbors), nearest first.

        Without ``X``, those of the nearest other centres of every centre. ``n_neighbours`` is another spelling of
        ``n_neighbors``.
        """
        check_is_fitted(self)
        if None not in (n_neighbors, n_neighbours):
            raise InputError("Give n_neighbors or n_neighbours, not both: they are one setting.")
        available = len(self.centres_) - (X is None)
        asked = n_neighbours if n_neighbors is None else n_neighbors
        k = min(self._k(), available) if asked is None else asked
        if not 1 <= k <= available:
            raise InputError(f"n_neighbors must lie between 1 and {available}, the number of centres; got {k}.")
        squared, index = self._engine.all_neighbours(k) if X is None else self._engine.search(self._queries(X), k)
        indices = index.cpu().numpy()
        return (squared.sqrt().cpu().numpy(), indices) if return_distance else indices

    def _check_settings(self) -> None:
        if self.sigma != "auto" and not (isinstance(self.sigma, int | float | np.number) and 0 < self.sigma < np.inf):
            raise InputError(f"sigma must be a positive number or 'auto', got {self.sigma!r}.")
        if self.n_neighbours is not None and self.n_neighbours < 1:
            raise InputError(f"n_neighbours must be at least 1, or None for all centres; got {self.n_neighbours}.")

    def _start(self, X: np.ndarray) -> None:
        narrowest, widest = RANGE[X.dtype]
        if self.sigma != "auto" and not narrowest <= float(self.sigma) <= widest:
            raise InputError(
                f"sigma must be from {narrowest:g} to {widest:g} for {X.dtype} rows, or its square leaves their range; "
                f"got {self.sigma!r}. Scale the features, or give float64."
            )
        self._in_range(X)
        if 0 < np.ptp(X, axis=0).max() < narrowest:
            raise InputError(
                f"The rows differ by less than {narrowest:g}, whose square {X.dtype} cannot tell from 0. "
                "Scale the features, or give float64."
            )
        self.centres_ = np.array(X, order="C")
        self.log_weights_ = np.zeros(len(X), dtype=X.dtype)
        self._built, self._known = self._build(), None

    def _build(self) -> Engine:
        engine = (self.engine or Exact)()
        engine.add(self._tensor(self.centres_))
        return engine

    @property
    def _engine(self) -> Engine:
        """The search over the centres; a model that was pickled builds it when it is first needed."""
        if self._built is None:
            self._built = self._build()
        return self._built

    def __getstate__(self) -> dict[str, Any]:
        # An engine may be compiled code; the centres it is built from are in the state.
        state: dict[str, Any] = super().__getstate__()
        return {**state, "_built": None, "_known": None} if "_built" in state else state

    def _k(self) -> int:
        """Return how many centres a query meets."""
        return len(self.centres_) if self.n_neighbours is None else min(self.n_neighbours, len(self.centres_))

    def _tensor(self, values: np.ndarray) -> Tensor:
        # A copy: a read-only array, as parallel workers share them, or a reversed one cannot be a tensor.
        return torch.from_numpy(np.array(values, order="C")).to(self.device)

    def _in_range(self, X: np.ndarray) -> np.ndarray:
        """Return the rows; raise InputError if their distances leave the range of their type."""
        widest = RANGE[X.dtype][1]
        if X.size and (largest := np.abs(X).max()) > widest:
            raise InputError(
                f"The rows hold values up to {largest:.3g}, whose squared distances leave the range of {X.dtype}; at "
                f"most {widest:g} is possible. Scale the features, or give float64."
            )
        return X

    def _queries(self, X: Any) -> Tensor:
        X = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        with np.errstate(over="ignore"):  # what is too large for the centres' type is refused next
            X = X.astype(self.centres_.dtype, copy=False)
        return self._tensor(self._in_range(X))

    def _answers(self, X: Any) -> Iterator[Prediction]:
        """Yield what the kernels say, some rows at a time."""
        check_is_fitted(self)
        labels, theta, k = self._tensor(self.labels_), self._tensor(self.log_weights_), self._k()
        queries, chunk = self._queries(X), max(1, BLOCK // k)
        return predictions(queries, self._engine, labels, theta, self.sigma_, k, len(self.classes_), chunk=chunk)

    def _added(self, X: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return further centres, which are not among the others yet, and their log weights."""
        added = X.copy()
        old = self.labels_[: len(self.centres_)]
        weights = np.zeros(len(X), dtype=X.dtype)
        theta, centres = self._tensor(self.log_weights_), self._tensor(self.centres_)
        for label in np.unique(labels):
            rows = labels == label
            if (old == label).any():
                weights[rows] = self.log_weights_[old == label].mean()
                continue
            new = self._tensor(X[rows])
            usual = float(theta.logsumexp(0)) - math.log(len(np.unique(old)) * len(new))  # of a class, in all
            ask = self._engine, centres, theta, self.sigma_, new, self._k(), usual
            weights[rows] = added_log_weight(*ask)
            added[rows] = drawn_together(new).cpu().numpy()
        return added, weights

    def _tune(self) -> None:
        """Set ``sigma_`` and, where asked, the weights, by the leave-one-out loss of the centres."""
        self._tuned_at = len(self.centres_)
        self.sigma_ = 1.0 if self.sigma == "auto" else float(self.sigma)
        if self.sigma != "auto" and not self.learn_weights:
            return
        if len(self.centres_) < 2:  # nothing to leave out
            return
        labels = self._tensor(self.labels_)
        squared, index = self._engine.all_neighbours(min(self._k(), len(labels) - 1))
        same = (labels[index.clamp(min=0)] == labels[:, None]) & (index >= 0)
        if self.sigma == "auto":
            self.sigma_ = _sigma(squared, same)
        if self.learn_weights and bool(same.any()):
            theta = _log_weights(squared, same, index.clamp(min=0), self.sigma_, self.weight_steps, self.weight_rate)
            self.log_weights_ = theta.cpu().numpy()
            if self.sigma == "auto":
                self.sigma_ = _sigma(squared, same, theta[index.clamp(min=0)])


def _sigma(squared: Tensor, same: Tensor, theta: Tensor | None = None) -> float:
    rows = torch.linspace(0, len(squared) - 1, min(len(squared), TUNED_ON), device=squared.device).long()
    if bool(same[rows].any()):
        return best_sigma(squared[rows], same[rows], None if theta is None else theta[rows])
    # One example per class: no width is better than another by the loss, and the spacing of the examples is natural.
    spacing = float(squared[:, 0].sqrt().median())
    return spacing if spacing > 0 else 1.0


def _log_weights(squared: Tensor, same: Tensor, index: Tensor, sigma: float, steps: int, rate: float) -> Tensor:
    """Return θ (n,) that lowers the mean leave-one-out loss; its gradient is the sum of p - q over the examples."""
    theta = torch.zeros(len(squared), dtype=squared.dtype, device=squared.device, requires_grad=True)
    optimiser = torch.optim.Adam([theta], lr=rate)
    distances = log_kernels(squared, sigma)
    with torch.no_grad():
        for _ in range(steps):
            difference = attention_difference(distances + theta[index], same)[1]
            theta.grad = torch.zeros_like(theta).index_add_(0, index.flatten(), difference.flatten()) / len(theta)
            optimiser.step()
    return theta.detach()
