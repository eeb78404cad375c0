"""Nearest-neighbour Gaussian kernels for images.

Names load when they are first used, so that ``import nngk`` and the help of the command line cost nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nngk import moved

__version__ = "0.2.0"

_HOMES = {
    "CentreBank": "nngk.bank.centres",
    "GaussianKernelLoss": "nngk.losses.gaussian",
    "InputError": "nngk.errors",
    "KernelClassifier": "nngk.sklearn",
    "Model": "nngk.model.model",
    "Settings": "nngk.training.settings",
    "create_network": "nngk.networks",
    "evaluate": "nngk.metrics",
    "read_images": "nngk.data",
    "train": "nngk.training.loop",
}

__all__ = [
    "CentreBank",
    "GaussianKernelLoss",
    "InputError",
    "KernelClassifier",
    "Model",
    "Settings",
    "create_network",
    "evaluate",
    "read_images",
    "train",
]

if TYPE_CHECKING:
    from nngk.bank.centres import CentreBank
    from nngk.data import read_images
    from nngk.errors import InputError
    from nngk.losses.gaussian import GaussianKernelLoss
    from nngk.metrics import evaluate
    from nngk.model.model import Model
    from nngk.networks import create_network
    from nngk.sklearn import KernelClassifier
    from nngk.training.loop import train
    from nngk.training.settings import Settings


moved.install()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nngk' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
