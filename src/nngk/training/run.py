"""A training run: its pieces, where it stands, and what can be asked of them together."""

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nngk.bank.centres import CentreBank
from nngk.bank.refresh import Refreshed, Refresher
from nngk.data import Split
from nngk.errors import InputError
from nngk.files import fitted
from nngk.losses.objective import Objective
from nngk.networks import EmbeddingNetwork
from nngk.networks.embedding_layer.discriminant import start_embedding
from nngk.networks.embedding_layer.projection import start_projection
from nngk.ranks import ALONE, Ranks
from nngk.training.checkpoint import load_checkpoint, put_back, save_checkpoint, tensors_of
from nngk.training.feed import Examples, Features, Feed, own_share
from nngk.training.held_rows import HeldRows, held_rows
from nngk.training.model_weights import is_model
from nngk.training.settings import Settings
from nngk.training.sharded_network import is_sharded, whole

Stage = Callable[[str], contextlib.AbstractContextManager[Any]]  # around what belongs together in a step
_NOTHING = contextlib.nullcontext()


def unprofiled(stage: str) -> contextlib.AbstractContextManager[Any]:
    """Return the context of a stage that is not profiled."""
    return _NOTHING


@dataclass
class RunState:
    """Where a run stands; in every checkpoint."""

    epoch: int = 0  # epochs begun
    batch: int = 0  # batches of this epoch done
    step: int = 0  # batches done in all
    loss_sum: float = 0.0  # of this epoch
    best_epoch: int = -1
    best_score: list[float] = field(default_factory=list)  # larger is better, compared in order
    seconds: float = 0.0
    last_refresh: dict[str, Any] = field(default_factory=dict)  # for the log
    overrun: int = 0
    data: str = ""  # a hash of the images' names and labels


@dataclass
class Run:
    """Network, objective, bank, optimiser and data of one run, in a folder; ``nngk.training.build`` makes one."""

    split: Split
    settings: Settings  # with what the machine decided
    folder: Path
    device: torch.device
    amp: bool
    network: EmbeddingNetwork
    trainee: nn.Module  # what is trained of it: all, or its embedding layer on cached features
    stepping: Callable[[Tensor], Tensor]  # the same weights, as training steps call them
    feed: Feed
    bank: CentreBank
    refresher: Refresher
    objective: Objective
    optimiser: torch.optim.Optimizer
    steps_per_epoch: int
    last_epoch: int = 0  # where to stop on the way; 0: after all epochs of the settings
    notes: list[str] = field(default_factory=list)  # what was decided while it was built, for a person
    at: RunState = field(default_factory=RunState)
    best: dict[str, Tensor] = field(default_factory=dict)  # weights of the best epoch, where validation tells which
    stage: Stage = unprofiled
    ailing: bool = False  # whether a person was told what keeps it from learning
    ranks: Ranks = ALONE  # the processes that train it together
    coming: Tensor | None = None  # the indices of the batch after this step's, where several ranks are told ahead

    def __post_init__(self) -> None:
        self.at.data = fingerprint(self.split)

    @property
    def frozen(self) -> bool:
        """Whether the embedding layer alone is trained."""
        return bool(self.settings.freeze)

    @property
    def epochs(self) -> int:
        """The number of epochs to train for."""
        return self.last_epoch or self.settings.epochs

    @property
    def total_steps(self) -> int:
        """The number of steps that the course of the learning rate is made for."""
        return self.settings.epochs * self.steps_per_epoch

    def begin(self) -> None:
        """Start the embedding layer as the settings say: before the first step, and not in a resumed run."""
        how = self.settings.embedding_start
        if how == "auto" and is_model(self.settings.weights):
            return  # a model's layer goes on from where it is
        if how == "auto":  # of what a random network says of its images there is nothing to discriminate
            how = "discriminant" if pretrained(self.network) else "random"
        if self.network.head.linear is None or how == "random":
            return
        features = None if how == "projection" else self.embed(self.feed.train, Features(self.network, self.frozen))
        with whole(self.network, write=True):
            if features is None:
                start_projection(self.network.head.linear)
            else:
                labels = self.feed.train.labels.to(self.device)
                start_embedding(self.network.head.linear, features, labels, self.settings.shrinkage)

    def index_batches(self, epoch: int) -> list[Tensor]:
        """Return the epoch's batches of training indices: the same whenever they are asked for."""
        return self.objective.batches(self.feed.train.labels, self.settings.batch_size, self.settings.seed, epoch)

    def embed(self, examples: Examples, network: nn.Module | None = None) -> Tensor:
        """Return the embeddings of some examples, in evaluation mode and without augmentation."""
        return self.feed.embed(self.trainee if network is None else network, examples)

    def embed_bank(self) -> Tensor:
        """Return the embeddings of the training images whose centres this rank holds."""
        return own_share(self.feed, self.trainee, self.ranks) if self.bank.partial else self.embed(self.feed.train)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """What a checkpoint holds. The objective has the bank inside where it is the kernel loss."""
        return {"network": self.network, "objective": self.objective}

    def keep(self) -> None:
        """Remember this epoch as the best; the next checkpoint puts it on the disk."""
        self.best = {name: tensor.clone() for name, tensor in tensors_of(self.modules).items()}

    def go_back(self) -> None:
        """Return to the best epoch, where one was kept."""
        if self.best:
            put_back(self.modules, self.best, self.folder)

    @property
    def held(self) -> HeldRows:
        """Which rows of the bank are here."""
        return held_rows(self.bank, self.optimiser, self.ranks, is_sharded(self.network))

    def save(self) -> None:
        """Write a checkpoint into the folder; of several ranks the first does, or each its rows of the bank."""
        if self.refresher.history:
            self.at.last_refresh = vars(self.refresher.history[-1])
        self.at.overrun = self.refresher.overrun
        if self.ranks.first or self.held.in_parts:
            save_checkpoint(self.folder, self.modules, self.optimiser, vars(self.at), self.best, self.held)

    def resume(self) -> None:
        at, self.best = load_checkpoint(self.folder, self.modules, self.optimiser, RunState, self.held)
        if at.data != self.at.data:
            raise InputError(
                f"The run in {self.folder.parent} was started with other images or another split. "
                "Resume it with its own data, or start a new run in another folder."
            )
        self.at = at
        self.refresher.overrun = self.at.overrun
        if self.at.last_refresh:
            self.refresher.history.append(fitted(self.at.last_refresh, Refreshed, self.folder / "checkpoint.json"))


def pretrained(network: EmbeddingNetwork) -> bool:
    """Return whether the network came with weights that were trained before."""
    return str(network.config["weights"].get("source")) != "random"


def fingerprint(split: Split) -> str:
    """Return a hash of the images' names, labels and boxes; their folder may move."""
    rows = [f"{path.name}\t{label}\n" for table in split for path, label in zip(table.paths, table.labels.tolist())]
    rows += [str(table.boxes.tolist()) for table in split if table.boxes is not None]
    return hashlib.sha256("\n".join(rows).encode("utf-8", "surrogateescape")).hexdigest()
