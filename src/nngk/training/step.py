"""One training step."""

import torch
from torch import Tensor

from nngk.training.distributed import join, mixed, seed_share
from nngk.training.optimiser import rate, set_rate
from nngk.training.run import Run


def take_step(run: Run, images: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
    """Prepare the objective, embed a batch, compute its loss and learn from it; return the loss.

    Labels and indices are those of the whole batch; the images those of this rank's share, where there are several.
    """
    settings, step = run.settings, run.at.step
    with run.stage("refresh"):
        run.objective.before_step(step, run.trainee)
        run.bank.ask_ahead(indices)
    seed_share(settings.seed, step, run.ranks)  # dropout of this step, whether or not the run was stopped before it
    set_rate(run.optimiser, rate(step, run.total_steps, settings))
    with run.stage("forward"), torch.autocast(run.device.type, torch.bfloat16, enabled=run.amp):
        embeddings = join(run.stepping(images), len(labels), run.ranks, run.bank.partial)
    if run.ranks.count > 1:
        torch.manual_seed(mixed(settings.seed, step))  # what the loss draws is the same everywhere
    with run.stage("loss"):
        loss = run.objective(embeddings, labels, indices)
    run.optimiser.zero_grad(set_to_none=True)
    with run.stage("backward"):
        loss.backward()
    with run.stage("optimiser"):
        if settings.clip:
            clip_gradients(run, settings.clip)
        run.optimiser.step()
    return loss.detach()


def clip_gradients(run: Run, limit: float) -> None:
    """Scale down all gradients together if their norm, over all ranks, is larger."""
    parameters = [p for group in run.optimiser.param_groups for p in group["params"]]
    if not run.bank.partial:
        torch.nn.utils.clip_grad_norm_(parameters, limit)
        return
    gradients = {id(p): p.grad for p in parameters if p.grad is not None}
    held = gradients.get(id(run.bank.theta))  # the other ranks have the others
    shared = [grad for key, grad in gradients.items() if key != id(run.bank.theta)]
    zero = torch.zeros((), device=run.device)
    squares = torch.stack([zero, *(grad.square().sum() for grad in shared)]).sum()
    squares += run.ranks.sum(zero if held is None else held.square().sum())
    scale = (limit / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for grad in gradients.values():
        grad.mul_(scale)
