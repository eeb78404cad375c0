"""The losses by name. Nothing heavy is imported until one is created, so that listing them is quick."""

import inspect
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nngk.errors import InputError

if TYPE_CHECKING:
    from nngk.losses.objective import BatchLoss, Objective


@dataclass(frozen=True)
class LossInfo:
    """What somebody who chooses a loss wants to know.

    >>> LOSSES["n-pairs"].sampler
    'pairs'
    """

    name: str
    summary: str
    paper: str
    sampler: str  # 'random', 'per-class', 'pairs' or 'triplets'
    batch: str  # what a batch is made of by default
    home: str  # module and class
    extra: str | None = None  # the optional extra it needs

    @property
    def needs(self) -> str:
        """The extra to install, or nothing."""
        return f"nngk[{self.extra}]" if self.extra else ""


RANDOM = ("random", "all images in random order")
PER_CLASS = ("per-class", "4 images of each of batch/4 classes")
PAIRS = ("pairs", "2 images of each of batch/2 classes")
TRIPLETS = ("triplets", "batch/3 triplets: anchor, positive, negative")

_ALL = (
    LossInfo(
        "nngk",
        "nearest-neighbour Gaussian kernels over all training images",
        "Meyer, Harwood, Drummond: Deep metric learning and image classification with nearest neighbour Gaussian "
        "kernels, ICIP 2018",
        *RANDOM,
        home="nngk.losses.gaussian:GaussianKernelLoss",
    ),
    LossInfo(
        "softmax",
        "cross-entropy on a linear layer",
        "the common classifier",
        *RANDOM,
        home="nngk.losses.softmax:Softmax",
    ),
    LossInfo(
        "normalized-softmax",
        "cross-entropy of cosines over a temperature",
        "Zhai, Wu: Classification is a strong baseline for deep metric learning, BMVC 2019",
        *RANDOM,
        home="nngk.losses.library:NormalizedSoftmax",
        extra="rivals",
    ),
    LossInfo(
        "triplet-semihard",
        "triplets with the nearest negative that is farther than the positive",
        "Schroff, Kalenichenko, Philbin: FaceNet, CVPR 2015",
        *PER_CLASS,
        home="nngk.losses.library:SemiHardTriplet",
        extra="rivals",
    ),
    LossInfo(
        "lifted-structure",
        "every positive pair against all negatives of both",
        "Song, Xiang, Jegelka, Savarese: Deep metric learning via lifted structured feature embedding, CVPR 2016",
        *PER_CLASS,
        home="nngk.losses.library:LiftedStructure",
        extra="rivals",
    ),
    LossInfo(
        "n-pairs",
        "one pair per class, each against the others' positives",
        "Sohn: Improved deep metric learning with multi-class N-pair loss objective, NIPS 2016",
        *PAIRS,
        home="nngk.losses.library:NPairs",
        extra="rivals",
    ),
    LossInfo(
        "triplet-global",
        "triplets plus the means and variances of all matching and other distances",
        "Kumar, Carneiro, Reid: Learning local image descriptors with deep siamese and triplet convolutional "
        "networks by minimising global loss functions, CVPR 2016",
        *TRIPLETS,
        home="nngk.losses.triplet_global:TripletGlobal",
    ),
    LossInfo(
        "clustering",
        "the right clustering of the batch against the best wrong one",
        "Song, Jegelka, Rathod, Murphy: Deep metric learning via facility location, CVPR 2017",
        *PER_CLASS,
        home="nngk.losses.structured_clustering:Clustering",
    ),
    LossInfo(
        "smart-mining",
        "triplet-global on triplets mined from neighbour lists at a steered difficulty",
        "Harwood, Kumar, Carneiro, Reid, Drummond: Smart mining for deep metric learning, ICCV 2017",
        *TRIPLETS,
        home="nngk.losses.smart_mining:SmartMining",
    ),
    LossInfo(
        "proxy-nca",
        "neighbourhood components with one learned proxy per class",
        "Movshovitz-Attias, Toshev, Leung, Ioffe, Singh: No fuss distance metric learning using proxies, ICCV 2017",
        *RANDOM,
        home="nngk.losses.library:ProxyNCA",
        extra="rivals",
    ),
    LossInfo(
        "proxy-anchor",
        "each proxy against all images of the batch",
        "Kim, Kim, Cho, Kwak: Proxy anchor loss for deep metric learning, CVPR 2020",
        *RANDOM,
        home="nngk.losses.library:ProxyAnchor",
        extra="rivals",
    ),
    LossInfo(
        "multi-similarity",
        "mined pairs weighted by self- and relative similarity",
        "Wang, Han, Huang, Dong, Scott: Multi-similarity loss with general pair weighting, CVPR 2019",
        *PER_CLASS,
        home="nngk.losses.library:MultiSimilarity",
        extra="rivals",
    ),
    LossInfo(
        "soft-triple",
        "softmax with several centres per class",
        "Qian, Shang, Sun, Hu, Li, Jin: SoftTriple loss: deep metric learning without triplet sampling, ICCV 2019",
        *RANDOM,
        home="nngk.losses.library:SoftTriple",
        extra="rivals",
    ),
    LossInfo(
        "supcon",
        "each image's positives against everything else in the batch",
        "Khosla and others: Supervised contrastive learning, NeurIPS 2020",
        *PER_CLASS,
        home="nngk.losses.library:SupCon",
        extra="rivals",
    ),
)

