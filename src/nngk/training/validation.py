"""How good a run is on data it does not train on."""

import torch
from torch import Tensor

from nngk.kernel.predict import answer
from nngk.kernel.sigma import best_sigma
from nngk.losses.objective import RivalLoss
from nngk.metrics import evaluate, expected_calibration_error, top_k_accuracy
from nngk.search import Exact
from nngk.training.run import Run


def validate(run: Run) -> tuple[dict[str, float], list[float]]:
    """Scores of the validation part, and the numbers by which epochs are compared (none without such a part)."""
    if not len(run.parts.val) or (run.settings.task == "metric" and not has_pairs(run.parts.val.labels)):
        return {}, []
    x = run.embed(run.parts.val)
    labels = run.parts.val.labels.to(x.device)
    if run.settings.task == "metric":
        scores = evaluate(x, labels, ks=(1,), nmi_seeds=0)
        return {"val_recall@1": scores["recall@1"], "val_map@r": scores["map@r"]}, [scores["map@r"]]
    if isinstance(run.objective, RivalLoss) and run.objective.has_logits:
        logs = run.objective.logits(x).log_softmax(1).detach()
    else:
        _, logs = kernel_log_probabilities(run, fresh_centres(run), x, labels)
    loss = float(-logs.gather(1, labels[:, None]).clamp(min=-50).mean())
    accuracy = top_k_accuracy(logs.exp(), labels, 1)
    return {"val_accuracy": accuracy, "val_loss": loss}, [accuracy, -loss]


def fresh_centres(run: Run) -> Tensor:
    """The training embeddings of this moment: the bank's, if no step was taken since it was renewed."""
    if run.bank.refreshed_at == run.at.step:
        return run.bank.centres
    return run.embed(run.parts.train)


def kernel_log_probabilities(run: Run, centres: Tensor, x: Tensor, labels: Tensor) -> tuple[float, Tensor]:
    """The kernel classifier's answers for validation embeddings, at the σ that minimises their loss."""
    bank = run.bank
    squared, neighbours = Exact(centres).search(x, bank.considered)
    theta = bank.theta.detach()[neighbours]
    same = bank.labels[neighbours] == labels[:, None]
    sigma = best_sigma(squared, same, theta) if same.any() else run_sigma(run)
    classes = len(run.split.train.class_names)
    return sigma, answer(squared, neighbours, bank.labels, bank.theta.detach(), sigma, classes).log_probabilities


def run_sigma(run: Run) -> float:
    """The σ that training uses, where its loss has one."""
    sigma = getattr(run.objective, "sigma", 1.0)
    return float(sigma)


def classification_scores(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy and calibration of class probabilities."""
    scores = {"accuracy": top_k_accuracy(probabilities, labels, 1)}
    if probabilities.shape[1] > 5:
        scores["top5_accuracy"] = top_k_accuracy(probabilities, labels, 5)
    scores["calibration_error"] = expected_calibration_error(probabilities, labels)
    return scores


def has_pairs(labels: Tensor) -> bool:
    """Whether some class has two images, so that one can be looked for with the other."""
    return bool(len(labels) > len(labels.unique()))


def leave_one_out_neighbours(x: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Squared distances and same-class marks of each embedding's neighbours among the others."""
    squared, neighbours = Exact(x).all_neighbours(min(k, len(x) - 1))
    return squared, (labels[neighbours] == labels[:, None]) & torch.isfinite(squared)
