"""The many names of one tensor: what a weights file calls it, and what the backbone calls it."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nngk.networks.backbones.googlenet import INCEPTIONS
from nngk.networks.input_spec import InputSpec, Triple

State = dict[str, Tensor]

# What training frameworks put around a network, and in front of its names.
WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network", "state_dict_ema")
PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "net.", "network.", "encoder.", "trunk.")

LITE0_DEPTHS = (1, 2, 2, 3, 3, 4, 1)  # blocks in each stage
VGG16_CONVOLUTIONS = {  # Caffe's name -> torchvision's
    f"conv{block}_{i}": f"features.{position}"
    for (block, i), position in zip(
        [(1, 1), (1, 2), (2, 1), (2, 2), *((b, i) for b in (3, 4, 5) for i in (1, 2, 3))],
        [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28],
    )
}
VGG16_CAFFE = {**VGG16_CONVOLUTIONS, "fc6": "classifier.0", "fc7": "classifier.3", "fc8": "classifier.6"}
GOOGLENET_CAFFE = {
    "conv1_7x7_s2": "conv1.conv",
    "conv2_3x3_reduce": "conv2.conv",
    "conv2_3x3": "conv3.conv",
    "loss3_classifier": "fc",
    **{
        f"inception_{block}_{layer}": f"inception{block}.{branch}.conv"
        for block in INCEPTIONS
        for layer, branch in {
            "1x1": "branch1",
            "3x3_reduce": "branch2.0",
            "3x3": "branch2.1",
            "5x5_reduce": "branch3.0",
            "5x5": "branch3.1",
            "pool_proj": "branch4.1",
        }.items()
    },
}
# network -> (names, first convolution, mean of RGB values in 0..255)
CAFFE: dict[str, tuple[dict[str, str], str, Triple]] = {
    "vgg16": (VGG16_CAFFE, "features.0.weight", (123.68, 116.779, 103.939)),
    "googlenet-bvlc": (GOOGLENET_CAFFE, "conv1.conv.weight", (123.0, 117.0, 104.0)),
}


def unwrap(content: Mapping[str, Any]) -> State:
    """Return the tensors of a file's content, out of the dictionary that a training framework wraps them in."""
    for wrapper in WRAPPERS:
        inner = content.get(wrapper)
        if isinstance(inner, Mapping) and any(isinstance(value, Tensor) for value in inner.values()):
            return unwrap(inner)
    return {key: value for key, value in content.items() if isinstance(value, Tensor)}


def strip_prefixes(state: State, expected: set[str]) -> State:
    """Take 'module.', 'model.', … off the names while most of them have one that the network itself does not have.

    >>> list(strip_prefixes({"module.model.fc.bias": torch.zeros(1)}, {"fc.bias"}))
    ['fc.bias']
    """
    changed = True
    while changed:
        changed = False
        for prefix in PREFIXES:
            count = sum(key.startswith(prefix) for key in state)
            if 2 * count >= len(state) > 0 and not any(key.startswith(prefix) for key in expected):
                rest = {key: value for key, value in state.items() if not key.startswith(prefix)}
                inside = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
                state, changed = {**rest, **inside}, True
    return state


def translate(name: str, state: State, spec: InputSpec) -> tuple[State, InputSpec]:
    """Return the tensors of another library's file under the backbone's names, and the input that they expect."""
    if name == "efficientnet-lite0" and any(key.startswith("_blocks.") for key in state):
        return {_lite0(key): value for key, value in state.items()}, spec
    if name == "vgg16" and "pre_logits.fc1.weight" in state:
        return {_timm_vgg(key): _flat(value, key) for key, value in state.items()}, spec
    if name in CAFFE:
        names, first, mean = CAFFE[name]
        renamed = _from_caffe(state, names)
        if first in renamed and first not in state:
            # Caffe's layers took BGR in 0..255 less the mean: reverse the channels, and let the input say the rest.
            renamed[first] = renamed[first].flip(1)
            red, green, blue = (value / 255 for value in mean)
            return renamed, replace(spec, mean=(red, green, blue), std=(1 / 255,) * 3)
    return state, spec


def _lite0(key: str) -> str:
    """Return the name that timm gives to a tensor of the efficientnet_lite0 wheel."""
    block = re.match(r"_blocks\.(\d+)\.(.*)", key)
    if block is None:
        tops = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
        top, _, rest = key.partition(".")
        return f"{tops.get(top, top)}.{rest}"
    stage, index = 0, int(block[1])
    while stage < len(LITE0_DEPTHS) - 1 and index >= LITE0_DEPTHS[stage]:
        stage, index = stage + 1, index - LITE0_DEPTHS[stage]
    part, _, rest = block[2].partition(".")
    # The first stage does not widen, and timm counts its layers from there.
    parts = (
        {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
        if stage == 0
        else {
            "_expand_conv": "conv_pw",
            "_bn0": "bn1",
            "_depthwise_conv": "conv_dw",
            "_bn1": "bn2",
            "_project_conv": "conv_pwl",
            "_bn2": "bn3",
        }
    )
    return f"blocks.{stage}.{index}.{parts.get(part, part)}.{rest}"


def _timm_vgg(key: str) -> str:
    for theirs, ours in {
        "pre_logits.fc1": "classifier.0",
        "pre_logits.fc2": "classifier.3",
        "head.fc": "classifier.6",
    }.items():
        if key.startswith(theirs + "."):
            return ours + key.removeprefix(theirs)
    return key


def _flat(value: Tensor, key: str) -> Tensor:
    # timm writes the fully connected layers as convolutions; their values lie in the same order.
    return value.flatten(1) if key.startswith("pre_logits.") and value.ndim == 4 else value


def _from_caffe(state: State, names: Mapping[str, str]) -> State:
    """Return the tensors of Caffe's layers under the backbone's names.

    Converters spell the layers 'inception_3a/1x1.weight', 'inception_3a_1x1_bias' and in other ways.
    """
    renamed: State = {}
    for key, value in state.items():
        spelt = re.fullmatch(r"(.+?)[./_](weight|bias|weights|biases)", key)
        layer = re.sub(r"[^a-z0-9]+", "_", spelt[1].lower()) if spelt else ""
        if spelt is None or layer not in names:
            renamed[key] = value
        elif spelt[2].startswith("bias"):
            renamed[names[layer] + ".bias"] = value.flatten()
        else:
            convolution = not names[layer].startswith(("classifier", "fc"))
            renamed[names[layer] + ".weight"] = value if convolution else value.reshape(-1, value.shape[-1])
    return renamed


def compute_dtype(state: State) -> str:
    """Return the floating type that most of a file's values are stored in, such as 'float16'."""
    sizes: dict[torch.dtype, int] = {}
    for value in state.values():
        if value.is_floating_point():
            sizes[value.dtype] = sizes.get(value.dtype, 0) + value.numel()
    return str(max(sizes, key=lambda dtype: sizes[dtype])).removeprefix("torch.") if sizes else "none"
