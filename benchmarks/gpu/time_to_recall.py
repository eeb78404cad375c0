"""Seconds of training until unseen birds are found as well as in the paper."""

import argparse
import copy
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from gpu_runs import Report, settings, wait

from nngk.data import ImageTable, split
from nngk.metrics import evaluate
from nngk.networks import EmbeddingNetwork
from nngk.networks.embedding_layer.reduction import reduce_embedding
from nngk.training import loop
from nngk.training.feed import Features
from nngk.training.presets import metric_settings
from nngk.training.run import Run
from nngk.training.settings import Settings

PAPER = 0.5115  # Recall@1 on CUB of the paper's GoogLeNet with 64 dimensions


def section_target(args: argparse.Namespace, report: Report, device: torch.device, table: ImageTable) -> None:
    """Seconds of training until the test classes are retrieved as well as in the paper."""
    s = of_this_machine(args, metric_settings("best", 64))
    s = replace(s, **(json.loads(args.settings.read_text(encoding="utf-8")) if args.settings else {}))
    with tempfile.TemporaryDirectory() as home:
        begin = time.perf_counter()
        folder = Path(home) / "run"
        folder.mkdir()
        run = Run(split(table, s.task, s.val_fraction, s.test_fraction, s.seed), s, folder)
        wait(device)
        report("target", "decoding, network and images on the device", time.perf_counter() - begin, "s")
        begin = time.perf_counter()
        run.begin()
        wait(device)
        trained = time.perf_counter() - begin
        report("target", "the start of the embedding layer", trained, "s")
        for epoch in range(s.epochs + 1):  # the first look is before any of them
            begin, speed = time.perf_counter(), 0.0
            if epoch:
                _, speed = loop.train_epoch(run, lambda: False, begin)
                run.at = replace(run.at, epoch=epoch, batch=0, loss_sum=0.0)
            network = narrowed(run)
            wait(device)
            trained += time.perf_counter() - begin
            x = run.embed(run.parts.test, network)
            recall = evaluate(x, run.parts.test.labels.to(x.device), ks=(1,), nmi_seeds=0)["recall@1"]
            report("target", f"epoch {epoch}, Recall@1", 100 * recall, "%", f"{trained:.2f} s, {speed:.0f} images/s")
            if recall >= PAPER:
                report("target", f"Recall@1 of {100 * PAPER:.2f} reached after", trained, "s", "training and refreshes")
                return
            if report.late():
                break
        report("target", f"Recall@1 of {100 * PAPER:.2f} reached after", float("nan"), "s", f"not in {trained:.1f} s")


def narrowed(run: Run) -> EmbeddingNetwork:
    """The network as it would be if training ended here."""
    network = copy.deepcopy(run.network)
    if run.settings.wide and run.settings.dim:
        features = run.embed(run.parts.train, Features(network, pooled=False))
        reduce_embedding(network, features, run.settings.dim, run.settings.whiten)
    return network


def of_this_machine(args: argparse.Namespace, recipe: Settings) -> Settings:
    """A recipe with what it leaves open: where the weights and the decoded images are, and no class held out."""
    given = settings(args, "googlenet-bvlc", recipe.batch_size)
    place = {name: getattr(given, name) for name in ("network", "weights", "cache", "val_fraction", "threads")}
    if args.quick:  # the recipe's course, small
        small = ("dim", "resize", "crop_size", "n_neighbours", "batch_size", "device", "epochs")
        place |= {name: getattr(given, name) for name in small} | {"wide": 12, "layers": 1}
    return replace(recipe, **place)
