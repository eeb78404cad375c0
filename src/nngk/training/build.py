"""From settings and data to a run: every piece is made here, and nothing that is given is changed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from nngk.bank.centres import CentreBank
from nngk.bank.leave_one_out import training_sigma
from nngk.bank.refresh import Refresher, interval_in_steps
from nngk.bank.sharded import ShardedBank
from nngk.data import Split
from nngk.device import pick_device, require_bfloat16
from nngk.errors import InputError
from nngk.losses import create_loss, loss_class, samplers
from nngk.losses.gaussian import Rule
from nngk.losses.kernel_objective import KernelObjective
from nngk.losses.objective import Objective
from nngk.losses.relaxed import RelaxedContrastive
from nngk.networks import EmbeddingNetwork, InputSpec, create_network
from nngk.networks.recorded import always_recorded
from nngk.ranks import ALONE, Ranks
from nngk.search import Choice, Engine, choose, create_engine
from nngk.training.distributed import distributed, memory_share, one_per_machine_first, require_eager
from nngk.training.feed import Feed, Projection, feature_feed, image_feed, own_share, resident_feed
from nngk.training.graphs import Graphed
from nngk.training.model_weights import is_model, network_of_model
from nngk.training.optimiser import create_optimiser, rate_of
from nngk.training.presets import usual_rate
from nngk.training.run import Run, pretrained
from nngk.training.settings import Settings
from nngk.training.sharded_network import sharded, shards_network
from nngk.training.sharded_network import stepping as sharded_stepping
from nngk.training.teachers import teachers_of
from nngk.training.validation import classifier_sigma


def build_run(
    split: Split,
    settings: Settings,
    folder: Path,
    feed: Feed | None = None,
    ranks: Ranks = ALONE,
    teachers: Sequence[nn.Module] = (),
) -> Run:
    """Return a run of these settings on the tables of a split, before its first step; its folder exists.

    ``feed`` is what is read of the tables, where another run has prepared it. ``ranks`` are the processes that train
    together. ``teachers`` are networks at hand, in place of the models that the settings name.
    """
    device = pick_device(settings.device)
    amp = device.type == "cuda" if settings.amp is None else settings.amp
    if amp:
        require_bfloat16(device)
    torch.manual_seed(settings.seed)
    # Rows of images in the layout that convolutions read fastest.
    network = network_of(settings).to(device).to(memory_format=torch.channels_last)
    # What the machine decided is settled with it: a run that goes on elsewhere trains the same parameters.
    frozen = is_frozen(settings, network, device)
    s = replace(settings, freeze=frozen, lr=settings.lr or usual_rate(settings, frozen))
    _settle_trained(network, s)
    if feed is None:
        with one_per_machine_first(ranks):
            feed = image_feed(split, network.input, s, device, amp, ranks)
        feed = _prepared(feed, network, s, folder)
    trainee: nn.Module = Projection(network) if s.freeze else network
    stepping = _stepping(trainee, s, device, ranks)
    bank = new_bank(s, feed.train.labels, network.dim, device, ranks)
    search = choose_search(s, bank)
    sampler = samplers.per_class(s.per_class) if s.per_class else samplers.even
    refresher = Refresher(
        bank,
        lambda which: _centres(feed, which, refresher),
        interval_in_steps(s.update_interval, len(sampler(feed.train.labels, s.batch_size, s.seed, 0))),
        new_engine(search, s, bank),
        s.background,
        always_recorded if isinstance(stepping, Graphed) else None,
        ranks,
    )
    if s.trains_kernels:
        objective: Objective = _kernel_objective(s, refresher, sampler, feed, trainee)
    elif s.teacher:
        objective = RelaxedContrastive(teachers or teachers_of(s.teacher, network.input, device), sampler=sampler)
    else:
        objective = _other_objective(s, bank, search, len(split.train.class_names))
    objective = objective.to(device)
    own = objective.parameter_groups(rate_of(s))
    optimiser = create_optimiser(network.backbone_parameters(), network.embedding_parameters(), own, s)
    return Run(
        split=split,
        settings=s,
        folder=folder,
        device=device,
        amp=amp,
        network=network,
        trainee=trainee,
        stepping=stepping,
        feed=feed,
        bank=bank,
        refresher=refresher,
        objective=objective,
        optimiser=optimiser,
        steps_per_epoch=len(objective.batches(feed.train.labels, s.batch_size, s.seed, 0)),
        ranks=ranks,
        notes=[_about(search)] if s.trains_kernels and bank.n_neighbours is not None else [],
    )


def network_of(settings: Settings) -> EmbeddingNetwork:
    """Return the network that the settings describe, with its weights, its input and what its loss asks of it."""
    s = settings
    if is_model(s.weights):
        return network_of_model(s.weights)
    asked = RelaxedContrastive.normalise if s.teacher else loss_class(s.loss).normalise
    network = create_network(
        s.network,
        dim=s.wide or s.dim or None,
        weights=s.weights,
        pool=s.pool,
        layers=s.layers,
        dropout=s.dropout,
        layer_norm=s.layer_norm,
        normalise=s.normalise if asked is None else asked,
    )
    own = network.input.size
    network.input = input_spec(network, s)
    for size in {network.input.size, s.train_crop_size or own} - {own}:
        _require_readable(network, size)
    return network


def input_spec(network: EmbeddingNetwork, settings: Settings) -> InputSpec:
    """Return the weights' own input, with the sizes and the aspect that the settings ask for."""
    spec = network.input
    size = settings.crop_size or spec.size
    # Where only the crop is given, the margin around it keeps its proportion.
    resize = settings.resize or (spec.resize if size == spec.size else round(size * spec.resize / spec.size))
    return replace(spec, size=size, resize=resize, squash=settings.squash)


