"""One training step."""

import torch
from torch import Tensor

from nngk.kernel.sigma import leave_one_out_sigma
from nngk.losses.gaussian import GaussianKernelLoss
from nngk.training.finish import classifier_sigma
from nngk.training.optimiser import rate, set_rate
from nngk.training.run import Run


def take_step(run: Run, images: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
    """One step: renew the bank if it is due, embed, compare with the neighbours' centres, learn."""
    settings, step = run.settings, run.at.step
    if isinstance(run.objective, GaussianKernelLoss):
        with run.stage("refresh"):
            run.refresher.before_step(step, run.trainee)
        if step == 0:
            first_sigma(run, run.objective)
    torch.manual_seed(mixed(settings.seed, step))  # dropout of this step, whether or not the run was stopped before it
    set_rate(run.optimiser, rate(step, run.total_steps, settings))
    with run.stage("forward"), torch.autocast(run.device.type, torch.bfloat16, enabled=run.amp):
        embeddings = run.stepping(images)
    with run.stage("loss"):
        loss = run.objective(embeddings, labels, indices)
    run.optimiser.zero_grad(set_to_none=True)
    with run.stage("backward"):
        loss.backward()
    with run.stage("optimiser"):
        if settings.clip:
            torch.nn.utils.clip_grad_norm_([p for g in run.optimiser.param_groups for p in g["params"]], settings.clip)
        run.optimiser.step()
    return loss.detach()


def first_sigma(run: Run, objective: GaussianKernelLoss) -> None:
    """σ for training, once the first bank is there."""
    s = run.settings
    if s.sigma == "validation":
        objective.sigma = classifier_sigma(run)
    elif not isinstance(s.sigma, int | float):
        objective.sigma = s.sigma_factor * leave_one_out_sigma(run.bank)


def mixed(seed: int, step: int) -> int:
    """A seed of its own for every step of every run."""
    return (seed * 1_000_003 + step) * 2
