"""Several processes that train one network: how they find each other and share out a batch.

Each rank embeds its part of the global batch, the embeddings of all parts are joined, and every rank computes the
loss of the whole batch. So a loss sees what it would see in one process, whatever it compares, and what it learns
itself (θ, σ, a classifier) has the same gradient everywhere. DistributedDataParallel adds up the network's gradients.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from nngk import progress
from nngk.device import pick_device
from nngk.errors import InputError
from nngk.ranks import ALONE, Ranks

PATIENCE = timedelta(minutes=30)  # one rank may decode all images of its machine while the others wait


@contextmanager
def joined_ranks(device: str) -> Iterator[Ranks]:
    """Give the ranks that torchrun started, of which this process is one; a process that was started alone is alone.

    Only the first rank shows progress. On GPUs each rank has its own where there are enough; where ranks share one,
    and on CPUs, they talk by gloo.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    local = int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")))
    cuda = pick_device(device).type == "cuda"
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    nccl = cuda and ranks_here <= torch.cuda.device_count() and dist.is_nccl_available()
    if cuda:
        torch.cuda.set_device(local % torch.cuda.device_count())
    mine = not dist.is_initialized()
    if mine:
        store, rank, count = next(rendezvous("env://", timeout=PATIENCE))
        # Processes that are started again must not find the addresses of those that have ended.
        store = PrefixStore(f"nngk/{restarts()}", store)
        backend = "cpu:gloo,cuda:nccl" if nccl else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=PATIENCE)
    shown = progress.quiet
    progress.quiet = shown or dist.get_rank() > 0
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), via_cpu=not nccl)
    except RuntimeError as error:
        if "onnection closed by peer" not in str(error) and "onnection reset by peer" not in str(error):
            raise
        raise InputError(
            f"Rank {dist.get_rank()} stops, because another rank has ended: see what that one said."
        ) from None
    finally:
        progress.quiet = shown
    if mine:
        dist.destroy_process_group()


def agreed(asked: Callable[[], bool], ranks: Ranks, every: int = 1) -> Callable[[], bool]:
    """Return a function that says the same on all ranks: whether one of them was asked to stop.

    The ranks call it equally often, and look at each other every so many calls.
    """
    if ranks.count == 1:
        return asked
    calls, said = 0, False

    def stopping() -> bool:
        nonlocal calls, said
        calls += 1
        if not said and calls % every == 0:
            said = ranks.any(asked())
        return said

    return stopping


def restarts() -> int:
    """Return how often torchrun has started its processes again, after one of them ended."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextmanager
def one_per_machine_first(ranks: Ranks) -> Iterator[None]:
    """Let the first rank of each machine do its work before the others, which then find what it left in the caches."""
    leads = int(os.environ.get("LOCAL_RANK", ranks.rank)) == 0
    if not leads:
        ranks.wait()
    yield
    if leads:
        ranks.wait()


def distributed(trainee: nn.Module, ranks: Ranks) -> nn.Module:
    """Return the network as steps of several ranks call it; itself where one rank is alone or nothing is trained.

    Its gradients are those of :func:`join`. Batch normalisation that is trained takes the statistics of the whole batch
    where PyTorch can, which is on GPUs of their own; elsewhere those of each part.
    """
    if ranks.count == 1 or not any(p.requires_grad for p in trainee.parameters()):
        return trainee
    normed = any(isinstance(module, _BatchNorm) for module in trainee.modules())
    normed = normed and not getattr(trainee, "batchnorm_frozen", False)
    if normed and not ranks.via_cpu:
        synced(trainee)
    # Statistics of parts differ, and all ranks must embed alike: those of the first rank count.
    known = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    how: dict[str, Any] = {buffers: normed and ranks.via_cpu}
    # A network may have parameters that its embeddings do not depend on: found once, in the first step.
    return DistributedDataParallel(trainee, static_graph=True, gradient_as_bucket_view=True, **how)


def synced(network: nn.Module) -> None:
    """Let every BatchNorm of a network take the statistics of all ranks' images, on GPUs, while it trains.

    PyTorch's own conversion puts new modules in their place, and what a subclass does besides, such as the activation
    of our default network, is lost. Here each stays what it is, with its parameters and statistics.

    >>> network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    >>> synced(network)
    >>> isinstance(network[1], nn.BatchNorm2d) and isinstance(network[1], nn.SyncBatchNorm)
    True
    """
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    kinds = {kind: _synced_kind(kind) for kind in {type(norm) for norm in norms}}
    for norm in norms:
        norm.__class__ = kinds[type(norm)]
        norm.process_group = None  # type: ignore[assignment]  # all ranks


def _synced_kind(kind: type[_BatchNorm]) -> type[_BatchNorm]:
    if issubclass(kind, nn.SyncBatchNorm):
        return kind
    timms = sys.modules.get("timm.layers.norm_act")
    if timms is not None and issubclass(kind, timms.BatchNormAct2d):  # normalises by itself: timm has another for this
        known: type[_BatchNorm] = timms.SyncBatchNormAct
        return known
    # Behind a class of BatchNorm2d in the order of methods: what it calls to normalise is SyncBatchNorm's.
    return type(f"Synced{kind.__name__}", (kind, nn.SyncBatchNorm), {})


def require_eager(compiled: str, ranks: Ranks) -> None:
    """Raise InputError if several ranks are to replay CUDA graphs, which do not wait for each other's gradients."""
    if ranks.count > 1 and compiled == "graphs":
        raise InputError(f"Steps of {ranks.count} ranks cannot be replayed as CUDA graphs: leave --compile at 'auto'.")


