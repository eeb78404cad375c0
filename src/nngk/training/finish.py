"""From a finished run to the model a person holds."""

import math
from typing import Any

import torch
from torch import Tensor

from nngk.errors import InputError
from nngk.kernel.formulas import squared_distances
from nngk.kernel.predict import answer
from nngk.metrics import classification_scores, evaluate, has_pairs
from nngk.model.model import Model
from nngk.networks.embedding_layer.reduction import reduce_embedding
from nngk.search import Exact
from nngk.training.build import choose_search, new_bank, new_engine
from nngk.training.feed import Features
from nngk.training.run import Run
from nngk.training.validation import classifier_sigma


def finish(run: Run, seconds: float, measured: Model | None = None) -> Model:
    """Renew the bank with the final weights, tune σ for classification, and put the model together.

    ``measured`` is the model of the run before the last training: its σ, its familiar densities and its test scores
    come from images that it was not trained on, and the last training has none of those.
    """
    narrow(run)
    bank, table = run.bank, run.split.train
    bank.renew(run.embed(run.feed.train), run.refresher.engine, step=run.at.step)
    sigma = final_sigma(run) if measured is None else measured.sigma
    info: dict[str, Any] = {
        "data": table.name,
        "task": run.settings.task,
        "settings": run.settings.to_dict(),
        "frozen": run.frozen,
        "boxes": table.boxes is not None,
        "best_epoch": run.at.best_epoch + 1,
        "seconds": round(seconds, 3),
    }
    model = Model(
        run.network,
        centres=bank.centres,
        labels=bank.labels,
        theta=bank.theta,
        sigma=sigma,
        class_names=table.class_names,
        sources=[str(path) for path in table.paths],
        familiar=familiar_densities(run, sigma) if measured is None else denser(measured, len(bank)),
        n_neighbours=run.settings.n_neighbours or None,  # not the bank's, which has no more than it has centres
        softmax=run.objective.layer() if run.settings.task == "classify" else None,
        info=info,
        device=run.device,
    )
    if measured is not None:
        told = {name: measured.info[name] for name in ("test", "measured") if name in measured.info}
        model.info |= told | {"last_training": {"images": len(table), "epochs": run.epochs}}
        return model
    if len(run.feed.test):
        model.info["test"] = test_scores(run, model)
    feed = run.feed
    model.info["measured"] = {"training": len(feed.train), "validation": len(feed.val), "test": len(feed.test)}
    return model


def denser(measured: Model, centres: int) -> Tensor:
    """Return the familiar densities of a measured model for a bank of more centres: density grows with their number."""
    return measured.familiar + math.log(centres / len(measured.centres))


def narrow(run: Run) -> None:
    """Reduce a network that was trained wide to the size that was asked for; its bank waits for new centres."""
    s = run.settings
    if not (s.wide and s.dim and s.wide > s.dim):
        return
    features = run.embed(run.feed.train, Features(run.network, run.frozen))
    reduce_embedding(run.network, features, s.dim, s.whiten)
    bank = new_bank(s, run.feed.train.labels, run.network.dim, run.device)
    with torch.no_grad():
        bank.theta.copy_(run.bank.theta)
    run.bank = bank
    run.refresher.engine = new_engine(choose_search(s, bank), s, bank)


def final_sigma(run: Run) -> float:
    """Return the σ of the model's answers; training's own where the images tell nothing about it."""
    try:
        return classifier_sigma(run.bank, run.settings.task, run.embed(run.feed.val), run.feed.val.labels)
    except InputError:  # no list holds a centre of its own class: no reason to lose what was trained
        return run.objective.sigma


def familiar_densities(run: Run, sigma: float, limit: int = 10_000) -> Tensor:
    """Return log densities at images of the known classes: what 'familiar' looks like.

    At validation images where these are of the trained classes: the trained ones lie closer together than any new image
    will. Else at the training images, each without its own kernel.
    """
    centres, k = run.bank.centres, run.bank.considered
    new = run.settings.task == "classify" and len(run.feed.val) > 0
    x = run.embed(run.feed.val) if new else centres
    # Evenly over all of them: they lie class by class.
    chosen = torch.linspace(0, len(x) - 1, min(limit, len(x)), dtype=torch.float64).round().long().to(x.device)
    if new:
        squared, found = Exact(centres).search(x[chosen], min(k, len(centres)))
    else:
        found = Exact(centres).search(centres[chosen], min(k + 1, len(centres)))[1]
        found = found.masked_fill(found == chosen[:, None], -1)
        squared = squared_distances(centres[chosen], centres, found)
    classes = len(run.split.train.class_names)
    return answer(squared, found, run.bank.labels, run.bank.theta.detach(), sigma, classes).log_density


def test_scores(run: Run, model: Model) -> dict[str, float]:
    """Score the test images, once: retrieval for both tasks, and accuracy where their classes were trained.

    Few images may leave one of each class: there is nothing to retrieve then, but the model is as good.
    """
    x = run.embed(run.feed.test)
    labels = run.feed.test.labels.to(x.device)
    scores = evaluate(x, labels, seed=run.settings.seed) if has_pairs(labels) else {}
    if run.settings.task == "classify":
        scores = classification_scores(model.probabilities(x).to(x.device), labels) | scores
    return {key: round(float(value), 6) for key, value in scores.items()}
