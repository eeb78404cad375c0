"""The list of networks, for people and for the command line."""

import copy
import functools
from typing import Any

from nngk.errors import InputError
from nngk.networks.backbones.recipes import RECIPES, TIMM
from nngk.networks.shapes_only import shapes_only


def list_networks() -> list[dict[str, Any]]:
    """Return name, embedding layer, dimensions, parameters, input size and origin of the weights of every network.

    `available` is False, with dimensions and parameters None, where the package that builds the network is absent.

    >>> [row["dim"] for row in list_networks() if row["name"] in ("vgg16", "resnet50")]
    [4096, 2048]
    """
    return copy.deepcopy(_rows())


@functools.lru_cache(maxsize=1)
def _rows() -> list[dict[str, Any]]:
    rows = [_row(name) for name in RECIPES]
    anything = dict.fromkeys(("dim", "parameters", "input_size"))
    rows.append(
        {"name": f"{TIMM}NAME", "layer": "last feature map or token, pooled", **anything}
        | {"weights": "timm's download", "available": _has_timm()}
    )
    return rows


def _row(name: str) -> dict[str, Any]:
    known = RECIPES[name]
    dim: int | None = None
    parameters: int | None = None
    try:
        with shapes_only():  # VGG16 alone would take half a gigabyte
            module, dim, _ = known.build()
        parameters = sum(parameter.numel() for parameter in module.parameters())
    except InputError:
        pass
    return {
        "name": name,
        "layer": known.layer,
        "dim": dim,
        "parameters": parameters,
        "input_size": known.input.size,
        "weights": known.origin,
        "available": parameters is not None,
    }


def _has_timm() -> bool:
    try:
        import timm  # noqa: F401
    except ImportError:
        return False
    return True
