"""Models of a few weights, for tests of what surrounds them."""

import torch

from nngk.model.card import CARD
from nngk.model.features import feature_width
from nngk.model.model import Model
from nngk.model.space import Space
from nngk.model.unknown import MEASURES, Familiar
from nngk.networks import create_network
from nngk.networks.input_spec import InputSpec


def small_model(seed=0, classes=3, softmax=False):
    torch.manual_seed(seed)
    network = create_network("small", dim=4, weights="random")
    network.input = InputSpec.from_config({**network.input.to_config(), "size": 12, "resize": 12})
    m = classes * 4
    values = {name: torch.randn(20) for name in MEASURES}
    space = Space(torch.randn(feature_width(network), 3), torch.randn(feature_width(network)))
    layer = {"weight": torch.randn(classes, 4), "bias": torch.randn(classes)} if softmax else None
    return Model(
        network,
        centres=torch.randn(m, 4),
        labels=torch.arange(m) % classes,
        theta=torch.randn(m),
        sigma=0.4,
        class_names=[f"class {i} äöü" for i in range(classes)],
        sources=[f"images/{i}.png" for i in range(m)],
        familiar=Familiar(values, ("closeness", "lead"), 0.1, space),
        coordinates=torch.randn(m, 3),
        n_neighbours=5,
        softmax=layer,
        info={"task": "classify", "test": {"accuracy": 0.5}},
    )


def difference(a, b):
    """The first thing in which two models differ, or none."""
    for field in ("class_names", "sources", "sigma", "n_neighbours", "info"):
        if getattr(a, field) != getattr(b, field):
            return field
    for field in ("centres", "labels", "theta"):
        if not torch.equal(getattr(a, field), getattr(b, field)):
            return field
    if not torch.equal(a.classes.coordinates, b.classes.coordinates):
        return "coordinates"
    one, two = a.familiar.tensors(), b.familiar.tensors()
    if a.familiar.settings() != b.familiar.settings() or one.keys() != two.keys():
        return "unknown"
    if not all(torch.equal(one[key], two[key]) for key in one):
        return "familiar"
    one, two = a.network.state_dict(), b.network.state_dict()
    if a.network.config != b.network.config or one.keys() != two.keys():
        return "network"
    return next((key for key in one if not torch.equal(one[key], two[key])), None)


def same(a, b):
    assert difference(a, b) is None
    x = torch.randn(6, 4)
    assert torch.equal(a.predict(x).log_probabilities, b.predict(x).log_probabilities)
    assert torch.equal(a.probabilities(x), b.probabilities(x))


def visible(folder):
    """The files of a folder besides the lock of its writers and the card for people."""
    return [path for path in folder.iterdir() if path.name not in (".lock", CARD)]
