"""Putting weights into a backbone, and refusing those of another one."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from nngk.errors import InputError
from nngk.networks.backbones.recipes import RECIPES, TIMM, recipe
from nngk.networks.input_spec import InputSpec
from nngk.networks.weights.names import State, strip_prefixes, translate
from nngk.networks.weights.read import Weights
from nngk.networks.weights.recognise import looks_like

# First parts of names that stand for a classifier or a training aid, which an embedding does without.
CLASSIFIERS = ("fc", "classifier", "head", "aux1", "aux2", "last_linear", "logits", "loss1", "loss2")


class Loaded(NamedTuple):
    """What a backbone was given: the file's tensors under its own names, and the input that they expect."""

    state: State
    input: InputSpec
    classifier: tuple[str, ...]  # names of tensors that belong to the file's own classifier
    unused: tuple[str, ...]  # other names that the backbone has no use for


def load_backbone(name: str, backbone: nn.Module, weights: Weights) -> Loaded:
    """Copy `weights` into the backbone of the network `name`; raise InputError if they are another network's.

    Values are kept in the backbone's own type, whatever they are stored in.
    """
    written_for = weights.metadata.get("arch")
    if written_for in RECIPES and written_for not in (name, name.removeprefix(TIMM)):
        # The strides of the two ResNet50 leave no trace in names and shapes, so the file's own word counts.
        raise InputError(f"{weights.name} says that it is for '{written_for}', not for '{name}'.")
    own = backbone.state_dict()
    state, spec = translate(name, strip_prefixes(weights.state, set(own)), recipe(name).input)
    classifier, unused = _fitting(name, own, state, weights)
    backbone.load_state_dict({key: state[key].to(own[key].dtype) for key in own if key in state}, strict=False)
    return Loaded(state, spec, tuple(classifier), tuple(unused))


def _fitting(name: str, own: State, state: State, weights: Weights) -> tuple[list[str], list[str]]:
    """Return the classifier's names and other unused names of `state`; raise InputError if it does not fit `own`."""
    # Old files have no batch counters, and nothing here reads them.
    missing = [key for key in own if key not in state and not key.endswith("num_batches_tracked")]
    misshapen = [key for key in own if key in state and state[key].shape != own[key].shape]
    left = [key for key in state if key not in own]
    ending = recipe(name).classifier + "."
    classifier = [key for key in left if key.startswith(ending) or key.split(".")[0] in CLASSIFIERS]
    others = [key for key in left if key not in set(classifier)]
    # A deeper network of the same family holds all of a shallower one: names inside the backbone's own parts tell.
    parts = {key.split(".")[0] for key in own}
    foreign = [key for key in others if key.split(".")[0] in parts]
    if missing or misshapen or foreign:
        raise _wrong_network(name, weights, missing, [_shapes(key, own, state) for key in misshapen], foreign)
    broken = [key for key in own if key in state and not torch.isfinite(state[key]).all()]
    if broken:
        raise InputError(f"{weights.name} holds values that are not finite in {_some(broken)}; the file is damaged.")
    return classifier, others


def _wrong_network(
    name: str, weights: Weights, missing: list[str], misshapen: list[str], foreign: list[str]
) -> InputError:
    lists = {"missing": missing, "of another shape": misshapen, "unexpected": foreign}
    details = "; ".join(f"{len(keys)} {what}: {_some(keys)}" for what, keys in lists.items() if keys)
    other = looks_like(weights.state)
    guess = f" It looks like '{other}'." if other is not None and other != name else ""
    return InputError(f"{weights.name} does not hold the weights of '{name}'.{guess} Names {details}.")


def _shapes(key: str, own: dict[str, Tensor], state: State) -> str:
    return f"{key} (expected {tuple(own[key].shape)}, got {tuple(state[key].shape)})"


def _some(keys: list[str], most: int = 5) -> str:
    more = f" and {len(keys) - most} more" if len(keys) > most else ""
    return ", ".join(keys[:most]) + more
