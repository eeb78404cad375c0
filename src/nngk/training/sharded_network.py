"""A network that no rank holds whole between steps: FSDP2 gives each rank some rows of every parameter.

Each rank keeps its rows of the weights, of their gradients and of the optimiser's moments. The weights are made whole
for a step, and for whatever is embedded outside of steps; the gradients are added up where their rows are. What
PyTorch has for this takes a second to import, and is imported where a network is sharded.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nngk.errors import InputError
from nngk.ranks import Ranks
from nngk.training.distributed import memory_share, synced
from nngk.training.settings import Settings

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

BYTES = 16  # of a parameter that AdamW learns: itself, its gradient and two moments


def shards_network(settings: Settings, network: nn.Module, device: torch.device, ranks: Ranks) -> bool:
    """Return whether ranks share out the rows of the network's parameters: as set, else where copies are too large."""
    wanted = settings.shard_network
    if ranks.count == 1 or wanted is False or settings.freeze:
        return False
    if wanted and settings.background:
        raise InputError(
            "The network can be shared out (--shard-network) without --background: its refresh would need a whole copy "
            "of the network beside it."
        )
    # Ranks that share a GPU send by way of the host, which is slow: only where that was asked for.
    possible = not (device.type == "cuda" and ranks.via_cpu) and not settings.background
    size = BYTES * sum(p.numel() for p in network.parameters())
    return bool(wanted) or (possible and ranks.any(size > memory_share(device) / 2))


def sharded(network: nn.Module, device: torch.device, ranks: Ranks) -> nn.Module:
    """Return the network, changed in place: its parameters are now this rank's rows of them."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    network.to(memory_format=torch.contiguous_format)  # rows are cut from what lies in one piece
    if not ranks.via_cpu and not getattr(network, "batchnorm_frozen", False):
        synced(network)
    # One unit: some parts of a network are also called by themselves, and each unit would wait for its own gathering.
    assert dist.group.WORLD is not None
    mesh = DeviceMesh.from_group(dist.group.WORLD, device.type)
    unit: Any = fully_shard(network, mesh=mesh, reshard_after_forward=False)
    if ranks.via_cpu and hasattr(unit, "set_custom_all_gather"):  # from PyTorch 2.9 on
        unit.set_custom_all_gather(_Gathering(ranks))
        unit.set_custom_reduce_scatter(_Reducing(ranks))
    elif ranks.via_cpu and device.type == "cuda":
        raise InputError("Ranks that share a GPU can share out a network (--shard-network) from PyTorch 2.9 on.")
    return network


class _Gathering:
    """How FSDP2 makes rows whole: here as tensors that may travel through the memory of the host."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        parts = self.ranks.gather_parts(input_tensor, [len(input_tensor)] * self.ranks.count)
        output_tensor.copy_(torch.cat(parts))


class _Reducing(_Gathering):
    """How it adds up the rows of gradients: each rank those that it holds, in the order of the ranks."""

    def __call__(  # type: ignore[override]
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        count = self.ranks.count
        each = [len(output_tensor)] * count
        total = self.ranks.exchange(input_tensor, each, each).view(count, -1).sum(0)
        output_tensor.copy_(total / count if op == dist.ReduceOp.AVG else total)


def stepping(network: nn.Module, ranks: Ranks) -> Callable[[Tensor], Tensor]:
    """Return how training steps call a sharded network: with the first rank's statistics of batches, as all must."""
    if not ranks.via_cpu or getattr(network, "batchnorm_frozen", False):
        return network

    def step(images: Tensor) -> Tensor:
        with torch.no_grad():
            for buffer in network.buffers():
                buffer.copy_(ranks.same(buffer))
        embeddings: Tensor = network(images)
        return embeddings

    return step


@contextmanager
def whole(network: nn.Module, write: bool = False) -> Iterator[None]:
    """Let every rank have all weights of a sharded network for a while; all ranks come here together.

    With ``write``, what was written into them is kept. A network that is not sharded is whole anyway.
    """
    units = _units(network)
    held = dict(network.named_parameters()) if units else {}
    for unit in units:
        unit.unshard()
    try:
        yield
        if write:
            now = dict(network.named_parameters())
            with torch.no_grad():
                for name, rows in held.items():
                    if by_rows(rows):
                        local(rows).copy_(own_rows(now[name], rows))
    finally:
        for unit in units:
            unit.reshard()


def is_sharded(network: nn.Module) -> bool:
    """Return whether each rank holds some rows of the network's parameters."""
    return bool(_units(network))


def _units(network: nn.Module) -> list[Any]:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return [] if fsdp is None else [module for module in network.modules() if isinstance(module, fsdp.FSDPModule)]


def by_rows(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Return whether each rank holds some rows of a tensor."""
    kinds = sys.modules.get("torch.distributed.tensor")
    return kinds is not None and isinstance(tensor, kinds.DTensor)


def local(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor: its rows, or all of it."""
    return tensor.to_local().detach() if by_rows(tensor) else tensor


def own_rows(tensor: Tensor, like: "DTensor") -> Tensor:
    """Return the rows of a whole tensor that this rank holds of another one of the same shape."""
    mesh = like.device_mesh
    return tensor.detach()[Ranks(mesh.get_local_rank(), mesh.size()).span(len(tensor))]


def held_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor as another one of its shape is held: whole, or by rows."""
    if not by_rows(like) or by_rows(tensor):
        return tensor
    from torch.distributed.tensor import DTensor

    rows = own_rows(tensor, like).to(like.device).contiguous()
    how: dict[str, Any] = {"shape": like.shape, "stride": like.stride(), "run_check": False}
    return DTensor.from_local(rows, like.device_mesh, like.placements, **how)


def in_full(tensor: Tensor, ranks: Ranks) -> Tensor:
    """Return all of a tensor of which each rank may hold some rows."""
    return ranks.gather(local(tensor), len(tensor)) if by_rows(tensor) else tensor


def gathered(network: nn.Module, ranks: Ranks) -> dict[str, Tensor]:
    """Return all tensors of a network, whole, on every rank."""
    return {name: in_full(tensor, ranks) for name, tensor in network.state_dict().items()}
