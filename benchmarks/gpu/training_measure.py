"""What the timings of training share: options, images, settings of this machine, and epochs against the clock."""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measure import DEVICE, QUICK, Report, report_of, wait

from nngk import Settings
from nngk.bank.refresh import Refresher
from nngk.data import ImageTable, split
from nngk.experiments.paper.sources import Sources
from nngk.experiments.record import epochs
from nngk.experiments.record.benchmarks import add_sources
from nngk.search import Exact
from nngk.training.build import build_run
from nngk.training.run import Run

ROWS = "results/gpu_training.csv"
NEVER = 1 << 40  # steps between two refreshes


def training_report(
    section: str,
    doc: str | None,
    measure: Callable[[Report], None],
    options: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """Run a benchmark of training from its command line; its rows go to the same file as those of the others."""

    def more(parser: argparse.ArgumentParser) -> None:
        add_sources(parser)
        if options is not None:
            options(parser)

    report_of(section, doc, ROWS, measure, more)


@contextmanager
def images_at_hand(report: Report) -> Iterator[tuple[Sources, ImageTable]]:
    """Give CUB split for retrieval, with a folder of decoded images that lasts as long."""
    given = report.given
    with tempfile.TemporaryDirectory() as home:
        given.home, given.cache = Path(home), given.cache or Path(home) / "images"
        sources = Sources(given.data, given.weights, given.home, given.quick)
        yield sources, sources.table("cub200", "metric")


def settings(report: Report, sources: Sources, network: str, batch: int, **changes: Any) -> Settings:
    """Return settings of metric learning on all training classes, with the weights and folders of this machine."""
    name, weights = sources.network(network)
    values: dict[str, Any] = {"task": "metric", "val_fraction": 0.0, "patience": 0, "batch_size": batch, "threads": 16}
    values |= {"network": name, "weights": weights, "dim": 64, "freeze": False, "cache": str(report.given.cache)}
    if QUICK:
        values |= {"dim": 8, "resize": 18, "crop_size": 16, "device": "cpu", "n_neighbours": 6, "threads": 1}
        values |= {"batch_size": min(batch, 8), "epochs": 4}
    return Settings(**(values | changes))


def new_run(report: Report, table: ImageTable, s: Settings, name: str) -> Run:
    """Return a run in a folder of its own."""
    folder = report.given.home / name
    folder.mkdir()
    run = build_run(split(table, s.task, s.val_fraction, s.test_fraction, s.seed), s, folder)
    wait()
    return run


def timed_epochs(run: Run, count: int) -> tuple[float, float]:
    """Return images and seconds of some epochs in the middle of training, with the refreshes that are due in them."""
    wait()
    begin = time.perf_counter()
    for _ in epochs(run, count):
        pass
    wait()
    images = sum(len(batch) for batch in run.index_batches(0))
    return float(count * images), time.perf_counter() - begin


def refresh_every(run: Run, every: int, background: bool) -> None:
    """Let a run refresh its bank after as many steps, waiting for it or beside it."""
    old = run.refresher
    fresh = Refresher(run.bank, old.embed, every, Exact(), background, old.prepare)
    run.refresher = run.objective.refresher = fresh


def is_gpu() -> bool:
    """Return whether there is a GPU to ask."""
    return DEVICE == "cuda"