def is_frozen(settings: Settings, network: EmbeddingNetwork, device: torch.device) -> bool:
    """Return whether the embedding layer alone is trained: as set, else where our loss trains without a GPU.

    A network that was never trained has nothing to keep, and the other losses are compared as their papers train them.
    """
    if settings.freeze is not None:
        return settings.freeze
    return pretrained(network) and device.type == "cpu" and settings.trains_kernels


def _centres(feed: Feed, network: nn.Module, refresher: Refresher) -> Tensor:
    """Return new centres: of all training images, or of those whose centres this rank holds."""
    if refresher.bank.partial:
        return own_share(feed, network, refresher.beside)
    return feed.embed(network, feed.train, refresher.beside)


def new_bank(settings: Settings, labels: Tensor, dim: int, device: torch.device, ranks: Ranks = ALONE) -> CentreBank:
    """Return a bank for these training examples, without centres yet."""
    s = settings
    if is_sharded(s, len(labels), dim, device, ranks):
        bank: CentreBank = ShardedBank(labels, dim, s.n_neighbours or None, s.guaranteed, ranks=ranks)
    else:
        bank = CentreBank(labels, dim, s.n_neighbours or None, s.guaranteed)
    bank.theta.requires_grad_(settings.learn_weights)
    return bank.to(device)


def is_sharded(settings: Settings, m: int, dim: int, device: torch.device, ranks: Ranks) -> bool:
    """Return whether ranks share out the rows of the bank: as set, else where copies of it would be too large."""
    s = settings
    if ranks.count == 1 or not s.trains_kernels or s.bank == "replicated":
        return False
    if s.floor:  # needs the whole bank
        return False
    if s.bank == "sharded" or not s.n_neighbours:
        return s.bank == "sharded"
    row = 4 * dim + 8 * (s.n_neighbours + s.guaranteed) + 12  # a centre, a list, θ and its moments
    return ranks.any(m * row > memory_share(device) / 4)


