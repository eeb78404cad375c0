"""How good a run is on data it does not train on."""

import torch
from torch import Tensor

from nngk.bank.centres import CentreBank
from nngk.bank.leave_one_out import leave_one_out_sigma
from nngk.kernel.predict import answer
from nngk.kernel.sigma import best_sigma
from nngk.metrics import evaluate, has_pairs, top_k_accuracy
from nngk.model.classes import drawn_to_means
from nngk.search import Exact
from nngk.training.run import Run


def validate(run: Run) -> tuple[dict[str, float], list[float]]:
    """Return scores on the validation images and the numbers by which epochs are compared; none without such images."""
    val, task = run.feed.val, run.settings.task
    if not comparable(val.labels, task):
        return {}, []
    x = run.embed(val)
    labels = val.labels.to(x.device)
    if task == "metric":
        scores = evaluate(x, labels, ks=(1,), nmi_seeds=0, ranks=run.ranks)
        return {"val_recall@1": scores["recall@1"], "val_map@r": scores["map@r"]}, [scores["map@r"]]
    if run.objective.has_logits:
        logs = run.objective.logits(x).log_softmax(1).detach()
    else:
        logs = kernel_log_probabilities(run, x, labels)
    # Rounded: where epochs are equally good, the first is kept, on every processor.
    loss = max(0.0, round(float(-logs.gather(1, labels[:, None]).clamp(min=-50).mean()), 6))
    accuracy = top_k_accuracy(logs.exp(), labels, 1)
    return {"val_accuracy": accuracy, "val_loss": loss}, [accuracy, -loss]


def comparable(labels: Tensor, task: str) -> bool:
    """Return whether anything can be scored: for retrieval some class must have two images."""
    return bool(len(labels)) and (task == "classify" or has_pairs(labels))


def kernel_log_probabilities(run: Run, x: Tensor, labels: Tensor) -> Tensor:
    """Return what the kernels over the training embeddings of this moment say, at the σ that suits ``labels`` best."""
    bank = run.bank
    # The bank's, if no step was taken since it was renewed.
    centres = bank.centres if bank.refreshed_at == run.at.step else run.embed_bank()
    squared, neighbours = bank.nearest(centres, x, bank.considered)
    sigma = _sigma(bank, squared, neighbours, labels)
    sigma = run_sigma(run) if sigma is None else sigma
    classes = len(run.split.train.class_names)
    return answer(squared, neighbours, bank.labels, bank.weights(), sigma, classes).log_probabilities


def drawn_score(bank: CentreBank, drawn: float, x: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return accuracy and loss, the more the better, of embeddings (n, dim) with labels (n,) by kernels drawn so far.

    σ is the one that suits them best.
    """
    squared, neighbours = _drawn_neighbours(bank, drawn, x)
    sigma = _sigma(bank, squared, neighbours, labels)
    if sigma is None:
        return 0.0, 0.0
    classes = int(torch.cat([bank.labels, labels]).max()) + 1
    logs = answer(squared, neighbours, bank.labels, bank.weights(), sigma, classes).log_probabilities
    own = logs.gather(1, labels[:, None]).clamp(min=-50)
    return top_k_accuracy(logs.exp(), labels, 1), round(float(own.mean()), 6)


def _drawn_neighbours(bank: CentreBank, drawn: float, x: Tensor) -> tuple[Tensor, Tensor]:
    positions = drawn_to_means(bank.centres, bank.labels, drawn) if drawn else bank.centres
    return bank.nearest(positions, x, bank.considered)


def classifier_sigma(bank: CentreBank, task: str, x: Tensor, labels: Tensor, drawn: float = 0.0) -> float:
    """Return σ for answers: the one that minimises the loss of validation embeddings (n, dim) with labels (n,).

    For the task 'metric' the other validation images answer, since the classes are not those of the bank. Where they
    tell nothing, the leave-one-out loss of the bank decides. Kernels are ``drawn`` to the means of their classes.
    """
    if not comparable(labels, task):
        return leave_one_out_sigma(bank)
    labels = labels.to(x.device)
    if task == "metric":
        squared, same = leave_one_out_neighbours(x, labels, bank.considered)
        sigma = best_sigma(squared, same) if same.any() else None
    else:
        sigma = _sigma(bank, *_drawn_neighbours(bank, drawn, x), labels)
    return leave_one_out_sigma(bank) if sigma is None else sigma


def _sigma(bank: CentreBank, squared: Tensor, neighbours: Tensor, labels: Tensor) -> float | None:
    """Return the best σ for examples with these neighbours in the bank; None where none is of its example's class."""
    same = bank.labels[neighbours] == labels[:, None]
    return best_sigma(squared, same, bank.weights()[neighbours]) if same.any() else None


def run_sigma(run: Run) -> float:
    """Return the σ that training uses, where its loss has one."""
    return run.objective.sigma


def leave_one_out_neighbours(x: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return squared distances and same-class marks of each embedding's neighbours among the others."""
    squared, neighbours = Exact(x).all_neighbours(min(k, len(x) - 1))
    return squared, (labels[neighbours] == labels[:, None]) & torch.isfinite(squared)
