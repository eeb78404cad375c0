"""Why a model answers as it does: the centres that decided, and where on the picture the network looked."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nngk.data import centre_crop
from nngk.errors import InputError
from nngk.kernel.formulas import class_log_probabilities, log_kernels
from nngk.model.answers import Answer
from nngk.model.classes import require_class
from nngk.model.model import Model
from nngk.model.pictures import Picture, Pictures

COPIES = 16  # noisy copies of the picture whose gradients are averaged
NOISE = 0.1  # their noise, as a share of the range of the picture's values
BLUR = 0.03  # the width that the map is smoothed with, as a share of the picture's side


@dataclass(frozen=True)
class Centre:
    """A centre around the picture, with the terms of its kernel."""

    image: str
    label: str
    distance: float
    kernel: float  # exp(-distance² / 2σ²)
    weight: float  # exp(θ)
    share: float  # of all weighted kernels around the picture


@dataclass(frozen=True)
class Explanation:
    """An answer, the class that is explained, the centres behind it, and the map of what mattered."""

    answer: Answer
    label: str  # the class whose probability is explained
    probability: float
    sigma: float
    decided_by: str  # 'kernels' or 'softmax'
    centres: list[Centre]  # largest share first
    picture: Tensor  # (3, s, s), as the network saw it, from 0 to 1
    looked: Tensor  # (s, s), from 0 to 1: what speaks for the class


def explain(model: Model, image: Picture, label: str | None = None, evidence: int = 10) -> Explanation:
    """Return why the model gives ``label`` (the likeliest class, unless one is named) its probability.

    Raise InputError if the model has no such class.
    """
    answer = model.classify(image, evidence=evidence)
    label = answer.label if label is None else label
    require_class(model.class_names, label)
    x = network_input(model, image)
    found = model.predict(model.embed(image), None)
    shares, places = found.shares[0].sort(descending=True, stable=True)
    centres = []
    for share, place in list(zip(shares.tolist(), places.tolist()))[:evidence]:
        centre, squared = int(found.neighbours[0, place]), float(found.squared[0, place])
        centres.append(
            Centre(
                model.sources[centre],
                model.class_names[int(model.labels[centre])],
                squared**0.5,
                float(torch.tensor(-squared / (2 * model.sigma**2), dtype=torch.float64).exp()),
                float(model.theta[centre].double().exp()),
                share,
            )
        )
    spec = model.network.input
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (spec.mean, spec.std))
    return Explanation(
        answer,
        label,
        answer.probabilities[label],
        model.sigma,
        model.classifier,
        centres,
        (x[0].cpu() * std + mean).clamp(0, 1),
        where_it_looked(model, x, model.class_names.index(label)),
    )


def network_input(model: Model, image: Picture) -> Tensor:
    """Return a picture (1, 3, s, s) as the network reads it, on the model's device."""
    spec = model.network.input
    batch = Pictures([image], spec.resize, squash=spec.squash).batch([0]).to(model.device)
    return centre_crop(spec.size, spec.mean, spec.std)(batch)


def where_it_looked(model: Model, x: Tensor, label: int, copies: int = COPIES, seed: int = 0) -> Tensor:
    """Return how much each place of a picture (1, 3, s, s) speaks for a class: (s, s), from 0 to 1.

    The gradient of the class's log-probability times what a place adds to the picture's mean colour: what would be
    lost if the place faded to it. The gradient is averaged over noisy copies between that colour and the picture
    (integrated gradients, SmoothGrad); what speaks against the class counts for nothing.
    """
    luck = torch.Generator().manual_seed(seed)
    ground = x.mean((2, 3), keepdim=True)
    width = NOISE * float(x.max() - x.min())
    total = torch.zeros_like(x)
    for copy in range(copies):
        noisy = ground + (copy + 1) / copies * (x - ground) + width * torch.randn(x.shape, generator=luck).to(x)
        noisy.requires_grad_(True)
        (gradient,) = torch.autograd.grad(log_odds(model, model.network(noisy), label), noisy)
        if not torch.isfinite(gradient).all():
            raise InputError("The gradient of the answer on this picture is NaN or infinite; the model may be damaged.")
        total += gradient
    spoken = (total * (x - ground))[0].sum(0).cpu()
    smooth = _blurred(spoken, max(1.0, BLUR * len(spoken))).clamp(min=0)
    return smooth / smooth.max().clamp(min=1e-30)


def log_odds(model: Model, embedding: Tensor, label: int) -> Tensor:
    """Return ln p / (1 - p) of a class at an embedding (1, dim), with a gradient.

    Its gradient is that of ln p but for a factor, and does not vanish where p is nearly one.
    """
    if model.classifier == "softmax" and model.softmax is not None:
        layer = model.softmax
        scaled = torch.nn.functional.normalize(embedding) * layer["scale"] if "scale" in layer else embedding
        logs = (scaled @ layer["weight"].T + layer["bias"]).log_softmax(1)
    else:
        near = model.predict(embedding.detach()).neighbours[0]
        own = (model.labels == label).nonzero().flatten()
        if not (model.labels[near] == label).any() and len(own):  # a class that is not near: by its nearest centre
            nearest = torch.cdist(embedding.detach(), model.classes.positions[own])[0].argmin()
            near = torch.cat([near, own[nearest][None]])
        squared = (embedding - model.classes.positions[near]).square().sum(1)[None]
        values = log_kernels(squared - squared.detach().min(), model.sigma, model.theta[near][None])
        logs = class_log_probabilities(values, model.labels[near], len(model.class_names))
    others = torch.arange(logs.shape[1], device=logs.device) != label
    rest = logs[0, others & logs[0].isfinite()]
    return logs[0, label] - rest.logsumexp(0) if len(rest) else _density(model, embedding)


def _density(model: Model, embedding: Tensor) -> Tensor:
    """Return the log density of one class alone: nothing competes with it."""
    squared = (embedding - model.classes.positions).square().sum(1)
    return log_kernels(squared, model.sigma, model.theta).logsumexp(0)


def _blurred(values: Tensor, width: float) -> Tensor:
    """Return a map (s, s) smoothed by a Gaussian."""
    reach = int(3 * width)
    line = torch.arange(-reach, reach + 1).float()
    line = (-(line**2) / (2 * width**2)).exp()
    line = line / line.sum()
    rows = torch.nn.functional.pad(values[None, None], [reach] * 4, mode="replicate")
    rows = torch.nn.functional.conv2d(rows, line.view(1, 1, 1, -1))
    return torch.nn.functional.conv2d(rows, line.view(1, 1, -1, 1))[0, 0]