def choose_search(settings: Settings, bank: CentreBank) -> Choice:
    """Return the search behind the neighbour lists: as set, else the one that suits the bank."""
    how = settings.search
    if how == "auto":
        rows = -(-len(bank) // bank.ranks.count) if isinstance(bank, ShardedBank) else len(bank)
        return choose(max(2, rows), bank.dim, bank.considered, bank.centres.device)
    return Choice(how, f"{how}, as set", 1.0 if how == "exact" else None)


def _about(search: Choice) -> str:
    recall = "" if search.recall is None else f"; expected recall {search.recall:.2f}"
    return f"Neighbour lists: {search.reason}{recall}."


def new_engine(search: Choice, settings: Settings, bank: CentreBank) -> Engine:
    """Return an engine without points for lists of a bank's size; it is kept from refresh to refresh."""
    n, dim = bank.centres.shape
    device = bank.centres.device
    return create_engine(search.name, dim=dim, n=n, k=bank.considered, device=device, seed=settings.seed)


def _settle_trained(network: EmbeddingNetwork, settings: Settings) -> None:
    """Freeze what is not trained of a network."""
    keep = settings.freeze_batchnorm
    if settings.freeze:
        network.backbone.requires_grad_(False)
        network.head.pool.requires_grad_(False)
    elif pretrained(network) if keep is None else keep:
        network.freeze_batchnorm()


def _prepared(feed: Feed, network: EmbeddingNetwork, settings: Settings, folder: Path) -> Feed:
    """Return the feed as steps read it: features of a frozen network, or images in the memory of the GPU."""
    if settings.freeze:
        shared = settings.cache if settings.cache not in (None, "off") else folder
        return feature_feed(feed, network, Path(shared))
    return resident_feed(feed, network.input.resize, settings)


def _stepping(trainee: nn.Module, settings: Settings, device: torch.device, ranks: Ranks) -> Callable[[Tensor], Tensor]:
    """Return how training steps call the network; refreshes and scores call it itself, with batches of other sizes."""
    how = settings.compile
    if ranks.count > 1:
        require_eager(how, ranks)
        if shards_network(settings, trainee, device, ranks):
            return sharded_stepping(sharded(trainee, device, ranks), ranks)
        return distributed(trainee, ranks)
    if how == "auto":
        # timm's networks are too many to know that each can be captured.
        known = not settings.network.startswith("timm/")
        how = "graphs" if device.type == "cuda" and known and not settings.freeze else "off"
    return Graphed(trainee, device) if how == "graphs" else trainee


def _kernel_objective(
    settings: Settings, refresher: Refresher, sampler: samplers.Sampler, feed: Feed, trainee: nn.Module
) -> KernelObjective:
    s = settings
    sigma: float | Rule
    course: Callable[[int], float] | None = None
    if isinstance(s.sigma, int | float):
        sigma = s.sigma
        if s.sigma_end is not None:
            steps = s.epochs * len(sampler(feed.train.labels, s.batch_size, s.seed, 0))
            course = partial(_between, sigma, s.sigma_end, steps)
    elif s.sigma == "validation":

        def sigma(bank: CentreBank) -> float:
            return classifier_sigma(bank, s.task, feed.embed(trainee, feed.val), feed.val.labels)
    else:
        sigma = partial(training_sigma, factor=s.sigma_factor)
    return KernelObjective(
        refresher,
        sigma,
        learn_sigma=s.sigma == "learned",
        drop=s.drop_centres,
        floor=s.floor,
        course=course,
        sampler=sampler,
        weight_factor=s.weight_lr_factor,
        sigma_factor=s.sigma_lr_factor,
    )


def _between(first: float, last: float, steps: int, step: int) -> float:
    """Return the number that a step has on the straight way from the first to the last.

    >>> [_between(10.0, 30.0, 4, step) for step in (0, 1, 4, 5)]
    [10.0, 15.0, 30.0, 30.0]
    """
    return first + (last - first) * min(1.0, step / steps)


def _other_objective(settings: Settings, bank: CentreBank, search: Choice, n_classes: int) -> Objective:
    s = settings
    # Smart mining reads the lists that a bank would have.
    options = {"engine": partial(new_engine, search, s, bank)} if s.loss == "smart-mining" else {}
    dim = bank.centres.shape[1]
    objective = create_loss(s.loss, dim=dim, n_classes=n_classes, n_examples=len(bank), seed=s.seed, **options)
    if (s.wide or s.whiten) and objective.has_logits and s.task == "classify":
        raise InputError(
            f"The settings 'wide' and 'whiten' are for embeddings: '{s.loss}' answers by a layer on top of them, "
            "which cannot be reduced. Leave both at 'auto'."
        )
    return objective


def _require_readable(network: EmbeddingNetwork, size: int) -> None:
    """Raise InputError if pictures of this size leave nothing after the network's poolings."""
    training = network.training
    try:
        with torch.no_grad():
            network.eval()(torch.zeros(1, 3, size, size))
    except RuntimeError:
        name = network.config["name"]
        raise InputError(f"{name} cannot read pictures of {size} × {size} pixels: set --crop-size higher.") from None
    finally:
        network.train(training)
