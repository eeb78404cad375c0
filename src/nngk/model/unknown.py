"""How unknown an image is, and where 'unknown' begins.

An image is measured in several ways, each higher where it is more familiar:

- ``density``: the logarithm of the summed kernels around its embedding;
- ``confidence``: the logarithm of the odds that the kernels give for its likeliest class;

and, in a space of the network's own features (``nngk.model.space``),

- ``closeness``: minus its distance from the nearest class mean;
- ``contrast``: minus the square of that distance, for its distance from the middle of all images;
- ``lead``: the logarithm of the odds for the class of the nearest mean, each mean with a kernel of its own;
- ``certainty``: the logarithm of the largest probability, a softmax over the cosines with the class means, as seen
  from the middle of all images;
- ``gap``: by how much the largest of those cosines exceeds the next one.
- ``likeness``: the largest of the mean cosines with the images of a class, in the features themselves, as if those of
  all classes were equally alike; where few classes were trained.

A class that was taught without training was not there when the values at known images were taken, and the space does
not set it apart. Images of the trained classes are therefore measured as if it were not there. An image that is nearest
to a taught class is compared with known images by its likeness alone, and by its closeness alone where there is none:
the other measures have no value at it.

Those that count are brought to one scale by their values at images of known classes, and added with weights that were
learnt; in older models without weights, their ranks among those values are added. What comes out is said as the share
of images of known classes that look at least as strange; below the share of false alarms that is accepted, the answer
is 'unknown'.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nngk.defaults import FALSE_ALARMS
from nngk.errors import InputError
from nngk.kernel.predict import Prediction
from nngk.model.classes import require_numbers
from nngk.model.space import Space

MEASURES = ("density", "confidence", "closeness", "contrast", "lead", "certainty", "gap", "likeness")
WIDTH = 2.0  # of the kernels around class means, where the spread within a class is at most 1
SHARPNESS = 10.0  # of the probabilities that cosines with class means are turned into
LARGEST_LEAD = 50.0  # of log odds: beyond it the other classes have no kernel to speak of

Measured = dict[str, Tensor]  # a value for each image and measure


@dataclass(frozen=True)
class Familiar:
    """What images of known classes look like, and which measures count."""

    values: Measured  # (n,) of the same n images, for 'density' at least
    parts: tuple[str, ...] = ("density",)  # the measures that count
    false_alarms: float = FALSE_ALARMS
    space: Space | None = None  # in which classes are close or far
    weights: tuple[float, ...] | None = None  # of the parts; None: their ranks are added

    def __post_init__(self) -> None:
        n = len(self.values.get("density", ()))
        for name, values in self.values.items():
            if name not in MEASURES:
                raise InputError(f"The measures of familiar images are {', '.join(MEASURES)}; got {name!r}.")
            if values.shape != (n,) or not values.is_floating_point() or values.isnan().any():
                raise InputError(f"The familiar values ({name}) must be a vector of {n} numbers without NaN.")
        if "density" not in self.values or not self.parts or any(part not in self.values for part in self.parts):
            raise InputError(f"The parts of the unknown score are {self.parts}; known are {', '.join(self.values)}.")
        if self.weights is not None and not _are_weights(self.weights, len(self.parts)):
            raise InputError(f"The unknown score has one number per part as its weights; got {self.weights}.")
        required_images(self.false_alarms)
        if self.space is not None:
            require_numbers("directions of the space", self.space.directions, (None, None))
            require_numbers("origin of the space", self.space.origin, (len(self.space.directions),))
            if self.space.plain is not None:
                require_numbers("plain directions", self.space.plain, (len(self.space.directions), None))

    @classmethod
    def densities(cls, values: Tensor | None) -> "Familiar":
        """Return log densities at images of known classes as all that counts; without any everything is unknown."""
        return cls({"density": torch.empty(0) if values is None else values.detach().cpu()})

    @classmethod
    def read(cls, tensors: dict[str, Tensor], settings: dict[str, Any] | None) -> "Familiar":
        """Return what :meth:`tensors` and :meth:`settings` hold; without settings it is of a model of nngk 0.1."""
        values = {key.removeprefix("familiar."): t for key, t in tensors.items() if key.startswith("familiar.")}
        values["density"] = tensors["familiar"]
        if settings is None:
            return cls(values)
        has = "space.directions" in tensors
        origin, plain = tensors.get("space.origin", torch.empty(0)), tensors.get("space.plain")
        space = Space(tensors["space.directions"], origin, plain) if has else None
        weights = settings.get("weights")
        weights = None if weights is None else tuple(weights)
        return cls(values, tuple(settings["parts"]), settings["false_alarms"], space, weights)

    def tensors(self) -> Measured:
        """Return the values and the space under the names that a model's folder has for them."""
        named = {"familiar" if name == "density" else f"familiar.{name}": v for name, v in self.values.items()}
        if self.space is not None:
            named |= {"space.directions": self.space.directions, "space.origin": self.space.origin}
            named |= {} if self.space.plain is None else {"space.plain": self.space.plain}
        return named

    def settings(self) -> dict[str, Any]:
        """Return the rest, ready for JSON."""
        settings = {"parts": list(self.parts), "false_alarms": self.false_alarms}
        return settings if self.weights is None else settings | {"weights": list(self.weights)}

    def alike(self, measured: Measured) -> Tensor:
        """Return the share of images of known classes that look at least as strange as each image measured, (n,).

        A measure that is missing, as where no features were given, or that has no value at an image (NaN), does not
        count: the image is compared with the known ones by the others alone.
        """
        parts = [part for part in self.parts if part in measured] or ["density"]
        given = torch.stack([~measured[part].isnan().cpu() for part in parts], 1)
        shares = torch.empty(len(given), dtype=torch.float64)
        for pattern in given.unique(dim=0):
            rows = (given == pattern).all(1)
            left = [part for part, there in zip(parts, pattern.tolist()) if there] or [self._instead(measured)]
            values = {part: measured[part].cpu()[rows] for part in left}
            # What has no value at all is like nothing.
            nothing = torch.stack([value.isnan() for value in values.values()]).any(0)
            shares[rows] = self._alike(values, left).double().masked_fill(nothing, 0.0)
        return shares

    def _instead(self, measured: Measured) -> str:
        """Return the measure of images at which none of the parts has a value."""
        return "likeness" if "likeness" in measured and "likeness" in self.values else "density"

    def _alike(self, measured: Measured, parts: Sequence[str]) -> Tensor:
        together = self._ranks if self.weights is None or len(parts) < len(self.parts) else self._weighted
        return 1 - strangeness(-together(measured, parts), together(self.values, parts).neg().sort().values)

    def completed(self, measured: Measured) -> Measured:
        """Return measures with the usual value where an image has none (NaN)."""
        usual = {name: values.mean().to(measured[name]) for name, values in self.values.items() if name in measured}
        return {name: torch.where(v.isnan(), usual.get(name, v), v) for name, v in measured.items()}

    def score(self, alike: Tensor) -> Tensor:
        """Return the unknown score, from 0 to 1, of such shares: one half where false alarms begin.

        >>> Familiar({"density": torch.zeros(1)}, false_alarms=0.05).score(torch.tensor([1.0, 0.05, 0.0026]))
        tensor([0.0476, 0.5000, 0.9506])
        """
        return self.false_alarms / (self.false_alarms + alike)

    def _ranks(self, measured: Measured, parts: Sequence[str]) -> Tensor:
        ranks = [strangeness(measured[part].cpu().double(), self.values[part].double().sort().values) for part in parts]
        return torch.stack(ranks).mean(0)

    def _weighted(self, measured: Measured, parts: Sequence[str]) -> Tensor:
        return deviations(self.values, measured, parts) @ torch.tensor(self.weights, dtype=torch.float64)


