"""What ranks do in tests; a module of its own, so that a new process can import it."""

import numpy as np

from nngk.data import read_images, split
from nngk.metrics import evaluate
from nngk.training import loop
from nngk.training.build import build_run
from nngk.training.distributed import joined_ranks
from nngk.training.settings import Settings
from nngk.training.validation import validate


def trained(photos, folder, values):
    """Train in a folder; return what every step and every epoch had, as arrays."""
    settings = Settings(**values)
    table = read_images(photos, task=settings.task, seed=settings.seed)
    parts = split(table, settings.task, settings.val_fraction, settings.test_fraction, settings.seed)
    with joined_ranks(settings.device) as ranks:
        folder.mkdir(exist_ok=True)
        run = build_run(parts, settings, folder, ranks=ranks)
        run.begin()
        seen = {"loss": [], "gradients": [], "lists": [], "centres": [], "theta": [], "sigma": [], "scores": []}
        step = loop.take_step

        def watched(run, images, labels, indices):
            loss = step(run, images, labels, indices)
            seen["loss"].append(float(loss))
            groups, theta = run.optimiser.param_groups, run.bank.theta
            grads = {id(p): p.grad for group in groups for p in group["params"] if p.grad is not None}
            if run.bank.partial and id(theta) in grads:
                grads[id(theta)] = ranks.gather(theta.grad, len(run.bank))
            seen["gradients"].append(np.concatenate([g.flatten().numpy() for g in grads.values()]))
            return loss

        loop.take_step = watched
        try:
            for epoch in range(settings.epochs):
                loop.train_epoch(run, lambda: False, 0.0)
                run.objective.before_step(run.at.step, run.trainee)
                seen["scores"].append(list(validate(run)[0].values()))
                bank = run.bank.whole()
                seen["lists"].append(bank.neighbours.numpy().copy())
                seen["centres"].append(bank.centres.numpy().copy())
                seen["theta"].append(bank.theta.detach().numpy().copy())
                seen["sigma"].append(run.objective.sigma)
                run.at.epoch, run.at.batch = epoch + 1, 0
        finally:
            loop.take_step = step
        test = run.feed.test
        seen["metrics"] = list(evaluate(run.embed(test), test.labels, ks=(1, 2), nmi_seeds=3, ranks=ranks).values())
        if settings.optimiser == "sgd":  # AdamW makes much of what rounding leaves of a gradient of zero
            seen["weights"] = [np.concatenate([p.detach().flatten().numpy() for p in run.network.parameters()])]
        return seen


def model_of(photos, out, values, **options):
    """Train as a person does; return nothing but whether a model came of it."""
    settings = Settings(**values)
    table = read_images(photos, task=settings.task, seed=settings.seed)
    return len(loop.train(table, settings, out=out, **options).centres)
