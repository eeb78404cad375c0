"""The classes that a model knows, and how one is learned or forgotten without training."""

import difflib
import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.search import Exact

FEW = 5  # images of a new class that are so few that half of the place of each is chance


@dataclass(frozen=True)
class Classes:
    """Class names, the m centres of the classes, and the softmax layer where one was trained.

    Never changed in place: :func:`with_images` and :func:`without_class` return a new one.
    """

    names: list[str]
    centres: Tensor  # (m, dim)
    labels: Tensor  # (m,), each the place of a name
    theta: Tensor  # (m,), log weights
    sources: list[str]  # m texts: where the image of each centre came from
    softmax: dict[str, Tensor] | None = None  # 'weight' (c, dim), 'bias' (c,), 'scale' of the first c classes
    coordinates: Tensor | None = None  # (m, d), of each centre's image in the space of the network's own features
    thumbnails: list[bytes] | None = None  # m small JPEGs, some perhaps empty
    added: Tensor | None = None  # (m,), which centres came without training; None: none did
    drawn: float = 0.0  # the share of the way to the mean of its class that the kernel of a trained centre is drawn

    def __post_init__(self) -> None:
        m, classes = len(self.sources), len(self.names)
        if any(not isinstance(text, str) for text in self.names + self.sources):
            raise InputError("Class names and sources must be texts.")
        if len(set(self.names)) != classes:
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise InputError(f"Class names must differ; '{twice}' is there twice.")
        require_numbers("centres", self.centres, (m, None))
        require_numbers("theta", self.theta, (m,))
        if self.labels.dtype != torch.int64 or self.labels.shape != (m,):
            kind = f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            raise InputError(f"The labels must be {m} whole numbers (int64), one for each centre; got {kind}.")
        if m and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < classes:
            span = f"{int(self.labels.min())} to {int(self.labels.max())}"
            raise InputError(f"The labels must be from 0 to {classes - 1}, the places of the class names; got {span}.")
        if self.softmax is not None:
            _require_softmax(self.softmax, classes, self.centres.shape[1])
        if self.coordinates is not None:
            require_numbers("coordinates", self.coordinates, (m, None))
        if self.thumbnails is not None and len(self.thumbnails) != m:
            raise InputError(f"The thumbnails must be {m}, one for each centre; got {len(self.thumbnails)}.")
        if self.added is not None and (self.added.dtype != torch.bool or self.added.shape != (m,)):
            raise InputError(f"Which centres were added must be {m} marks (bool); got {self.added.dtype}.")
        if not 0 <= self.drawn <= 1:
            raise InputError(f"Kernels are drawn to the mean of their class by a share from 0 to 1; got {self.drawn}.")

    @cached_property
    def engine(self) -> Exact:
        """Return the search among the images that the centres are made of."""
        return Exact(self.centres)

    @cached_property
    def positions(self) -> Tensor:
        """Return where the kernels stand (m, dim): between their images and the mean of their class."""
        added = _added(self)
        if not self.drawn and not bool(added.any()):
            return self.centres
        positions = drawn_to_means(self.centres, self.labels, self.drawn)
        for label in self.labels[added].unique().tolist():
            rows = added & (self.labels == label)
            positions[rows] = drawn_together(self.centres[rows], self.drawn)
        return positions

    @cached_property
    def kernels(self) -> Exact:
        """Return the search among the positions of the kernels."""
        return self.engine if self.positions is self.centres else Exact(self.positions)

    @cached_property
    def class_means(self) -> Tensor | None:
        """Return the mean coordinates (c, d) of each class that has a centre, where coordinates are kept."""
        if self.coordinates is None:
            return None
        present, which = self.labels.unique(return_inverse=True)
        rows = self.coordinates.float()
        sums = rows.new_zeros(len(present), rows.shape[1]).index_add_(0, which, rows)
        return sums / self.class_sizes[:, None]

    @cached_property
    def class_sizes(self) -> Tensor:
        """Return how many centres each class that has one has, (c,)."""
        return self.labels.unique(return_counts=True)[1]

    @cached_property
    def taught(self) -> Tensor | None:
        """Return which classes that have a centre (c,) came without training; None if none did."""
        if self.added is None:
            return None
        present, which = self.labels.unique(return_inverse=True)
        return torch.bincount(which[~self.added], minlength=len(present)) == 0

    @cached_property
    def is_trained(self) -> Tensor | None:
        """Return which of all classes (names) have a centre that took part in training; None if all centres did."""
        if self.added is None:
            return None
        return torch.bincount(self.labels[~self.added], minlength=len(self.names)) > 0

    @property
    def trained_names(self) -> set[str]:
        """Return the classes that have a centre which took part in training."""
        return {self.names[label] for label in self.labels[~_added(self)].unique().tolist()}

    def of(self, name: str) -> Tensor:
        """Return which centres belong to the class ``name``, as a mask (m,)."""
        return self.labels == self.names.index(name)


