"""What an experiment is made of: trials, each trained once per seed, and a view that shows their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nngk import InputError, Settings
from nngk.data import ImageTable


@dataclass(frozen=True)
class Trial:
    """One line of a table or one point of a figure."""

    dataset: str
    network: str  # the paper's name for it; which of ours stands for it depends on the weights at hand
    settings: Settings  # without network, weights, seed and machine
    variant: str = ""  # what sets it apart in its table, where that is not the size of the embedding
    rates: tuple[float, ...] = ()  # learning rates to choose from by validation; none: the settings' own
    settled: bool = False  # epochs and rate were chosen before, on validation classes: see docs/recipe.md
    examples: int = 0  # training images per class, 0: all
    start: Literal["imagenet", "random"] = "imagenet"
    execute: Executor | None = None  # how it is executed; None: train and test
    makes: tuple[str, ...] = ()  # files it leaves in the results folder besides its row


@dataclass(frozen=True)
class Job:
    """A trial with everything settled: data, network, weights, seed and folders."""

    trial: Trial
    settings: Settings
    table: ImageTable
    seed: int
    first_seed: int  # the one on which epochs and learning rate are chosen
    key: str  # of trial and settings, the same for all seeds
    work: Path
    results: Path
    known: dict[str, Any]  # what rows of other seeds say was chosen

    @property
    def folder(self) -> Path:
        return self.work / "runs" / f"{self.trial.dataset}-{self.key}" / f"seed{self.seed}"

    @property
    def name(self) -> str:
        """The file name of what the job leaves in the results."""
        return f"{self.trial.dataset}-{self.key}"


Executor = Callable[[Job], dict[str, Any]]


@dataclass(frozen=True)
class View:
    """How rows become a table or a figure."""

    kind: Literal["retrieval", "losses", "variants", "curves", "distances", "embedding"]
    metrics: tuple[str, ...] = ("accuracy",)
    x: str = ""  # the column along which a figure runs
    label: str = ""  # of that axis
    published: tuple[str, ...] = ()  # experiments whose published figures belong here; none: its own


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    name: str
    title: str
    source: str  # where the paper shows it
    about: str  # what to look for, in a sentence or two
    make: Callable[[str, str], list[Trial]]  # the trials of a preset with a network
    view: View
    network: str = ""  # the paper's; none where networks are compared
    one_seed: bool = False  # a picture is not averaged

    def trials(self, preset: str, network: str | None = None) -> list[Trial]:
        """Return the trials of a preset, with the paper's network or another in its place."""
        if network is not None and not self.network:
            raise InputError(f"{self.name} compares networks, so --network has no place in it.")
        return self.make(preset, network or self.network)
