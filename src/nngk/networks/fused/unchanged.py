"""Whether a network is still what it was when something was made of its weights."""

from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_version, _trained = attrgetter("_version"), attrgetter("requires_grad")


class Unchanged:
    """The parts of a network in evaluation mode that is not being trained; called, whether they are what they were.

    It is asked before every pass, and walking through modules would take a tenth of a pass of one image: it compares
    what it knows in lists. Modules that were exchanged are noticed, and weights that were exchanged, moved or written.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval().requires_grad_(False)
    >>> same = Unchanged(network)
    >>> same(), network[0].weight.mul_(2) is None, same()
    (True, False, False)
    """

    def __init__(self, network: nn.Module) -> None:
        kept = [each for module in network.modules() for each in (module._modules, module._parameters, module._buffers)]
        self.kept = [each for each in kept if each]
        self.parts = [part for each in self.kept for part in each.values()]  # held, so that no other gets their id
        self.ids = self._ids()
        self.norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
        self.tensors = [part for part in self.parts if isinstance(part, Tensor)]
        self.known = not any(tensor.is_inference() for tensor in self.tensors)  # these do not tell of changes
        self.state = self._state() if self.known else ()

    def __call__(self) -> bool:
        frozen = self.known and not any(norm.training for norm in self.norms) and not any(map(_trained, self.tensors))
        return frozen and self._ids() == self.ids and self._state() == self.state

    def _ids(self) -> list[int]:
        return [id(part) for each in self.kept for part in each.values()]

    def _state(self) -> tuple[Any, ...]:
        # A version only grows, and so does the sum of all.
        return sum(map(_version, self.tensors)), [*map(Tensor.data_ptr, self.tensors)]