def drawn_to_means(rows: Tensor, labels: Tensor, share: float) -> Tensor:
    """Return rows (n, dim) moved by a share of the way towards the mean of their class.

    >>> drawn_to_means(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([4, 4, 0]), 0.5).flatten().tolist()
    [0.5, 1.5, 9.0]
    """
    present, which = labels.unique(return_inverse=True)
    means = rows.new_zeros(len(present), rows.shape[1]).index_add_(0, which, rows) / torch.bincount(which)[:, None]
    return rows + (means[which] - rows) * share


def drawn_together(rows: Tensor, least: float = 0.0) -> Tensor:
    """Return where the kernels of a class stand that was shown in a few images ``rows`` (n, dim).

    A new image of the class is nearer to the mean of those shown than to any of them: each moves towards it, half of
    the way where there are five, and less where there are more, but the share ``least`` of it at least.

    >>> drawn_together(torch.tensor([[0.0], [4.0], [4.0], [6.0], [6.0]])).flatten().tolist()
    [2.0, 4.0, 4.0, 5.0, 5.0]
    """
    return rows + (rows.mean(0, keepdim=True) - rows) * share_drawn(len(rows), least)


def share_drawn(count: int, least: float = 0.0) -> float:
    """Return how far of the way to their mean the kernels of a class of ``count`` images are drawn together."""
    return max(FEW / (FEW + count), least)


def with_images(
    known: Classes,
    name: str,
    rows: Tensor,
    sources: list[str],
    coordinates: Tensor | None = None,
    weight: float | None = None,
    thumbnails: list[bytes] | None = None,
) -> Classes:
    """Return the classes with the embeddings ``rows`` (n, dim) as centres of ``name``, which may be new or known.

    ``weight`` is θ of the new centres, :func:`usual_weight` where none is given.
    Where the coordinates of the known images are kept, those of the new ones are needed too.
    """
    if known.coordinates is not None and coordinates is None:
        raise InputError("The coordinates of the new images are needed where those of the known ones are kept.")
    softmax = known.softmax
    if name in known.names:
        softmax = None  # its layer could not learn from the new images: from now on the kernels answer
    names = known.names if name in known.names else [*known.names, name]
    label = names.index(name)
    theta = known.theta.new_tensor(usual_weight(known, name, len(rows)) if weight is None else weight)
    return Classes(
        names,
        torch.cat([known.centres, rows]),
        torch.cat([known.labels, known.labels.new_full((len(rows),), label)]),
        torch.cat([known.theta, theta.expand(len(rows))]),
        known.sources + sources,
        softmax,
        _joined(known.coordinates, coordinates),
        None if known.thumbnails is None else known.thumbnails + (thumbnails or [b""] * len(rows)),
        torch.cat([_added(known), _added(known).new_full((len(rows),), comes_untrained(known, name))]),
        known.drawn,
    )


def without_class(known: Classes, name: str) -> Classes:
    """Return the classes without ``name``. Raise InputError if it is not one of them."""
    require_class(known.names, name)
    label = known.names.index(name)
    left = keeping(known, ~known.of(name))
    softmax = known.softmax
    if softmax is not None and label < len(softmax["weight"]):
        rows = torch.arange(len(softmax["weight"]), device=left.labels.device) != label
        softmax = softmax | {key: softmax[key][rows] for key in ("weight", "bias")}
    names = known.names[:label] + known.names[label + 1 :]
    return replace(left, names=names, labels=left.labels - (left.labels > label).long(), softmax=softmax)


def renamed(known: Classes, old: str, new: str) -> Classes:
    """Return the classes with another name for ``old``. Raise InputError if the new one is taken."""
    require_class(known.names, old)
    require_new(known.names, new)
    return replace(known, names=[new if name == old else name for name in known.names])


def merged(known: Classes, name: str, into: str) -> Classes:
    """Return the classes with the images of ``name`` among those of ``into``."""
    require_two(known.names, name, into)
    gone, kept = known.names.index(name), known.names.index(into)
    labels = known.labels.masked_fill(known.labels == gone, kept)
    names = known.names[:gone] + known.names[gone + 1 :]
    # Two classes that were shown apart have no mean in common: their kernels stand at their images.
    added = None if known.added is None else known.added & (labels != kept)
    # A softmax layer has no row for both together: from now on the kernels answer.
    return replace(known, names=names, labels=labels - (labels > gone).long(), softmax=None, added=added)


def require_class(known: Collection[str], name: str) -> None:
    """Raise InputError if a class is not among the known ones."""
    if name not in known:
        listed = ", ".join(list(known)[:10]) + (", …" if len(known) > 10 else "")
        raise InputError(f"The model has no class '{name}'; it knows: {listed or 'none'}.")


def require_new(known: Collection[str], name: str) -> None:
    """Raise InputError if a class cannot get this name: it is none, or another class has it."""
    if not isinstance(name, str) or not name:
        raise InputError(f"A class needs a name, a text; got {name!r}.")
    if name in known:
        raise InputError(f"The model has a class '{name}' already. Merge the two to make them one.")


