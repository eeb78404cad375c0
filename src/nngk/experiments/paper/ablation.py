"""The supplement's ablation: start, tuned σ, learned weights and fine-tuning, one after the other."""

import time
from dataclasses import replace
from typing import Any

import torch

from nngk.data import split
from nngk.device import pick_device
from nngk.experiments.paper.known_classes import classify_trial
from nngk.experiments.paper.trial import Experiment, Job, Trial, View
from nngk.kernel.predict import predict
from nngk.kernel.sigma import best_sigma
from nngk.metrics import classification_scores
from nngk.search import Exact
from nngk.training.build import network_of
from nngk.training.feed import image_feed


def untrained(job: Job) -> dict[str, Any]:
    """Return the figures of the kernel classifier on an untrained network, with σ tuned on the validation part."""
    started = time.perf_counter()
    s, device = job.settings, pick_device(job.settings.device)
    torch.manual_seed(job.seed)
    network = network_of(s).to(device)
    tables = split(job.table, "classify", s.val_fraction, s.test_fraction, job.seed)
    feed = image_feed(tables, network.input, s, device)
    centres, val, test = (feed.embed(network, examples) for examples in (feed.train, feed.val, feed.test))
    labels = feed.train.labels.to(device)
    engine, k = Exact(centres), min(s.n_neighbours or 200, len(centres))
    squared, found = engine.search(val, k)
    sigma = best_sigma(squared, labels[found] == feed.val.labels.to(device)[:, None])
    theta = torch.zeros(len(centres), device=device)
    answers = predict(test, engine, labels, theta, sigma, k, len(tables.train.class_names))
    scores: dict[str, Any] = classification_scores(answers.log_probabilities.exp(), feed.test.labels.to(device))
    return scores | {"train_sigma": sigma, "epochs": 0, "seconds": round(time.perf_counter() - started, 3)}


def _trials(preset: str, network: str) -> list[Trial]:
    whole = classify_trial(preset, "cub200", network)
    # On the network's own features with both presets: what only the centres' weights add has to stay visible.
    whole = replace(whole, settings=replace(whole.settings, dim=None, wide=None))
    fixed = replace(whole.settings, learn_weights=False, sigma="validation")
    tuned = replace(whole.settings, sigma="validation")
    # Only the centres' weights learn, on features that never change: rates of the weights' own size.
    frozen = replace(tuned, freeze=True, dropout=0.0)
    weights = (1e-4, 1e-3, 1e-2)
    trials = [
        replace(whole, settings=fixed, rates=(), start="random", execute=untrained, variant="random start"),
        replace(whole, settings=fixed, rates=(), execute=untrained, variant="ImageNet start"),
        replace(whole, settings=frozen, rates=weights, variant="ImageNet start, weights"),
        replace(whole, settings=fixed, variant="ImageNet start, fine-tuned"),
        replace(whole, settings=tuned, variant="ImageNet start, weights, fine-tuned"),
    ]
    return trials[:3] if preset == "frozen" else trials


ABLATION = Experiment(
    "ablation",
    "What each part adds",
    "Supplement, Table 5",
    "Classification of birds: a random or an ImageNet network, σ tuned in every row, centre weights learned or fixed "
    "at one, the network fine-tuned or left as it is.",
    _trials,
    View("variants"),
    "vgg16",
)
