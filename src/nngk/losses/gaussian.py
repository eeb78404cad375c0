"""The Gaussian kernel loss as a module."""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nngk.bank.centres import CentreBank, require_embeddings, require_indices, require_whole
from nngk.bank.leave_one_out import training_sigma
from nngk.defaults import NARROWEST, WIDEST
from nngk.errors import InputError
from nngk.kernel.triton.losses import fused_all_centres_loss  # eager where there is no GPU
from nngk.losses.objective import Objective

Rule = Callable[[CentreBank], float]  # finds a width for a bank


class GaussianKernelLoss(Objective):
    """-ln of the share of the own class among the weighted kernels around each embedding.

    With a bank, examples are named by their training index, so that their own centre is left out:

    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> bank = CentreBank(labels, dim=2, n_neighbours=2)
    >>> bank.renew(torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0], [6.0, 0.0]]))
    >>> loss = GaussianKernelLoss(bank, sigma=1.0)
    >>> loss(bank.centres, labels, torch.arange(4)).item() < 0.01
    True

    Without one, over all given references (or over the rest of the batch when none are given), with gradients to
    both sides:

    >>> loss = GaussianKernelLoss(sigma=1.0)
    >>> loss(torch.zeros(1, 2), torch.tensor([0]), ref_emb=torch.eye(2), ref_labels=torch.tensor([0, 1]))
    tensor(0.6931)

    Args:
        bank: the centres, or None.
        sigma: the kernels' width; or a rule that finds it for the bank when the loss is first used; or ``"auto"``, the
            rule that takes 1.5 times the width that minimises the leave-one-out loss of the bank.
        learn_sigma: make log σ a parameter.
        drop: the share of an example's neighbours that is left out at random in training mode.
        floor: what every class without a neighbour counts instead of nothing, before probabilities are normalised; an
            example without a same-class neighbour then learns too. The authors' released code has 1e-10. It needs a
            bank with neighbour lists, and is not fused on a GPU.
        reduction: ``"mean"`` over the examples that have a same-class neighbour, ``"sum"`` (the paper's), ``"none"``.
    """

    name = "nngk"
    log_sigma: Tensor

    def __init__(
        self,
        bank: CentreBank | None = None,
        sigma: float | Rule | Literal["auto"] = "auto",
        *,
        learn_sigma: bool = False,
        drop: float = 0.0,
        floor: float = 0.0,
        reduction: Literal["mean", "sum", "none"] = "mean",
    ) -> None:
        super().__init__()
        rule = training_sigma if sigma == "auto" else sigma
        if callable(rule):
            if bank is None:
                raise InputError(
                    "sigma='auto' needs a bank to tune on; give GaussianKernelLoss a bank or a number for sigma."
                )
            width = math.nan  # not found yet
        elif isinstance(rule, int | float) and NARROWEST <= rule <= WIDEST:
            width = rule
        else:
            raise InputError(f"sigma must be a number from {NARROWEST:g} to {WIDEST:g} or 'auto', got {sigma!r}.")
        if reduction not in ("mean", "sum", "none"):
            raise InputError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}.")
        if not 0 <= drop < 1:
            raise InputError(f"drop must be from 0 to below 1, got {drop!r}.")
        if not 0 <= floor < 1:
            raise InputError(f"floor must be from 0 to below 1, got {floor!r}.")
        if floor and (bank is None or bank.n_neighbours is None):
            raise InputError("floor is for classes that no neighbour has: give the loss a bank with neighbour lists.")
        self.bank = bank
        self.drop = drop
        self.floor = floor
        self.reduction = reduction
        self._rule = rule if callable(rule) else None
        # In float64, so that embeddings in float64 meet the exact σ.
        start = torch.tensor(math.log(width), dtype=torch.float64)
        if learn_sigma:
            self.log_sigma = nn.Parameter(start)
        else:
            self.register_buffer("log_sigma", start)

    @property
    def sigma(self) -> float:
        """The width in use; found for the bank first if it is still open."""
        self.settle_sigma()
        return math.exp(float(self.log_sigma.detach()))

    @sigma.setter
    def sigma(self, value: float) -> None:
        with torch.no_grad():
            self.log_sigma.fill_(math.log(value))

    def settle_sigma(self) -> None:
        """Find σ for the bank, unless it is a number already; a checkpoint may have brought one."""
        if self._rule is None:
            return
        if self.log_sigma.isnan():
            assert self.bank is not None
            require_filled(self.bank)
            self.sigma = self._rule(self.bank)
        self._rule = None  # asked once: reading a value back from a GPU at every step would stall it

    def record(self, step: int) -> dict[str, Any]:
        return {"sigma": round(self.sigma, 6)}

    def parameter_groups(
        self, lr: float, weight_factor: float = 1.0, sigma_factor: float = 1.0
    ) -> list[dict[str, Any]]:
        """Return optimiser groups of the centre weights and of σ: their own learning rates and no weight decay."""
        groups: list[dict[str, Any]] = []
        if self.bank is not None:
            groups.append({"params": [self.bank.theta], "lr": lr * weight_factor, "weight_decay": 0.0})
        if isinstance(self.log_sigma, nn.Parameter):
            groups.append({"params": [self.log_sigma], "lr": lr * sigma_factor, "weight_decay": 0.0})
        return groups

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices: Tensor | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        check_batch(embeddings, labels)
        if isinstance(indices, tuple | list):
            raise InputError(
                f"The third argument is the training indices of the batch, a tensor ({len(labels)},); got "
                f"{len(indices)} things, such as the indices_tuple of a miner of pytorch-metric-learning. Every pair "
                "counts here by its distance: leave the miner out."
            )
        if ref_emb is not None or self.bank is None:
            if ref_emb is not None and ref_labels is None:
                raise InputError("ref_emb was given without ref_labels.")
            each, learns = self._over_references(embeddings, labels, ref_emb, ref_labels)
        elif indices is None:
            raise InputError(
                "A loss with a bank needs the training indices of the batch: loss(embeddings, labels, indices)."
            )
        else:
            each, learns = self._over_bank(self.bank, embeddings, labels, indices)
        if self.reduction == "none":
            return each
        total = each.sum()
        return total if self.reduction == "sum" else total / learns.sum().clamp(min=1)

    def _width(self, like: Tensor) -> Tensor:
        """Return σ as a tensor, through which its gradient flows when it is learned."""
        self.settle_sigma()
        return self.log_sigma.to(torch.float64 if like.dtype == torch.float64 else torch.float32).exp()

    def _over_bank(self, bank: CentreBank, x: Tensor, labels: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        require_filled(bank)
        require_indices(indices, len(bank))
        if indices.shape != labels.shape:
            raise InputError(f"indices must have the shape {tuple(labels.shape)}, got {tuple(indices.shape)}.")
        if x.shape[1] != bank.dim:
            raise InputError(f"The bank's centres have {bank.dim} dimensions, the embeddings {x.shape[1]}.")
        sigma = self._width(x)
        if bank.n_neighbours is None:
            each = fused_all_centres_loss(x, bank.centres, bank.theta, sigma, labels, bank.labels, indices)
            return each, bank.has_partner[indices]
        lists = bank.lists_of(indices)
        if self.drop and self.training:
            lists = lists.masked_fill(torch.rand(lists.shape, device=lists.device) < self.drop, -1)
        return bank.neighbour_loss(x, sigma, lists, labels, indices, self.floor)

    def _over_references(
        self, x: Tensor, labels: Tensor, ref_emb: Tensor | None, ref_labels: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if ref_emb is None or ref_labels is None:
            ref_emb, ref_labels, own = x, labels, torch.arange(len(x), device=x.device)
        else:
            check_batch(ref_emb, ref_labels)
            if ref_emb.shape[1] != x.shape[1]:
                raise InputError(f"ref_emb has {ref_emb.shape[1]} dimensions, the embeddings {x.shape[1]}.")
            own = torch.full((len(x),), -1, device=x.device)
        theta = x.new_zeros(len(ref_emb))
        each = fused_all_centres_loss(x, ref_emb, theta, self._width(x), labels, ref_labels, own)
        others = (labels[:, None] == ref_labels).sum(1) - (own >= 0).long()
        return each, others > 0


def require_filled(bank: CentreBank) -> None:
    """Raise InputError if the bank was never renewed."""
    if not bank.filled:
        raise InputError("The bank has no centres yet: call bank.renew(centres) before the loss.")


def check_batch(embeddings: Tensor, labels: Tensor) -> None:
    """Raise InputError unless there are embeddings (batch, dim) with one label each."""
    require_embeddings(embeddings, "embeddings")
    require_whole(labels, "labels")
    if labels.shape != embeddings.shape[:1]:
        raise InputError(
            f"labels must have the shape ({len(embeddings)},), one per embedding, got {tuple(labels.shape)}."
        )
