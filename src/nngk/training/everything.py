"""The last training: when the images that were held out have measured, they count like all others."""

from dataclasses import replace
from functools import reduce

import numpy as np
import torch

from nngk.data import ImageTable, Split
from nngk.networks.embed import Rows
from nngk.training.build import build_run
from nngk.training.feed import Examples, Feed
from nngk.training.run import Run

FOLDER = "all"  # of the last training, inside the folder of the run
LOG = "last-training.csv"  # what it said, beside the log of the run that was measured


def holds_back(run: Run) -> bool:
    """Return whether images were held out that are to enter the model now."""
    return not run.settings.hold_out and len(run.feed.val) + len(run.feed.test) > 0


def run_on_everything(measured: Run) -> Run:
    """Return a run like the one that was measured, on all of its images, for the number of epochs it was best at.

    The run that was measured is over: it gives up its images. The learning rate follows the same course, so that both
    stop at the same place of it.
    """
    table = reduce(joined, measured.split)
    nothing = table.select([])
    folder = measured.folder / FOLDER
    folder.mkdir(exist_ok=True)
    feed = None
    if measured.frozen:
        feed = _features(measured.feed, table)
    else:  # its images leave the memory of the GPU, where they would be twice
        none = Examples(Rows(torch.empty(0, 0)), torch.empty(0, dtype=torch.int64))
        measured.feed = replace(measured.feed, train=none, val=none, test=none)
    run = build_run(Split(table, nothing, nothing), measured.settings, folder, feed, measured.ranks)
    run.last_epoch = measured.at.best_epoch + 1
    return run


def joined(first: ImageTable, second: ImageTable) -> ImageTable:
    """Return the rows of both tables, with classes of the same name merged; splits are dropped.

    >>> from pathlib import Path
    >>> a = ImageTable([Path("1.png"), Path("2.png")], np.array([0, 1]), ["cat", "dog"])
    >>> b = ImageTable([Path("3.png"), Path("4.png")], np.array([0, 1]), ["dog", "owl"])
    >>> both = joined(a, b)
    >>> both.labels.tolist(), both.class_names
    ([0, 1, 1, 2], ['cat', 'dog', 'owl'])
    """
    names = list(dict.fromkeys([*first.class_names, *second.class_names]))
    places = {name: place for place, name in enumerate(names)}
    own = np.array([places[name] for name in second.class_names], dtype=np.int64)
    return ImageTable(
        [*first.paths, *second.paths],
        np.concatenate([first.labels, own[second.labels] if len(second) else second.labels]),
        names,
        boxes=_boxes(first, second),
        name=first.name,
        task=first.task,
    )


def _boxes(first: ImageTable, second: ImageTable) -> np.ndarray | None:
    """Return the boxes of both tables; the whole image where only the other table has any."""
    if first.boxes is None and second.boxes is None:
        return None
    none = (np.full((len(table), 4), np.nan, dtype=np.float32) for table in (first, second))
    return np.concatenate([fill if t.boxes is None else t.boxes for t, fill in zip((first, second), none)])


def _features(feed: Feed, table: ImageTable) -> Feed:
    """Return the features of all three parts as training examples; they are computed already."""
    rows = [part.source.rows for part in (feed.train, feed.val, feed.test) if isinstance(part.source, Rows)]
    full = torch.cat([part for part in rows if len(part)])
    none = Examples(Rows(full[:0]), torch.empty(0, dtype=torch.int64))
    return replace(feed, train=Examples(Rows(full), torch.as_tensor(table.labels)), val=none, test=none)