def require_two(known: Collection[str], name: str, into: str) -> None:
    """Raise InputError if these are not two of the known classes."""
    require_class(known, name)
    require_class(known, into)
    if name == into:
        raise InputError(f"'{name}' is one class already: name two to merge.")


def similar_name(known: Collection[str], name: str) -> str | None:
    """Return the known class whose name is nearly ``name``, if any; names that differ in a number are not similar.

    >>> known = ["red kite", "type 1"]
    >>> similar_name(known, "Red Kite"), similar_name(known, "type 2"), similar_name(known, "red kite")
    ('red kite', None, None)
    """
    if name in known:
        return None
    plain = {other.casefold(): other for other in known if _digits(other) == _digits(name)}
    near = difflib.get_close_matches(name.casefold(), plain, 1, cutoff=0.85)
    return plain[near[0]] if near else None


def _digits(text: str) -> str:
    return "".join(letter for letter in text if letter.isdigit())


def keeping(known: Classes, kept: Tensor) -> Classes:
    """Return the classes with the marked centres (m,) alone; every name stays, also one that has no centre left."""
    return replace(
        known,
        centres=known.centres[kept],
        labels=known.labels[kept],
        theta=known.theta[kept],
        sources=[source for source, keep in zip(known.sources, kept.tolist()) if keep],
        coordinates=None if known.coordinates is None else known.coordinates[kept],
        thumbnails=None
        if known.thumbnails is None
        else [small for small, keep in zip(known.thumbnails, kept.tolist()) if keep],
        added=None if known.added is None else known.added[kept],
    )


def usual_weight(known: Classes, name: str, count: int) -> float:
    """Return θ of new centres: a class shown in five pictures weighs in all what a class weighs on average.

    With the weight of a trained centre each, a class of five would be drowned by neighbours with a hundred.
    """
    if not len(known.theta):
        return 0.0
    if name in known.names and known.of(name).any():  # more images of a known class
        return float(known.theta[known.of(name)].mean())
    return average_weight(float(known.theta.logsumexp(0)), len(known.labels.unique()), count)


def average_weight(total: float, classes: int, count: int) -> float:
    """Return θ of ``count`` centres that weigh together what a class weighs on average; ``total`` is ln Σ exp θ."""
    return total - math.log(classes * count)


def _added(known: Classes) -> Tensor:
    return torch.zeros_like(known.labels, dtype=torch.bool) if known.added is None else known.added


def comes_untrained(known: Classes, name: str) -> bool:
    """Return whether new images of a class are all that it is known by: it is new, or all of it was added."""
    return name not in known.names or bool(_added(known)[known.of(name)].all())


def _joined(known: Tensor | None, new: Tensor | None) -> Tensor | None:
    return None if known is None or new is None else torch.cat([known, new.to(known)])


def coincide(squared: Tensor, x: Tensor) -> Tensor:
    """Return where embeddings (n, dim) lie, but for rounding, at centres at these squared distances (n, k)."""
    return squared <= 1e-8 * x.to(squared).square().sum(1, keepdim=True)


def first_of_each(known: Classes, name: str, rows: Tensor) -> Tensor:
    """Return the places of the embeddings ``rows`` (n, dim) that are new to a class: neither there nor twice."""
    there = known.centres[known.of(name)] if name in known.names else known.centres[:0]
    pairs = torch.cdist(rows.double(), torch.cat([there, rows]).double()).square()
    same = coincide(pairs, rows.double())
    earlier = torch.ones(len(rows), len(rows), dtype=torch.bool, device=rows.device).tril(-1)
    met = torch.cat([earlier.new_ones(len(rows), len(there)), earlier], 1)
    return (~(same & met).any(1)).nonzero().flatten()


def require_numbers(what: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    """Raise InputError if a tensor has another shape, or anything but finite numbers; None stands for any length."""
    fits = tensor.ndim == len(shape) and all(want in (None, got) for want, got in zip(shape, tensor.shape))
    if not fits or not tensor.is_floating_point():
        expected = ", ".join("any" if n is None else str(n) for n in shape)
        raise InputError(
            f"The {what} must be numbers of shape ({expected}); got {tensor.dtype} of shape {tuple(tensor.shape)}."
        )
    if not torch.isfinite(tensor).all():
        raise InputError(f"The {what} are NaN or infinite.")


def _require_softmax(layer: dict[str, Tensor], classes: int, dim: int) -> None:
    """Raise InputError if a softmax layer does not fit the classes."""
    if not {"weight", "bias"} <= layer.keys() <= {"weight", "bias", "scale"}:
        raise InputError(f"A softmax layer has 'weight', 'bias' and perhaps 'scale'; got {', '.join(sorted(layer))}.")
    rows = len(layer["weight"]) if layer["weight"].ndim else 0
    if rows > classes:
        raise InputError(f"The softmax layer has {rows} classes, the model {classes}.")
    require_numbers("weights of the softmax layer", layer["weight"], (rows, dim))
    require_numbers("biases of the softmax layer", layer["bias"], (rows,))
    if "scale" in layer:
        require_numbers("scale of the softmax layer", layer["scale"], ())
