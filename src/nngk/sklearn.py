"""The kernel classifier for vectors, with scikit-learn's manners."""

from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nngk.errors import InputError, MissingExtra
from nngk.kernel.formulas import attention_difference, class_log_probabilities, log_density, log_kernels
from nngk.kernel.sigma import best_sigma
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


class KernelClassifier(ClassifierMixin, BaseEstimator):
    """Classify vectors by the Gaussian kernels of their nearest training examples.

    Every training example is a centre; a class's probability is its share of the kernels around a query, among the
    ``n_neighbours`` nearest centres (None: all). ``sigma="auto"`` takes the width with the least leave-one-out loss.
    With ``learn_weights`` every centre gets a weight ``exp(θ)``, found by ``weight_steps`` of Adam on the same loss.
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
    _engine: Engine
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

        ``classes`` may name classes that come later. New centres have weight one. An automatic sigma is tuned again
        whenever the centres have grown by half since it last was.
        """
        first = not hasattr(self, "centres_")
        self._check_settings()
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32), reset=first)
        check_classification_targets(y)
        known = [y] if classes is None else [y, np.asarray(classes)]
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
            X = X.astype(self.centres_.dtype, copy=False)
            self.centres_ = np.concatenate([self.centres_, X])
            self.log_weights_ = np.concatenate([self.log_weights_, np.zeros(len(X), dtype=X.dtype)])
            self._engine.add(self._tensor(X))
        if first or (self.sigma == "auto" and len(self.centres_) >= 1.5 * self._tuned_at):
            self._tune()
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities (n, n_classes), in the order of ``classes_``."""
        parts = [self._class_log_probabilities(*found).exp().cpu().numpy() for found in self._kernels(X)]
        return np.concatenate(parts)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of the class probabilities, exact where the probabilities round to zero."""
        return np.concatenate([self._class_log_probabilities(*found).cpu().numpy() for found in self._kernels(X)])

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of every row (n,)."""
        parts = [self._class_log_probabilities(*found).argmax(1).cpu().numpy() for found in self._kernels(X)]
        return self.classes_[np.concatenate(parts)]

    def score_samples(self, X: Any) -> np.ndarray:
        """Logarithm of the summed kernels around every row (n,): low for what is like nothing in the training set."""
        return np.concatenate([log_density(values).cpu().numpy() for values, _ in self._kernels(X)])

    def kneighbors(
        self, X: Any = None, n_neighbours: int | None = None, return_distance: bool = True
    ) -> tuple[np.ndarray, np.ndarray] | np.ndarray:
        """Distances and indices of the nearest centres (n, n_neighbours), nearest first.

        Without ``X`` the nearest other centres of every centre.
        """
        check_is_fitted(self)
        available = len(self.centres_) - (X is None)
        k = min(self._k(), available) if n_neighbours is None else n_neighbours
        if not 1 <= k <= available:
            raise InputError(f"n_neighbours must lie between 1 and {available}, the number of centres; got {k}.")
        squared, index = self._engine.all_neighbours(k) if X is None else self._engine.search(self._queries(X), k)
        indices = index.cpu().numpy()
        return (squared.sqrt().cpu().numpy(), indices) if return_distance else indices

    def _check_settings(self) -> None:
        if self.sigma != "auto" and not (isinstance(self.sigma, int | float | np.number) and self.sigma > 0):
            raise InputError(f"sigma must be a positive number or 'auto', got {self.sigma!r}.")
        if self.n_neighbours is not None and self.n_neighbours < 1:
            raise InputError(f"n_neighbours must be at least 1, or None for all centres; got {self.n_neighbours}.")

    def _start(self, X: np.ndarray) -> None:
        self.centres_ = X.copy()
        self.log_weights_ = np.zeros(len(X), dtype=X.dtype)
        self._engine = (self.engine or Exact)()
        self._engine.add(self._tensor(X))

    def _k(self) -> int:
        """How many centres a query meets."""
        return len(self.centres_) if self.n_neighbours is None else min(self.n_neighbours, len(self.centres_))

    def _tensor(self, values: np.ndarray) -> Tensor:
        # A copy: a read-only array, as parallel workers share them, cannot be a tensor.
        return torch.tensor(values, device=self.device)

    def _queries(self, X: Any) -> Tensor:
        X = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        return self._tensor(X.astype(self.centres_.dtype, copy=False))

    def _kernels(self, X: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks of log kernel values (rows, k) and the classes of their centres (rows, k)."""
        check_is_fitted(self)
        k = self._k()
        labels, theta = self._tensor(self.labels_), self._tensor(self.log_weights_)
        for part in self._queries(X).split(max(1, BLOCK // k)):
            squared, index = self._engine.search(part, k)
            chosen = index.clamp(min=0)  # a missing neighbour is infinitely far: its kernel is zero
            yield log_kernels(squared, self.sigma_, theta[chosen]), labels[chosen]

    def _class_log_probabilities(self, values: Tensor, labels: Tensor) -> Tensor:
        return class_log_probabilities(values, labels, len(self.classes_))

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
    # One example a class: no width is better than another by the loss, and the spacing of the examples is natural.
    spacing = float(squared[:, 0].sqrt().median())
    return spacing if spacing > 0 else 1.0


def _log_weights(squared: Tensor, same: Tensor, index: Tensor, sigma: float, steps: int, rate: float) -> Tensor:
    """θ (n,) that lowers the mean leave-one-out loss; its gradient is the sum of p - q over the examples."""
    theta = torch.zeros(len(squared), dtype=squared.dtype, device=squared.device, requires_grad=True)
    optimiser = torch.optim.Adam([theta], lr=rate)
    distances = log_kernels(squared, sigma)
    with torch.no_grad():
        for _ in range(steps):
            difference = attention_difference(distances + theta[index], same)[1]
            theta.grad = torch.zeros_like(theta).index_add_(0, index.flatten(), difference.flatten()) / len(theta)
            optimiser.step()
    return theta.detach()
