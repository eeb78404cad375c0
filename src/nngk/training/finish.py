"""From a finished run to the model a person holds."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nngk.data.datasets.by_name import reported_ks
from nngk.errors import InputError
from nngk.metrics import classification_scores, evaluate, has_pairs
from nngk.model.features import Describer
from nngk.model.model import Model
from nngk.model.pretend import as_many, measured_in_folds
from nngk.model.unknown import Familiar, confidence, required_images
from nngk.networks.embedding_layer.reduction import reduce_embedding, reduced
from nngk.training.build import choose_search, network_of, new_bank, new_engine
from nngk.training.feed import Features
from nngk.training.run import Run
from nngk.training.sharded_network import gathered, is_sharded
from nngk.training.temperature import best_temperature, with_temperature
from nngk.training.validation import classifier_sigma, comparable, drawn_score

WHITENINGS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
NEARLY_ALL = 0.98  # validation images right: what drawing kernels could gain is chance, and wide σ hide added classes
DRAWN = (0.0, 0.25, 0.5, 0.75)  # at one, lists of neighbours would hold the classes with most images alone


def finish(run: Run, seconds: float, measured: Model | None = None) -> Model:
    """Renew the bank with the final weights, tune σ for classification, and put the model together.

    ``measured`` is the model of the run before the last training: its σ, its familiar densities and its test scores
    come from images that it was not trained on, and the last training has none of those.
    """
    run.bank = run.bank.whole()
    if is_sharded(run.network):
        all_of_it = gathered(run.network, run.ranks)
        run.trainee = run.network = network_of(run.settings).to(run.device)
        run.network.load_state_dict(all_of_it)
    narrow(run)
    bank, table = run.bank, run.split.train
    both = Describer(run.network, run.frozen)
    known = both.apart(run.embed(run.feed.train, both))
    bank.renew(known.embeddings, run.refresher.engine, step=run.at.step, ranks=run.ranks)
    drawn = best_drawn(run) if measured is None else measured.classes.drawn
    sigma = final_sigma(run, drawn) if measured is None else measured.sigma
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
        drawn=drawn,
        class_names=table.class_names,
        sources=[str(path) for path in table.paths],
        n_neighbours=run.settings.n_neighbours or None,  # not the bank's, which has no more than it has centres
        softmax=softmax_layer(run) if run.settings.task == "classify" else None,
        info=info,
        device=run.device,
    )
    # Images of other classes than the trained ones, as the task 'metric' validates with, are no measure of the known.
    new = both.apart(run.embed(run.feed.val, both)) if run.settings.task == "classify" and len(run.feed.val) else None
    # A network that was trained has its own features from the same classes: its kernels know no more than they do.
    model.learn_unknown(known.features, new, confident=run.frozen)
    if measured is not None:
        model.familiar = still_familiar(run, measured, model, known.features)
        told = {name: measured.info[name] for name in ("test", "measured") if name in measured.info}
        model.info |= told | {"last_training": {"images": len(table), "epochs": run.epochs}}
        return model
    if len(run.feed.test):
        model.info["test"] = test_scores(run, model)
    feed = run.feed
    model.info["measured"] = {"training": len(feed.train), "validation": len(feed.val), "test": len(feed.test)}
    return model


def softmax_layer(run: Run) -> dict[str, Tensor] | None:
    """Return the classifier that the loss trained, if it trained one, at the temperature that suits validation images.

    That is for softmax what σ is for kernels: probabilities should be right for images that were not trained on.
    """
    layer, val = run.objective.layer(), run.feed.val
    if layer is None or not len(val):
        return layer
    with torch.no_grad():
        logits = run.objective.logits(run.embed(val))
    return with_temperature(layer, best_temperature(logits, val.labels))


def still_familiar(run: Run, measured: Model, model: Model, features: Tensor) -> Familiar:
    """Return what is familiar to a model after the last training: what images looked like that were still new to it.

    The kernels are asked as they were before, when some images were held out. A network that was not trained has the
    same ``features`` (m, channels) as before, but among all images one that is new lies closer to its class than it did
    among those that were trained on first: what such features say is measured again, for images that were held out.
    """
    told = measured.familiar
    held = torch.arange(measured.info["measured"]["training"], len(features), device=features.device)
    if run.frozen and run.settings.task == "classify" and len(held) >= required_images(told.false_alarms):
        before = Describer(measured.network, run.frozen)
        found = measured.predict(before.apart(run.embed(run.feed.train, before)).embeddings[held])
        values = measured_in_folds(model.classes, features, held, model.sigma, model.n_neighbours)
        values |= {"density": found.log_density, "confidence": confidence(found.log_probabilities)}
        if "likeness" in told.values:
            values["likeness"] = as_many(told.values["likeness"], len(held))
        values = {name: value.cpu() for name, value in values.items()}
    else:
        values = told.values
    grown = math.log(len(model.centres) / len(measured.centres))  # density grows with the number of centres
    values = values | {"density": values["density"] + grown}
    return replace(model.familiar, values=values, parts=told.parts, weights=told.weights)


def narrow(run: Run) -> None:
    """Reduce a network that was trained wide to the size that was asked for, and even out its components.

    The share of ``whiten`` is settled here. The bank then waits for new centres.
    """
    s = run.settings
    if not s.dim:
        return
    chosen = s.whiten is None and s.task == "metric" and comparable(run.feed.val.labels, s.task)
    if not (chosen or s.whiten or (s.wide or 0) > s.dim):
        return
    features = run.embed(run.feed.train, Features(run.network, run.frozen))
    share = best_whitening(run, features, s.dim) if chosen else s.whiten or 0.0
    reduce_embedding(run.network, features, s.dim, share)
    run.settings = s = replace(s, whiten=share)
    bank = new_bank(s, run.feed.train.labels, run.network.dim, run.device)
    with torch.no_grad():
        bank.theta.copy_(run.bank.theta)
    run.bank = bank
    run.refresher.engine = new_engine(choose_search(s, bank), s, bank)


def best_whitening(run: Run, known: Tensor, dim: int) -> float:
    """Return how far to even out the components of the embeddings, chosen on the validation classes.

    It is the share with the highest mean of Recall@1 and MAP@R; ``known`` are the embedding layer's inputs for the
    training images.
    """
    layer = run.network.head.linear
    assert layer is not None
    new, labels = run.embed(run.feed.val, Features(run.network, run.frozen)), run.feed.val.labels.to(run.device)
    scores = {}
    for share in WHITENINGS:
        with torch.no_grad():
            x = reduced(layer, known, dim, share)(new)
        x = normalize(x) if run.network.head.normalise else x
        found = evaluate(x, labels, ks=(1,), nmi_seeds=0, ranks=run.ranks)
        scores[share] = found["recall@1"] + found["map@r"]
    return max(scores, key=scores.__getitem__)


def best_drawn(run: Run) -> float:
    """Return how far the kernels are drawn to the means of their classes: where most validation images are right.

    A new image is nearer to the mean of its class than to most of its images; how much nearer, the data say. They do
    not where nearly all images are right as the kernels stand: one image would decide. Where σ is given or learned, as
    in the paper, kernels stand at their images; so they do where no rank holds a whole class.
    """
    s, val = run.settings, run.feed.val
    whole = (s.task, s.loss, s.sigma) == ("classify", "nngk", "auto") and not run.bank.partial
    if not whole or not comparable(val.labels, s.task):
        return 0.0
    x, labels = run.embed(val), val.labels.to(run.device)
    scores = {share: drawn_score(run.bank, share, x, labels) for share in DRAWN}
    if scores[0.0][0] >= NEARLY_ALL:
        return 0.0
    return max(scores, key=scores.__getitem__)


def final_sigma(run: Run, drawn: float) -> float:
    """Return the σ of the model's answers; training's own where the images tell nothing about it."""
    try:
        return classifier_sigma(run.bank, run.settings.task, run.embed(run.feed.val), run.feed.val.labels, drawn)
    except InputError:  # no list holds a centre of its own class: no reason to lose what was trained
        return run.objective.sigma


def test_scores(run: Run, model: Model) -> dict[str, float]:
    """Score the test images, once: retrieval for both tasks, and accuracy where their classes were trained.

    Few images may leave one of each class: there is nothing to retrieve then, but the model is as good.
    """
    x = run.embed(run.feed.test)
    labels = run.feed.test.labels.to(x.device)
    table = run.split.test
    how: dict[str, Any] = {"ks": reported_ks(table.name), **table.asking()}
    scores = evaluate(x, labels, seed=run.settings.seed, ranks=run.ranks, **how) if has_pairs(labels) else {}
    if scores and run.settings.task == "metric" and not run.network.head.normalise:
        # Others may scale what this loss left at any length: what they would find.
        unit = evaluate(normalize(x), labels, nmi_seeds=0, ranks=run.ranks, **how)
        scores |= {f"unit_{name}": value for name, value in unit.items()}
    if run.settings.task == "classify":
        scores = classification_scores(model.probabilities(x).to(x.device), labels) | scores
    return {key: round(float(value), 6) for key, value in scores.items()}
