"""Smart mining (Harwood, Kumar, Carneiro, Reid and Drummond, ICCV 2017)."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nngk.data.sampling import classes_of, generator
from nngk.errors import InputError
from nngk.losses import samplers
from nngk.losses.mining import Mined, mine, next_kappa
from nngk.losses.triplet_global import TripletGlobal
from nngk.search import Engine, Exact

# Buffers whose length grows with training, so that a checkpoint's may differ from a new loss's.
GROWING = ("history", "triplets")


class SmartMining(TripletGlobal):
    """Triplet + global loss on triplets mined from each epoch's neighbour lists, at a steered difficulty.

    Equation: the loss is that of ``triplet-global``. An anchor x with neighbours in order of distance, of which x⁺ is
    the first of its class, passes over everything nearer than ``κ |x - x⁺|²``; its triplet is the first negative
    after that, with the first positive after the negative. κ is set before each epoch from a least-squares line
    ``κ = α e + β`` through the past epochs' training errors e (the share of triplets with a loss above zero), at the
    target error.

    Notes: the lists come from one pass over the training set before every epoch, by any engine of ``nngk.search``
    (the paper's is FANNG). An anchor whose list has no positive or no negative to use gets a random triplet. κ below
    one changes nothing, since the first positive bounds the walk anyway.

    Paper's settings: random triplets in the first two epochs (``warm_up``), then all triplets mined (``mined``; half
    suffices), target error 0.5 to 0.75 (``target``); SGD at 0.1 halved every three epochs, 64 dimensions.

    >>> float(SmartMining().kappa)
    1.0
    """

    name = "smart-mining"
    history: Tensor  # (epochs, 2): training error, κ
    kappa: Tensor
    counts: Tensor  # violating triplets and all triplets of this epoch
    triplets: Tensor  # (t, 3) of epoch ``mined_epoch``
    mined_epoch: Tensor

    def __init__(
        self,
        *,
        target: float = 0.6,
        kappa: float = 1.0,
        highest_kappa: float = 100.0,
        neighbours: int = 200,
        mined: float = 1.0,
        warm_up: int = 2,
        window: int = 5,
        engine: Callable[[], Engine] = Exact,
        **triplet_options: float,
    ) -> None:
        super().__init__(**triplet_options)
        for what, share in (("target", target), ("mined", mined)):
            if not 0 < share <= 1:
                raise InputError(f"Smart mining's '{what}' is a share above 0 and at most 1, got {share}.")
        if kappa < 1 or highest_kappa < kappa or neighbours < 2 or window < 2:
            raise InputError(
                "Smart mining needs 1 <= kappa <= highest_kappa, two neighbours and a window of two epochs at "
                f"least; got kappa={kappa}, highest_kappa={highest_kappa}, neighbours={neighbours}, window={window}."
            )
        self.target, self.mined, self.warm_up, self.window = target, mined, warm_up, window
        self.highest_kappa, self.neighbours, self.engine = highest_kappa, neighbours, engine
        self.register_buffer("history", torch.empty(0, 2, dtype=torch.float64))
        self.register_buffer("kappa", torch.tensor(kappa, dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(2, dtype=torch.long))
        self.register_buffer("triplets", torch.empty(0, 3, dtype=torch.long))
        self.register_buffer("mined_epoch", torch.tensor(-1))
        self._lists: tuple[Tensor, Tensor] | None = None

    def start_epoch(self, epoch: int, embed: Callable[[], Tensor] | None = None) -> None:
        """Find every example's neighbours; random epochs need none, nor does an epoch that a checkpoint brought."""
        self._lists = None
        if epoch < self.warm_up or epoch == int(self.mined_epoch):
            return
        if embed is None:
            raise InputError(
                f"Smart mining needs the embeddings of all training images from epoch {self.warm_up + 1} on: "
                "call start_epoch(epoch, embed) with a function that computes them."
            )
        embeddings = embed().detach().float()
        engine = self.engine()
        engine.add(functional.normalize(embeddings))
        distances, neighbours = engine.all_neighbours(min(self.neighbours, len(embeddings) - 1))
        self._lists = distances.cpu(), neighbours.cpu()

    def batches(self, labels: Tensor, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
        if epoch < self.warm_up:
            return samplers.triplets(labels, batch_size, seed, epoch)
        if epoch != int(self.mined_epoch):
            chosen = self._mine(labels, seed, epoch)
            self.triplets = torch.tensor([t[:3] for t in chosen], device=self.triplets.device)
            self.mined_epoch.fill_(epoch)
        return samplers.triplet_batches(self.triplets.cpu(), batch_size)

    def _mine(self, labels: Tensor, seed: int, epoch: int) -> list[Mined]:
        if self._lists is None or len(self._lists[0]) != len(labels):
            raise InputError("Smart mining has no neighbour lists of these examples: call start_epoch first.")
        classes = classes_of(labels, "a triplet")
        rng = generator(seed, epoch)
        anchors = samplers.triplet_anchors(len(labels), rng)
        distances, neighbours = (values[anchors].tolist() for values in self._lists)
        kappa = float(self.kappa)
        chosen = []
        for anchor, near, d in zip(anchors, neighbours, distances):
            if rng.random() < self.mined:
                found = [j for j in near if j >= 0]  # an approximate engine may return fewer
                chosen.append(mine(anchor, found, d[: len(found)], classes, kappa, rng))
            else:
                chosen.append(Mined(anchor, *samplers.random_pair(anchor, classes, rng), False))
        return chosen

    def observe(self, ratios: Tensor) -> None:
        if self.training:
            self.counts += torch.stack([(ratios > 0).sum(), ratios.new_tensor(len(ratios)).long()])

    def end_epoch(self) -> None:
        """Note the epoch's training error, where it was mined, and set κ for the next."""
        violating, total = self.counts.tolist()
        self.counts.zero_()
        if not total or int(self.mined_epoch) < 0:
            return
        row = self.history.new_tensor([[violating / total, float(self.kappa)]])
        self.history = torch.cat([self.history, row])
        past = [(e, k) for e, k in self.history[-self.window :].tolist()]
        self.kappa.fill_(next_kappa(past, self.target, lowest=1.0, highest=self.highest_kappa))

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        for name in GROWING:
            if prefix + name in state_dict:
                setattr(self, name, getattr(self, name).new_empty(state_dict[prefix + name].shape))
        super()._load_from_state_dict(state_dict, prefix, *args)
