"""One training step."""

import torch
from torch import Tensor

from nngk.training.distributed import join, mixed, seed_share
from nngk.training.optimiser import rate, set_rate
from nngk.training.run import Run
from nngk.training.sharded_network import by_rows, local


def take_step(run: Run, images: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
    """Prepare the objective, embed a batch, compute its loss and learn from it; return the loss.

    Labels and indices are those of the whole batch; the images those of this rank's share, where there are several.
    """
    settings, step = run.settings, run.at.step
    with run.stage("refresh"):
        run.objective.before_step(step, run.trainee)
        # What the next step needs is on its way while this one computes, unless the bank is new by then.
        following = () if run.coming is None or run.refresher.renews_before(step + 1) else (run.coming,)
        run.bank.ask_ahead(indices, *following)
    seed_share(settings.seed, step, run.ranks)  # dropout of this step, whether or not the run was stopped before it
    set_rate(run.optimiser, rate(step, run.total_steps, settings))
    with run.stage("forward"), torch.autocast(run.device.type, torch.bfloat16, enabled=run.amp):
        run.objective.see(images, lambda share: join(share, len(labels), run.ranks))
        embeddings = join(run.stepping(images), len(labels), run.ranks, run.bank.partial)
    if run.ranks.count > 1:
        torch.manual_seed(mixed(settings.seed, step))  # what the loss draws is the same everywhere
    with run.stage("loss"):
        loss = run.objective(embeddings, labels, indices)
    run.optimiser.zero_grad(set_to_none=True)
    with run.stage("backward"):
        loss.backward()
    if run.at.epoch < settings.head_epochs:
        for waiting in run.network.backbone_parameters():
            waiting.grad = None
    with run.stage("optimiser"):
        if settings.clip:
            clip_gradients(run, settings.clip)
        run.optimiser.step()
    return loss.detach()


def clip_gradients(run: Run, limit: float) -> None:
    """Scale down all gradients together if their norm, over all ranks, is larger."""
    parameters = [p for group in run.optimiser.param_groups for p in group["params"]]
    if run.ranks.count == 1 or not run.held.in_parts:
        torch.nn.utils.clip_grad_norm_(parameters, limit)
        return
    learned = [p for p in parameters if p.grad is not None]
    # Of some gradients each rank has a part, of the others all have the whole.
    in_parts = [by_rows(p) or (run.bank.partial and p is run.bank.theta) for p in learned]
    gradients = [local(p.grad) for p in learned if p.grad is not None]
    zero = torch.zeros((), device=run.device)
    own, shared = (
        torch.stack([zero, *(g.square().sum() for g, part in zip(gradients, in_parts) if part is its)]).sum()
        for its in (True, False)
    )
    squares = run.ranks.sum(own) + shared
    scale = (limit / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for grad in gradients:
        grad.mul_(scale)
