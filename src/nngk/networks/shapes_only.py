"""Networks without storage: their shapes alone, where their values are loaded later or never needed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_DRAWING = (Tensor.normal_, Tensor.uniform_)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Give networks that are built inside no storage and no random numbers.

    >>> with shapes_only():
    ...     torch.nn.Linear(2, 3).weight.is_meta
    True
    """
    with torch.device("meta"), _Uninitialised():
        yield


class _Uninitialised(TorchFunctionMode):
    """Leave new weights as they are: without storage there is nothing to draw, and PyTorch's compiler stays out."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init" or func in _DRAWING:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))
