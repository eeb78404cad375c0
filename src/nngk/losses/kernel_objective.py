"""The Gaussian kernel loss as it is trained: with a bank that is kept fresh."""

from collections.abc import Callable
from typing import Any, Literal

from torch import nn

from nngk.bank.ailments import ailment
from nngk.bank.refresh import Refresher
from nngk.losses.gaussian import GaussianKernelLoss, Rule
from nngk.losses.samplers import Sampler, even


class KernelObjective(GaussianKernelLoss):
    """The Gaussian kernel loss over a bank that its refresher renews between the steps.

    Args:
        refresher: renews the bank that the loss is computed with.
        sigma, learn_sigma, drop, floor: as in :class:`GaussianKernelLoss`; σ is found for the first bank.
        course: gives σ at every step instead, where it is to change on the way.
        sampler: gives the batches.
        weight_factor: how much faster than the network the centres' weights learn.
        sigma_factor: how much faster than the network σ learns, where it does.
    """

    def __init__(
        self,
        refresher: Refresher,
        sigma: float | Rule | Literal["auto"] = "auto",
        *,
        learn_sigma: bool = False,
        drop: float = 0.0,
        floor: float = 0.0,
        course: Callable[[int], float] | None = None,
        sampler: Sampler = even,
        weight_factor: float = 1.0,
        sigma_factor: float = 1.0,
    ) -> None:
        super().__init__(refresher.bank, sigma, learn_sigma=learn_sigma, drop=drop, floor=floor)
        self.refresher, self.sampler, self.course = refresher, sampler, course
        self.weight_factor, self.sigma_factor = weight_factor, sigma_factor

    def parameter_groups(
        self, lr: float, weight_factor: float | None = None, sigma_factor: float | None = None
    ) -> list[dict[str, Any]]:
        """Return optimiser groups of the centre weights and of σ, at the factors the objective was given."""
        weight = self.weight_factor if weight_factor is None else weight_factor
        sigma = self.sigma_factor if sigma_factor is None else sigma_factor
        return super().parameter_groups(lr, weight, sigma)

    def before_step(self, step: int, network: nn.Module) -> None:
        """Renew the bank if that is due, and find σ once there is a bank, or the one that this step has."""
        self.refresher.before_step(step, network)
        self.settle_sigma()
        if self.course is not None:
            self.sigma = self.course(step)

    def ailment(self) -> str:
        return ailment(self.refresher.bank, self.sigma)

    def record(self, step: int) -> dict[str, Any]:
        bank, refresher = self.refresher.bank, self.refresher
        row = {**super().record(step), "bank_age": step - bank.refreshed_at}
        if refresher.history:
            last = refresher.history[-1]
            row |= {"refresh_seconds": round(last.seconds, 3), "staleness": last.staleness, "lonely": last.n_lonely}
            if refresher.approximate:
                row["list_recall"] = round(last.list_recall, 4)
        if refresher.overrun:
            row["refreshes_skipped"] = refresher.overrun
        return row