def required_images(false_alarms: float) -> int:
    """Return how many images tell where a share of false alarms begins. Raise InputError if it is no share.

    >>> required_images(0.05)
    20
    """
    if isinstance(false_alarms, bool) or not isinstance(false_alarms, int | float) or not 0 < false_alarms < 1:
        raise InputError(f"The share of false alarms must lie between 0 and 1; got {false_alarms!r}.")
    return math.ceil(1 / false_alarms - 1e-9)


def deviations(familiar: Measured, measured: Measured, parts: Sequence[str]) -> Tensor:
    """Return the strangeness (n, parts) by each measure: how many deviations below the mean of the familiar values."""
    columns = []
    for part in parts:
        usual, values = familiar[part].cpu().double(), measured[part].cpu().double()
        spread = usual.std(correction=0).clamp(min=1e-6) if len(usual) else usual.new_ones(())
        columns.append((usual.mean() - values) / spread if len(usual) else -values)
    return torch.stack(columns, 1)


def strangeness(value: Tensor, familiar: Tensor) -> Tensor:
    """Return the share of the ``familiar`` values (sorted) that are at least as high as each ``value``.

    Below the lowest of them the share goes on rising towards one. Without familiar values everything is strange.

    >>> strangeness(torch.tensor([5.0, 1.5, 0.0, -9.0]), torch.tensor([1.0, 2.0, 3.0])).mul(100).round().tolist()
    [0.0, 50.0, 93.0, 100.0]
    """
    n = len(familiar)
    if not n:
        return torch.ones_like(value)
    share = (n - torch.searchsorted(familiar, value)).to(value.dtype) / (n + 1)
    # Few images leave large steps: the distance below the lowest tells apart what their number cannot.
    finite = familiar[familiar.isfinite()]
    spread = finite.std(correction=0).clamp(min=1e-6) if len(finite) else familiar.new_ones(())
    beyond = (familiar[0] - value).clamp(min=0) / spread
    return torch.where(beyond > 0, 1 - torch.exp(-beyond) / (n + 1), share)


