"""From a finished run to the model a person holds."""

from typing import Any

import torch
from torch import Tensor

from nngk.bank.leave_one_out import leave_one_out_sigma
from nngk.kernel.formulas import squared_distances
from nngk.kernel.predict import answer
from nngk.kernel.sigma import best_sigma
from nngk.losses.objective import RivalLoss
from nngk.losses.softmax import Softmax
from nngk.metrics import evaluate
from nngk.model.model import Model
from nngk.search import Exact
from nngk.training.run import Run
from nngk.training.validation import (
    classification_scores,
    has_pairs,
    kernel_log_probabilities,
    leave_one_out_neighbours,
)


def finish(run: Run, seconds: float) -> Model:
    """Renew the bank with the final weights, tune σ for classification, and put the model together."""
    run.narrow()
    run.bank.renew(run.embed(run.parts.train), run.refresher.engine, step=run.at.step)
    sigma = classifier_sigma(run)
    bank, table = run.bank, run.split.train
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
        familiar=familiar_densities(run, sigma),
        n_neighbours=run.settings.n_neighbours or None,  # not the bank's, which has no more than it has centres
        softmax=softmax_layer(run),
        info=info,
        device=run.device,
    )
    if len(run.parts.test):
        model.info["test"] = test_scores(run, model)
    return model


def classifier_sigma(run: Run) -> float:
    """σ for answers: the one that minimises validation loss; without validation data, leave-one-out loss."""
    unseen = run.settings.task == "metric"
    if not len(run.parts.val) or (unseen and not has_pairs(run.parts.val.labels)):
        return leave_one_out_sigma(run.bank)
    x = run.embed(run.parts.val)
    labels = run.parts.val.labels.to(x.device)
    if unseen:  # each image is answered by the other images of the part
        squared, same = leave_one_out_neighbours(x, labels, run.bank.considered)
        return best_sigma(squared, same) if same.any() else leave_one_out_sigma(run.bank)
    return kernel_log_probabilities(run, run.bank.centres, x, labels)[0]


def familiar_densities(run: Run, sigma: float, limit: int = 10_000) -> Tensor:
    """Log densities at images of the known classes: what 'familiar' looks like.

    At validation images where these are of the trained classes: the trained ones lie closer together than any new image
    will. Else at the training images, each without its own kernel.
    """
    centres, k = run.bank.centres, run.bank.considered
    new = run.settings.task == "classify" and len(run.parts.val) > 0
    x = run.embed(run.parts.val) if new else centres
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


def softmax_layer(run: Run) -> dict[str, Tensor] | None:
    """The trained classifier of a softmax run, as plain tensors."""
    objective = run.objective
    if run.settings.task != "classify" or not isinstance(objective, RivalLoss) or not objective.has_logits:
        return None
    if isinstance(objective, Softmax):
        return {"weight": objective.linear.weight, "bias": objective.linear.bias}
    # Normalised softmax: cosines with the columns of W, over a temperature.
    criterion: Any = objective.criterion
    weight = torch.nn.functional.normalize(criterion.W, dim=0).T
    scale = torch.tensor(1 / criterion.temperature)
    return {"weight": weight, "bias": weight.new_zeros(len(weight)), "scale": scale}


def test_scores(run: Run, model: Model) -> dict[str, float]:
    """The test part, looked at once: retrieval for both tasks, and accuracy where its classes were trained.

    Few images may leave one of each class: there is nothing to retrieve then, but the model is as good.
    """
    x = run.embed(run.parts.test)
    labels = run.parts.test.labels.to(x.device)
    scores = evaluate(x, labels, seed=run.settings.seed) if has_pairs(labels) else {}
    if run.settings.task == "classify":
        scores = classification_scores(model.probabilities(x).to(x.device), labels) | scores
    return {key: round(float(value), 6) for key, value in scores.items()}
