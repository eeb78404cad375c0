"""Backbones of timm, imported when one is asked for."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from nngk.errors import InputError
from nngk.networks.input_spec import InputSpec, triple


def import_timm(name: str) -> ModuleType:
    """Return timm; raise InputError if it is not installed or does not know the network."""
    try:
        import timm
    except ImportError as error:
        raise InputError(
            f"The network '{name}' needs the package 'timm', which is not installed. Install it with: pip install timm"
        ) from error
    if not timm.is_model(name):
        near = timm.list_models(f"*{name.split('.')[0]}*")[:5]
        hint = f"Near it: {', '.join(near)}." if near else "timm.list_models() lists the names."
        raise InputError(f"timm knows no network '{name}'. {hint}")
    return timm


def build_timm(name: str) -> tuple[nn.Module, int, bool]:
    """Return a backbone with random weights, its channels, and whether it gives a vector.

    A convolutional network is cut before its pooling, so that the head pools; one that works on tokens keeps its own.
    """
    timm = import_timm(name)
    backbone: nn.Module
    try:
        backbone = timm.create_model(name, num_classes=0, global_pool="")
        features = _probe(backbone)
    except (TypeError, ValueError, AssertionError, RuntimeError):  # it has no pooling of its own to leave out
        features = None
    if features is None or features.ndim != 4:
        backbone = timm.create_model(name, num_classes=0)
        features = _probe(backbone)
        if features.ndim != 2:
            raise InputError(
                f"The network 'timm/{name}' gives features of shape {tuple(features.shape)}, neither a map "
                "nor a vector; choose another one."
            )
        return backbone, int(features.shape[1]), True
    width = getattr(backbone, "num_features", features.shape[1])
    if features.shape[1] != width and features.shape[3] == width:
        # Some transformers put the channels last. A hook, not a wrapper, so that parameter names stay timm's.
        backbone.register_forward_hook(_channels_first)
        return backbone, int(width), False
    return backbone, int(features.shape[1]), False


def timm_input(name: str) -> InputSpec:
    """Return the input that timm's weights of that name were trained on."""
    timm = import_timm(name)
    config: dict[str, Any] = timm.get_pretrained_cfg(name).to_dict()
    size = int(config["input_size"][-1])
    resize = round(size / float(config.get("crop_pct") or 0.875))
    return InputSpec(size, resize, triple(config["mean"]), triple(config["std"]))


def _channels_first(module: nn.Module, inputs: Any, features: Tensor) -> Tensor:
    return features.permute(0, 3, 1, 2)


def _probe(backbone: nn.Module) -> Tensor:
    """Return the features of one black image, to learn their shape."""
    config = getattr(backbone, "pretrained_cfg", None) or {}
    channels, height, width = config.get("input_size", (3, 224, 224))
    backbone.eval()
    with torch.no_grad():
        features = backbone(torch.zeros(1, channels, height, width))
    backbone.train()
    if not isinstance(features, Tensor):
        raise TypeError("not a tensor")
    return features