LOSSES: dict[str, LossInfo] = {info.name: info for info in _ALL}


def require_loss(name: str) -> str:
    """Return the name itself; raise InputError with the names there are if it is none of them."""
    if name not in LOSSES:
        raise InputError(f"There is no loss '{name}'. Choose one of: {', '.join(LOSSES)}.")
    return name


def loss_class(name: str) -> "type[Objective]":
    """Return the class of a loss, which says what it asks of the network.

    >>> loss_class("softmax").normalise
    False
    """
    module, kind = LOSSES[require_loss(name)].home.split(":")
    found: type[Objective] = getattr(import_module(module), kind)
    return found


def create_loss(
    name: str, *, dim: int, n_classes: int, n_examples: int | None = None, seed: int = 0, **options: Any
) -> "BatchLoss":
    """Return a loss for embeddings of ``dim`` dimensions, its own parameters drawn from ``seed``.

    ``options`` are the loss's own: margins, temperatures, images per class. ``n_examples``, where known, lets an
    impossible request fail here rather than in the first epoch.

    >>> create_loss("softmax", dim=8, n_classes=3).logits
    <bound method Softmax.logits of Softmax(
      (linear): Linear(in_features=8, out_features=3, bias=True)
    )>
    """
    import torch

    if require_loss(name) == "nngk":
        raise InputError(f"The loss '{name}' needs a bank of centres: build it with nngk.GaussianKernelLoss.")
    if dim < 1 or n_classes < 2 or (n_examples is not None and n_examples < 2):
        raise InputError(
            f"A loss needs at least one dimension, two classes and two examples; got dim={dim}, "
            f"n_classes={n_classes}, n_examples={n_examples}."
        )
    build: Any = loss_class(name)
    known = _options(build)
    unknown = sorted(set(options) - known)
    if unknown:
        raise InputError(
            f"The loss '{name}' has no option '{unknown[0]}'. It has: {', '.join(sorted(known)) or 'none'}."
        )
    sizes = {"dim": dim, "n_classes": n_classes}
    takes = inspect.signature(build).parameters
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        loss: BatchLoss = build(**{k: v for k, v in sizes.items() if k in takes}, **options)
    return loss


def _options(build: Any) -> set[str]:
    """Return the names of a loss's options, its parents' included where it hands them on."""
    names: set[str] = set()
    for kind in build.__mro__:
        if "__init__" not in vars(kind):
            continue
        parameters = inspect.signature(kind.__init__).parameters.values()
        names |= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return names - {"dim", "n_classes"}