def memory_share(device: torch.device) -> float:
    """Return the bytes of memory that a rank has where the ranks of a machine, or of a GPU, share it."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
    if device.type == "cuda":
        sharing = max(1, here // torch.cuda.device_count())
        return torch.cuda.get_device_properties(device).total_memory / sharing
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / here


def share_of(batch: Tensor, ranks: Ranks) -> Tensor:
    """Return the part of a batch that this rank embeds; where none is left for it, one image, whose answer is dropped.

    >>> share_of(torch.tensor([7, 8, 9]), Ranks(1, 2))
    tensor([9])
    """
    part = batch[ranks.span(len(batch))]
    return part if len(part) else batch[:1]


def mixed(seed: int, step: int) -> int:
    """Return a seed of its own for every step of every run."""
    return (seed * 1_000_003 + step) * 2


def seed_share(seed: int, step: int, ranks: Ranks) -> None:
    """Seed what a network draws in a step, such as dropout: something else on each rank."""
    torch.manual_seed((mixed(seed, step) + (ranks.rank << 52)) % (1 << 63))


def first_of_share(n: int, ranks: Ranks) -> int:
    """Return where in a batch of n this rank's share begins."""
    span = ranks.span(n)
    return int(span.start) if span.stop > span.start else 0


def join(embeddings: Tensor, n: int, ranks: Ranks, partial: bool = False) -> Tensor:
    """Return the embeddings (n, dim) of the whole batch from each rank's share of them.

    The loss of the whole batch is computed on every rank, so the gradient of a share is the same wherever it is taken,
    unless each rank knows only a ``partial`` sum of it: then those are added up. It comes back multiplied by the number
    of ranks, because DistributedDataParallel takes the mean of theirs.
    """
    if ranks.count == 1:
        return embeddings
    joined: Tensor = _Join.apply(embeddings, n, ranks, partial)
    return joined


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, n: int, ranks: Ranks, partial: bool) -> Tensor:
        ctx.ranks, ctx.n, ctx.rows, ctx.partial = ranks, n, len(embeddings), partial
        span = ranks.span(n)
        return ranks.gather(embeddings[: span.stop - span.start], n)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        ranks: Ranks = ctx.ranks
        span = ranks.span(ctx.n)
        own = (_summed(grad, ctx.n, ranks) if ctx.partial else grad[span]) * ranks.count
        if len(own) < ctx.rows:  # a share of nothing
            own = grad.new_zeros(ctx.rows, *grad.shape[1:])
        return own, None, None, None


def _summed(partial: Tensor, n: int, ranks: Ranks) -> Tensor:
    """Return the own span of the sum of all ranks' (n, dim): each sends the others what is theirs."""
    spans = [ranks.span(n, rank) for rank in range(ranks.count)]
    mine = ranks.span(n).stop - ranks.span(n).start
    found = ranks.exchange(partial, [span.stop - span.start for span in spans], [mine] * ranks.count)
    return found.view(ranks.count, mine, -1).sum(0)
