"""Which network a weights file belongs to, judged by the names and shapes of its tensors."""

import functools
import warnings

import torch

from nngk.errors import InputError
from nngk.networks.backbones.recipes import RECIPES
from nngk.networks.shapes_only import shapes_only
from nngk.networks.weights.names import State, strip_prefixes, translate

# Built with real tensors (RegNet) or slowly (transformers), and rarely what a file for our networks turns out to be.
SLOW = ("regnet*", "vit*", "swin*", "maxvit*")


def looks_like(state: State) -> str | None:
    """Return the name of the network whose tensors these are, ours first, then torchvision's; None if neither knows.

    >>> looks_like(RECIPES["small"].build().module.state_dict())
    'small'
    """
    import torchvision

    for name in [*RECIPES, *torchvision.models.list_models(module=torchvision.models, exclude=SLOW)]:
        shapes = _shapes(name)
        if not shapes:
            continue
        ours = name in RECIPES
        named = strip_prefixes(state, set(shapes))
        if ours:
            named, _ = translate(name, named, RECIPES[name].input)
        if any(key not in named or named[key].shape != shape for key, shape in shapes.items()):
            continue
        # A deeper network of the family holds a shallower one, so nothing may be left over inside the same parts.
        parts = {key.split(".")[0] for key in shapes}
        top = RECIPES[name].classifier + "." if ours else "aux"
        left = [key for key in named if key not in shapes and "num_batches_tracked" not in key]
        if not any(key.split(".")[0] in parts and not key.startswith(top) for key in left):
            return name
    return None


@functools.cache
def _shapes(name: str) -> dict[str, torch.Size]:
    """Return the shapes of a network's tensors by name; none where the package that builds it is absent."""
    with shapes_only(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision's remarks on slow initialisation
        try:
            import torchvision

            network = (
                RECIPES[name].build().module if name in RECIPES else torchvision.models.get_model(name, weights=None)
            )
        except InputError:  # timm is not installed
            return {}
    return {key: value.shape for key, value in network.state_dict().items() if "num_batches_tracked" not in key}
