"""A training run: the pieces, built from settings and data, and what can be asked of them together."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nngk.bank.centres import CentreBank
from nngk.bank.refresh import Refreshed, Refresher, interval_in_steps
from nngk.data import Split, class_balanced_batches, random_batches
from nngk.device import pick_device as pick_device
from nngk.errors import InputError
from nngk.losses import create_loss
from nngk.losses.gaussian import GaussianKernelLoss
from nngk.losses.objective import RivalLoss
from nngk.networks import EmbeddingNetwork
from nngk.networks.embed import embed
from nngk.networks.embedding_layer.discriminant import start_embedding
from nngk.networks.embedding_layer.projection import start_projection
from nngk.networks.embedding_layer.reduction import reduce_embedding
from nngk.search import Choice, Engine, choose, create_engine
from nngk.training.checkpoint import load_checkpoint, put_back, save_checkpoint, tensors_of
from nngk.training.feed import (
    Features,
    Part,
    Parts,
    Projection,
    feature_parts,
    image_parts,
    network_of,
    resident_parts,
)
from nngk.training.graphs import Graphed, Replayed
from nngk.training.optimiser import create_optimiser
from nngk.training.profile import Stage, unwatched
from nngk.training.settings import Settings


@dataclass
class Progress:
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


class Run:
    """Network, objective, bank, optimiser and data of one run, in a folder."""

    def __init__(self, split: Split, settings: Settings, folder: Path) -> None:
        self.split, self.settings, self.folder = split, settings, folder
        self.device = pick_device(settings.device)
        self.amp = self.device.type == "cuda" if settings.amp is None else settings.amp
        self.at = Progress(data=fingerprint(split))
        self.best: dict[str, Tensor] = {}  # the weights of the best epoch so far, where validation tells which that is
        torch.manual_seed(settings.seed)
        self.network = self._network()
        self.frozen = self._frozen()
        # What the machine decided is settled with it: a run that goes on elsewhere trains the same parameters.
        self.settings = replace(settings, freeze=self.frozen)
        self.parts = self._parts()
        self.trainee: nn.Module = Projection(self.network) if self.frozen else self.network
        # The same weights; what refreshes and scores go through stays as it is, with batches of other sizes.
        self.stepping = self._stepping()
        self.stage: Stage = unwatched
        self.bank = self._bank()
        self.objective = self._objective().to(self.device)
        self.optimiser = self._optimiser()
        self.steps_per_epoch = len(self.index_batches(0))
        self.total_steps = settings.epochs * self.steps_per_epoch
        self.refresher = Refresher(
            self.bank,
            lambda network: self.embed(self.parts.train, network),
            interval_in_steps(settings.update_interval, self.steps_per_epoch),
            self._engine(),
            settings.background,
            Replayed if isinstance(self.stepping, Graphed) else None,
        )

    # -- building

    def _network(self) -> EmbeddingNetwork:
        # Rows of images in the layout that convolutions read fastest.
        return network_of(self.settings).to(self.device).to(memory_format=torch.channels_last)

    @property
    def pretrained(self) -> bool:
        return str(self.network.config["weights"].get("source")) != "random"

    def _frozen(self) -> bool:
        if self.settings.freeze is not None:
            return self.settings.freeze
        return self.pretrained and self.device.type == "cpu" and self.settings.loss == "nngk"

    def _parts(self) -> Parts:
        parts = image_parts(self.split, self.network.input, self.settings, self.folder)
        if self.frozen:
            self.network.backbone.requires_grad_(False)
            self.network.head.pool.requires_grad_(False)
            shared = self.settings.cache if self.settings.cache not in (None, "off") else self.folder
            return feature_parts(parts, self.network, self.device, self.amp, Path(shared))
        freeze = self.settings.freeze_batchnorm
        if self.pretrained if freeze is None else freeze:
            self.network.freeze_batchnorm()
        return resident_parts(parts, self.network.input.resize, self.device, self.settings)

    def _bank(self) -> CentreBank:
        s = self.settings
        bank = CentreBank(self.parts.train.labels, self.network.dim, s.n_neighbours or None, s.guaranteed)
        bank.theta.requires_grad_(s.learn_weights)
        return bank.to(self.device)

    def _engine(self) -> Engine:
        """The search behind the neighbour lists; kept from refresh to refresh."""
        n, dim, k, s = len(self.bank), self.network.dim, self.bank.considered, self.settings
        as_set = Choice(s.search, f"{s.search}, as set", 1.0 if s.search == "exact" else None)
        self.search = choose(n, dim, k, self.device) if s.search == "auto" else as_set
        return create_engine(self.search.name, dim=dim, n=n, k=k, device=self.device, seed=s.seed)

    def _stepping(self) -> Callable[[Tensor], Tensor]:
        """How training steps call the network."""
        how = self.settings.compile
        if how == "auto":
            # timm's networks are too many to know that each can be captured.
            known = not self.settings.network.startswith("timm/")
            how = "graphs" if self.device.type == "cuda" and known and not self.frozen else "off"
        return Graphed(self.trainee, self.device) if how == "graphs" else self.trainee

    def _objective(self) -> GaussianKernelLoss | RivalLoss:
        s = self.settings
        if s.loss == "nngk":
            sigma: float | Literal["auto"] = s.sigma if isinstance(s.sigma, int | float) else "auto"
            return GaussianKernelLoss(self.bank, sigma, learn_sigma=s.sigma == "learned", drop=s.drop_centres)
        classes = len(self.split.train.class_names)
        options = {"engine": self._engine} if s.loss == "smart-mining" else {}  # it mines the lists a bank would have
        rival = create_loss(
            s.loss, dim=self.network.dim, n_classes=classes, n_examples=len(self.bank), seed=s.seed, **options
        )
        if s.wide and rival.has_logits and s.task == "classify":
            raise InputError(
                f"The setting 'wide' is for embeddings: '{s.loss}' answers by a layer on top of them, "
                "which cannot be reduced. Leave 'wide' empty."
            )
        # A rival's embeddings have unit length where its paper's do, and only there.
        self.network.head.normalise = self.network.config["normalise"] = rival.normalise
        return rival

    def _optimiser(self) -> torch.optim.Optimizer:
        s = self.settings
        if isinstance(self.objective, GaussianKernelLoss):
            extra = self.objective.parameter_groups(s.lr, s.weight_lr_factor, s.sigma_lr_factor)
        else:
            extra = self.objective.parameter_groups(s.lr)
        return create_optimiser(self.network.backbone_parameters(), self.network.embedding_parameters(), extra, s)

    def begin(self) -> None:
        """What a run does before its first step, and a resumed one does not."""
        linear, how = self.network.head.linear, self.settings.embedding_start
        if how == "auto":  # of what a random network says of its images there is nothing to discriminate
            how = "discriminant" if self.pretrained else "random"
        if how == "projection" and linear is not None:
            start_projection(linear)
        if how == "discriminant" and linear is not None:
            features = self.embed(self.parts.train, Features(self.network, self.frozen))
            start_embedding(linear, features, self.parts.train.labels.to(self.device), self.settings.shrinkage)

    def narrow(self) -> None:
        """Reduce a network that was trained wide to the size that was asked for; the bank waits for new centres."""
        s = self.settings
        if s.wide and s.dim and s.wide > s.dim:
            features = self.embed(self.parts.train, Features(self.network, self.frozen))
            reduce_embedding(self.network, features, s.dim, s.whiten)
            theta = self.bank.theta.detach()
            self.bank = self._bank()
            with torch.no_grad():
                self.bank.theta.copy_(theta)
            self.refresher.engine = self._engine()

    # -- asking

    def index_batches(self, epoch: int) -> list[Tensor]:
        """The epoch's batches of training indices: the same whenever they are asked for."""
        s, labels = self.settings, self.parts.train.labels
        if isinstance(self.objective, RivalLoss):
            return self.objective.batches(labels, s.batch_size, s.seed, epoch)
        if s.per_class:
            return class_balanced_batches(labels, s.batch_size, s.per_class, s.seed, epoch)
        return random_batches(labels, s.batch_size, s.seed, epoch, drop_last=True)

    def embed(self, part: Part, network: nn.Module | None = None) -> Tensor:
        """All embeddings of a part: evaluation mode, no augmentation."""
        return embed(
            self.trainee if network is None else network,
            part.source,
            self.parts.plain,
            device=self.device,
            amp=self.amp and not self.frozen,
        )

    @property
    def modules(self) -> dict[str, nn.Module]:
        """What a checkpoint holds. The objective has the bank inside where it is the kernel loss."""
        return {"network": self.network, "objective": self.objective}

    def keep(self) -> None:
        """Remember this epoch as the best; on the disk it is with the next checkpoint."""
        self.best = {name: tensor.clone() for name, tensor in tensors_of(self.modules).items()}

    def go_back(self) -> None:
        """Return to the best epoch, where one was kept."""
        if self.best:
            put_back(self.modules, self.best, self.folder)

    def save(self) -> None:
        if self.refresher.history:
            self.at.last_refresh = vars(self.refresher.history[-1])
        self.at.overrun = self.refresher.overrun
        save_checkpoint(self.folder, self.modules, self.optimiser, vars(self.at), self.best)

    def resume(self) -> None:
        state, self.best = load_checkpoint(self.folder, self.modules, self.optimiser)
        at = Progress(**state)
        if at.data != self.at.data:
            raise InputError(
                f"The run in {self.folder.parent} was started with other images or another split. "
                "Resume it with its own data, or start a new run in another folder."
            )
        self.at = at
        self.refresher.overrun = self.at.overrun
        if self.at.last_refresh:
            self.refresher.history.append(Refreshed(**self.at.last_refresh))


def fingerprint(split: Split) -> str:
    """A hash of the images' names, labels and boxes; their folder may move."""
    rows = [f"{path.name}\t{label}\n" for part in split for path, label in zip(part.paths, part.labels.tolist())]
    rows += [str(part.boxes.tolist()) for part in split if part.boxes is not None]
    return hashlib.sha256("\n".join(rows).encode("utf-8", "surrogateescape")).hexdigest()


def as_numbers(scores: dict[str, Any]) -> dict[str, float]:
    """Scores rounded for a log a person reads."""
    return {key: round(float(value), 6) for key, value in scores.items()}
