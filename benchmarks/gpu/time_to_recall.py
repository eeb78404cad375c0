"""After how many seconds of training are unseen birds found as well as in the paper?

    PYTHONPATH=src python benchmarks/gpu/time_to_recall.py --data DIR --weights DIR [--commit HASH]

The run is that of our recipe at 64 dimensions, chosen elsewhere: the test classes are looked at here to stop a clock,
not to choose. Rows: results/gpu_training.csv, with the section 'target'.
"""

import argparse
import copy
import json
import time
from dataclasses import replace
from pathlib import Path

from measure import QUICK, Report, wait
from training_measure import images_at_hand, new_run, settings, training_report

from nngk import Settings, evaluate
from nngk.experiments.paper.sources import Sources
from nngk.experiments.record import epochs
from nngk.networks import EmbeddingNetwork
from nngk.networks.embedding_layer.reduction import reduce_embedding
from nngk.training.feed import Features
from nngk.training.presets import metric_settings
from nngk.training.run import Run

PAPER = 0.5115  # Recall@1 on CUB of the paper's GoogLeNet with 64 dimensions


def target(report: Report) -> None:
    """Train and stop the clock to look at the test classes, before training and after every epoch."""
    with images_at_hand(report) as (sources, table):
        begin = time.perf_counter()
        run = new_run(report, table, recipe(report, sources), "run")
        report("decoding, network and images on the device", time.perf_counter() - begin, "s")
        begin = time.perf_counter()
        run.begin()
        wait()
        trained = time.perf_counter() - begin
        report("the start of the embedding layer", trained, "s")
        training = epochs(run)
        for epoch in range(run.settings.epochs + 1):  # the first look is before any of them
            begin = time.perf_counter()
            if epoch:
                next(training)
            network = narrowed(run)
            wait()
            trained += time.perf_counter() - begin
            x = run.embed(run.feed.test, network)
            recall = evaluate(x, run.feed.test.labels.to(x.device), ks=(1,), nmi_seeds=0)["recall@1"]
            report(f"epoch {epoch}, Recall@1", 100 * recall, "%", f"{trained:.2f} s")
            if recall >= PAPER:
                report(f"Recall@1 of {100 * PAPER:.2f} reached after", trained, "s", "training and refreshes")
                return
            if report.late():
                break
        report(f"Recall@1 of {100 * PAPER:.2f} reached after", float("nan"), "s", f"not in {trained:.1f} s")


def narrowed(run: Run) -> EmbeddingNetwork:
    """Return the network as it would be if training ended here."""
    network = copy.deepcopy(run.network)
    if run.settings.wide and run.settings.dim:
        features = run.embed(run.feed.train, Features(network, pooled=False))
        reduce_embedding(network, features, run.settings.dim, run.settings.whiten)
    return network


def recipe(report: Report, sources: Sources) -> Settings:
    """Return our recipe with what it leaves open: the weights and the decoded images, and no class held out."""
    best = metric_settings("best", 64)
    given = settings(report, sources, "googlenet", best.batch_size)
    place = {name: getattr(given, name) for name in ("network", "weights", "cache", "val_fraction", "threads")}
    if QUICK:  # the same course, small
        small = ("dim", "resize", "crop_size", "n_neighbours", "batch_size", "device", "epochs")
        place |= {name: getattr(given, name) for name in small} | {"wide": 12, "layers": 1}
    changes = report.given.settings
    return replace(best, **place, **(json.loads(changes.read_text(encoding="utf-8")) if changes else {}))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--settings", type=Path, help="A JSON file of settings that the timed run changes.")


if __name__ == "__main__":
    training_report("target", __doc__, target, options)
