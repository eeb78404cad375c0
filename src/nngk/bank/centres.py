"""The bank of Gaussian centres: one per training image, keyed by its index."""

from typing import Any

import torch
from torch import Tensor, nn

from nngk.errors import InputError
from nngk.kernel.floored import floored_neighbour_loss
from nngk.kernel.formulas import squared_distances
from nngk.kernel.triton.losses import fused_neighbour_loss  # eager where there is no GPU
from nngk.ranks import ALONE, Ranks
from nngk.search.checks import whole, without_own
from nngk.search.engine import Engine
from nngk.search.exact import Exact


class CentreBank(nn.Module):
    """Centres, labels, log-weights θ and neighbour lists of the training set.

    Row ``i`` of everything belongs to training example ``i``. All of it is in the ``state_dict``, so a resumed run has
    the bank it stopped with. ``n_neighbours=None`` keeps no lists: the loss then sums over all centres.

    >>> bank = CentreBank(torch.tensor([0, 0, 1, 1]), dim=1, n_neighbours=2)
    >>> bank.renew(torch.tensor([[0.0], [1.0], [5.0], [6.0]]))
    >>> bank.neighbours_of(torch.tensor([0]))
    tensor([[ 1,  2, -1]])
    """

    centres: Tensor
    labels: Tensor
    neighbours: Tensor
    has_partner: Tensor

    partial = False  # whether other ranks hold some of the rows
    index_type = torch.int64  # of the lists

    def __init__(
        self,
        labels: Tensor,
        dim: int,
        n_neighbours: int | None = 100,
        guaranteed: int = 1,
        *,
        held: int | None = None,
    ) -> None:
        super().__init__()
        labels = checked_labels(labels)
        m, dim = len(labels), whole(dim, "dim")
        if m < 2:
            raise InputError(f"A bank needs at least two training examples, got {m}.")
        n_neighbours = n_neighbours if n_neighbours is None else whole(n_neighbours, "n_neighbours")
        guaranteed = whole(guaranteed, "guaranteed", 0)
        self.n_neighbours = n_neighbours if n_neighbours is None else min(n_neighbours, m - 1)
        # Same-class centres appended to the list of an example that has none in it (0: the paper's literal reading,
        # such an example teaches nothing until the next refresh).
        self.guaranteed = guaranteed
        width = 0 if self.n_neighbours is None else self.n_neighbours + guaranteed
        rows = m if held is None else held  # kept here; other ranks may have the others
        self.theta = nn.Parameter(torch.zeros(rows))  # w = exp(θ), one for every centre at the start
        self.register_buffer("centres", torch.zeros(rows, dim))
        self.register_buffer("labels", labels.clone())
        self.register_buffer("neighbours", torch.full((rows, width), -1, dtype=self.index_type))
        counts = torch.bincount(self.labels)
        self.register_buffer("has_partner", counts[self.labels] > 1)  # another of its class exists
        self.n_classes = int((counts > 0).sum())
        self.refreshed_at = -1  # the training step whose weights gave the centres
        self.n_lonely = 0  # examples whose own list held no same-class centre

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def dim(self) -> int:
        """The number of dimensions of a centre."""
        return self.centres.shape[1]

    @property
    def considered(self) -> int:
        """How many centres an answer considers: as many as an example in training does."""
        return self.n_neighbours or len(self)

    @property
    def filled(self) -> bool:
        """Whether the centres have been computed at least once."""
        return self.refreshed_at >= 0

    def renew(self, centres: Tensor, engine: Engine | None = None, step: int = 0, ranks: Ranks = ALONE) -> None:
        """Compute the neighbour lists of new centres and take both in."""
        require_embeddings(centres, "centres")
        if centres.shape != self.centres.shape:
            raise InputError(
                f"centres must have the shape {tuple(self.centres.shape)}, one per training example, got "
                f"{tuple(centres.shape)}."
            )
        centres = centres.detach()  # whoever embeds without torch.no_grad() must not chain the bank to that pass
        self.replace(centres, *self.lists(centres, engine, ranks), step=step)

    def lists(self, centres: Tensor, engine: Engine | None = None, ranks: Ranks = ALONE) -> tuple[Tensor, int]:
        """Return neighbour lists (m, n_neighbours + guaranteed) of these centres, and how many had no same-class one.

        Changes nothing in the bank, so that it can run beside training. Several ranks share out an exact search; any
        other is left to the first, so that all have the same lists.
        """
        require_finite(centres)
        if self.n_neighbours is None:
            return self.neighbours, 0
        engine = Exact() if engine is None else engine
        labels = self.labels.to(centres.device)
        if ranks.count > 1 and isinstance(engine, Exact):
            return self._lists_together(centres, labels, engine, ranks)
        if ranks.first:
            found = all_neighbours(engine, centres, self.n_neighbours)
            lists, lonely = with_same_class(found, centres, labels, self.guaranteed)
        else:
            lists, lonely = torch.empty_like(self.neighbours, device=centres.device), 0
        return ranks.same(lists), ranks.told(lonely)

    def _lists_together(self, centres: Tensor, labels: Tensor, engine: Exact, ranks: Ranks) -> tuple[Tensor, int]:
        """Return lists of which each rank has found its part."""
        assert self.n_neighbours is not None
        m = len(centres)
        rows = torch.arange(m, device=centres.device)[ranks.span(m)]
        placed_in(engine, centres)
        found = rows.new_empty(0, self.n_neighbours)
        if len(rows):
            found = without_own(*engine.search(centres[rows], self.n_neighbours + 1), rows)[1]
        lists, lonely = with_same_class(found, centres, labels, self.guaranteed, rows)
        return ranks.gather(lists, m), int(ranks.sum(torch.tensor(lonely)))

    def replace(self, centres: Tensor, neighbours: Tensor, n_lonely: int = 0, step: int = 0) -> None:
        """Swap in centres and lists that are already computed."""
        self.centres.copy_(centres)
        self.neighbours.copy_(neighbours)
        self.refreshed_at, self.n_lonely = step, n_lonely

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.refreshed_at, self.n_lonely])

    def set_extra_state(self, state: Tensor) -> None:
        self.refreshed_at, self.n_lonely = state.tolist()

    def neighbours_of(self, indices: Tensor) -> Tensor:
        """Return neighbour lists (B, K) of training examples. Their own centres are left out wherever they stand."""
        require_indices(indices, len(self))
        lists = self.neighbours[indices]
        return lists.masked_fill(lists == indices[:, None], -1)

    def ask_ahead(self, *batches: Tensor) -> None:
        """Begin to fetch the lists of some batches from other ranks, while something else is computed."""

    def lists_of(self, indices: Tensor) -> Tensor:
        """Return neighbour lists (B, K) as they are."""
        return self.neighbours[indices]

    def neighbour_loss(
        self, x: Tensor, sigma: Tensor, lists: Tensor, labels: Tensor, own: Tensor, floor: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of each example over its list, (B,), and whether it learns, (B,).

        That is whether it has a same-class centre there; with a ``floor`` under every class all examples learn.
        """
        if floor:
            lists = lists.long().masked_fill(lists == own[:, None], -1)
            given = (x, self.centres, self.theta, sigma, lists, labels, self.labels, self.n_classes, floor)
            return floored_neighbour_loss(*given), torch.ones_like(own, dtype=torch.bool)
        return fused_neighbour_loss(x, self.centres, self.theta, sigma, lists, labels, self.labels, own)

    def nearest(self, centres: Tensor, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return squared distances and indices (n, k) of the nearest to each query of these centres of the bank."""
        return Exact(centres).search(x, k)

    def weights(self) -> Tensor:
        """Return θ of all centres, (m,), as numbers."""
        return self.theta.detach()

    def some_centres(self, chosen: Tensor) -> Tensor:
        """Return the centres of some examples."""
        return self.centres[chosen]

    def left_out(self, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return squared distances, same-class marks and θ (n, K) of the neighbours of some examples, in order."""
        neighbours = self.neighbours_of(chosen)
        return neighbour_facts(self, self.centres[chosen], self.labels[chosen], neighbours)

    def list_recall(self, centres: Tensor, lists: Tensor) -> float:
        """Return the share of true neighbours among new centres that their lists hold, over a sample of them."""
        return list_recall(centres, lists, self.considered)

    def whole(self) -> "CentreBank":
        """Return the bank itself: it holds all rows."""
        return self


def neighbour_facts(bank: CentreBank, x: Tensor, labels: Tensor, neighbours: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return squared distances, same-class marks and θ (n, K) of embeddings with these neighbours in the bank."""
    index = neighbours.clamp(min=0)
    same = (bank.labels[index] == labels[:, None]) & (neighbours >= 0)
    return squared_distances(x, bank.centres, neighbours), same, bank.theta.detach()[index]


def list_recall(centres: Tensor, neighbours: Tensor, k: int, sample: int = 200) -> float:
    """Return the share of each point's true ``k`` nearest others that its list holds, over a sample of the points.

    >>> list_recall(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1], [0], [0]]), k=1)
    0.6666666666666666
    """
    rows = torch.linspace(0, len(centres) - 1, min(sample, len(centres))).long().to(centres.device)
    found = Exact(centres).search(centres[rows], min(k + 1, len(centres)))[1]
    return recall_of_lists(rows, found, neighbours[rows], k)


def recall_of_lists(rows: Tensor, found: Tensor, lists: Tensor, k: int) -> float:
    """Return the mean share of the true neighbours, ``k`` of those found beside the row itself, that lists hold."""
    shares = []
    for own, nearest, listed in zip(rows.tolist(), found.tolist(), lists.tolist()):
        true = [i for i in nearest if i != own][:k]
        shares.append(len(set(true) & set(listed)) / max(1, len(true)))
    return sum(shares) / len(shares)


def require_finite(centres: Tensor) -> None:
    """Raise InputError if some of the embeddings that are to be centres are not finite."""
    if not torch.isfinite(centres).all():
        bad = int((~torch.isfinite(centres)).any(1).sum())
        raise InputError(
            f"{bad} of {len(centres)} embeddings are NaN or infinite, so they cannot be centres. "
            "A lower learning rate, gradient clipping or a larger sigma usually mends a diverging run."
        )


def checked_labels(labels: Any) -> Tensor:
    """Return labels as a vector of int64, where they are. Raise InputError unless they are whole numbers from 0 on."""
    try:
        found = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"labels must be whole numbers, got {type(labels).__name__}: {error}.") from None
    require_whole(found, "labels")
    if len(found) and int(found.min()) < 0:
        raise InputError(f"labels must be whole numbers from 0 on, got {int(found.min())}.")
    return found.long()


def require_embeddings(x: Any, name: str) -> None:
    """Raise InputError unless this is a matrix of real floating-point numbers."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        what = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"{name} must be a tensor of floating-point numbers, got {what}.")
    if x.ndim != 2:
        raise InputError(f"{name} must have the shape (batch, dim), got {tuple(x.shape)}.")


def require_whole(x: Any, name: str) -> None:
    """Raise InputError unless this is a vector of whole numbers."""
    if not isinstance(x, Tensor) or x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        what = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
        if not (isinstance(x, Tensor) and x.ndim == 1 and not len(x)):  # an empty list has no type of its own
            raise InputError(f"{name} must be a tensor of whole numbers, got {what}.")
    if x.ndim != 1:
        raise InputError(f"{name} must be one per example, got the shape {tuple(x.shape)}.")


def require_indices(indices: Any, n: int) -> None:
    """Raise InputError unless these are indices of n examples. On a GPU, where looking would wait, only their type."""
    require_whole(indices, "indices")
    if not indices.is_cuda and len(indices) and not (int(indices.min()) >= 0 and int(indices.max()) < n):
        raise InputError(f"indices must be between 0 and {n - 1}, got {indices.min()} to {indices.max()}.")


def placed_in(engine: Engine, centres: Tensor) -> None:
    """Give an engine new centres; one that has points moves them."""
    if len(engine):
        engine.update(centres)
    else:
        engine.add(centres)


def all_neighbours(engine: Engine, centres: Tensor, k: int) -> Tensor:
    """Return the k nearest others of all centres, (m, k), as an engine finds them."""
    placed_in(engine, centres)
    return engine.all_neighbours(k)[1].to(centres.device)


def with_same_class(
    neighbours: Tensor,
    centres: Tensor,
    labels: Tensor,
    guaranteed: int,
    rows: Tensor | None = None,
    *,
    chunk: int = 1 << 16,
) -> tuple[Tensor, int]:
    """Append the nearest same-class centres to each list that has none; return (lists, how many had none).

    The lists are those of all centres, or of some ``rows`` of them. An example that is alone in its class has nothing
    to append and keeps -1 there.
    """
    n, k = neighbours.shape
    own = torch.arange(n, device=neighbours.device) if rows is None else rows
    usable = (neighbours >= 0) & (neighbours != own[:, None])
    has_same = ((labels[neighbours.clamp(min=0)] == labels[own][:, None]) & usable).any(1)
    out = neighbours.new_full((n, k + guaranteed), -1)
    out[:, :k] = neighbours
    lonely = (~has_same).nonzero().squeeze(1)
    if guaranteed:
        of = labels[own[lonely]]
        for label in of.unique():
            members = (labels == label).nonzero().squeeze(1)
            for part in lonely[of == label].split(max(1, chunk // len(members))):
                candidates = members.expand(len(part), -1)
                candidates = candidates.masked_fill(candidates == own[part][:, None], -1)
                d = squared_distances(centres[own[part]], centres, candidates)
                nearest, where = d.topk(min(guaranteed, len(members)), largest=False)
                found = candidates.gather(1, where).masked_fill(nearest.isinf(), -1)
                out[part, k : k + found.shape[1]] = found
    return out, len(lonely)