def measured(
    found: Prediction,
    means: Tensor | None,
    coordinates: Tensor | None,
    taught: Tensor | None = None,
    trained_names: Tensor | None = None,
    space: Space | None = None,
    counts: Tensor | None = None,
) -> Measured:
    """Return the measures of images: what the kernels say, and how images lie to the class means in the ``space``.

    ``taught`` says which of the means are of classes that came without training, ``trained_names`` which of all
    classes (those of the probabilities) did not. ``counts`` says how many images each mean is of.
    """
    values = {"density": found.log_density, "confidence": confidence(found.log_probabilities, trained_names)}
    if coordinates is not None and means is not None:
        (x, plain), (means, plain_means) = (
            (rows, None) if space is None else space.apart(rows) for rows in (coordinates.to(means), means)
        )
        distances = torch.cdist(x, means)
        trained = torch.ones(len(means), dtype=torch.bool) if taught is None or bool(taught.all()) else ~taught.cpu()
        trained = trained.to(means.device)
        others = _beside(x, means[trained], distances[:, trained]) | {"confidence": values["confidence"].to(x)}
        if plain is None or plain_means is None:
            values["closeness"] = -distances.amin(1)
            elsewhere = ~trained[distances.argmin(1)]
        else:
            others["closeness"] = -distances[:, trained].amin(1)
            # Not the cosine with the mean, which is the lower the fewer images it is the mean of.
            alike = plain @ plain_means.T
            values["likeness"], like = (alike if counts is None else alike - tightness(plain_means, counts)).max(1)
            elsewhere = ~trained[like]
        values |= {name: value.masked_fill(elsewhere, torch.nan) for name, value in others.items()}
    return values


def tightness(means: Tensor, counts: Tensor) -> Tensor:
    """Return by how much the images of each class are more alike than those of classes are on average, (c,).

    ``means`` (c, d) are those of ``counts`` (c,) rows of unit length, whose mean cosine with each other follows from
    the length of their mean. Few images say little about their class: to all of them comes one pair that is as alike as
    on average. Where no class has two images, none is more alike than others.

    >>> tightness(torch.tensor([[0.9, 0.0], [0.5, 0.5], [0.0, 1.0]]), torch.tensor([4, 2, 1])).round(decimals=2)
    tensor([ 0.3200, -0.1900,  0.0000])
    """
    n = counts.to(means)
    pairs = n * (n - 1) / 2
    cosines = (n * means.square().sum(1) - 1) / (n - 1).clamp(min=1)
    several = pairs > 0
    if not several.any():
        return torch.zeros_like(cosines)
    usual = cosines[several].mean()
    return torch.where(several, (cosines - usual) * pairs / (pairs + 1), 0.0)


def _beside(x: Tensor, means: Tensor, distances: Tensor) -> Measured:
    """Return the measures that weigh the nearest class against others."""
    contrast = -distances.amin(1).square() / x.square().sum(1).clamp(min=1e-12)
    return {"contrast": contrast, "lead": lead(distances), **_directions(x, means)}


def _directions(x: Tensor, means: Tensor) -> Measured:
    """Return how images lie to the class means in direction, as seen from the middle of all images."""
    cosines = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(means).T
    first, second = torch.cat([cosines, cosines.new_full((len(x), 1), -1.0)], 1).topk(2, 1).values.unbind(1)
    return {"certainty": (SHARPNESS * cosines).log_softmax(1).amax(1), "gap": first - second}


def confidence(log_probabilities: Tensor, among: Tensor | None = None) -> Tensor:
    """Return the logarithm of the odds for the likeliest of the classes (n, c), or of those ``among`` them (c,).

    It is NaN where none of these has a kernel near. Where no class is among them, all of them count.

    >>> confidence(torch.tensor([[0.6, 0.2, 0.2], [0.0, 0.0, 1.0]]).log(), torch.tensor([True, True, False]))
    tensor([1.0986,    nan])
    """
    logs = log_probabilities
    if among is not None and bool(among.any()):
        logs = logs[:, among.to(logs.device)]
    best = logs.argmax(1, keepdim=True)
    others = logs.scatter(1, best, -torch.inf).logsumexp(1)
    return (logs.gather(1, best).squeeze(1) - others).clamp(max=LARGEST_LEAD)


def lead(distances: Tensor) -> Tensor:
    """Return the logarithm of the odds for the nearest of class means at these distances (n, c), against all others.

    >>> lead(torch.tensor([[0.0, 4.0, 4.0], [1.0, 1.0, 9.0]])).round(decimals=2)
    tensor([1.3100, -0.0000])
    """
    values = distances.square() / (-2 * WIDTH**2)
    nearest = values.argmax(1, keepdim=True)
    others = values.scatter(1, nearest, -torch.inf).logsumexp(1)
    return (values.gather(1, nearest).squeeze(1) - others).clamp(max=LARGEST_LEAD)


def _are_weights(weights: Sequence[float], count: int) -> bool:
    return len(weights) == count and all(isinstance(w, int | float) and math.isfinite(w) for w in weights)
