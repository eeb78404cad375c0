"""The settings of a training run, with the reason beside each default."""

import dataclasses
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from nngk.errors import InputError
from nngk.kernel.widths import NARROWEST, WIDEST

LARGEST = 1e6  # of numbers that have no limit of their own
OF_THE_MACHINE = ("device", "threads", "resident_gib", "compile")  # what may change when a run goes on elsewhere
Start = Literal["auto", "random", "projection", "discriminant"]  # of the embedding layer


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run, besides its data.

    >>> Settings(task="metric", dim=32).n_neighbours
    100
    """

    # -- the job
    task: Literal["classify", "metric"] = "classify"  # decides the split and the score; loss and loop are the same
    loss: str = "nngk"  # any name that 'nngk losses' lists

    # -- the network
    network: str = "efficientnet-lite0"  # any name of 'nngk networks'; this one comes with pip, weights and all
    weights: str = "imagenet"  # 'imagenet', 'random' or a file
    dim: int | None = 512  # size of the embedding; 0 adds no layer. Fewer serve known classes, not those to come
    wide: int | None = None  # size while training, reduced to 'dim' at the end by principal components; auto: the same
    whiten: float = 0.0  # evens out what 'wide' reduced: 0 leaves its components' spread, 1 makes it the same for all
    pool: Literal["avg", "max", "avg+max", "gem"] = "avg+max"  # of the feature map; +3 to 11 Recall@1 over avg on birds
    layers: int | None = None  # of the last feature maps, pooled side by side; auto: as many as serve the network best
    layer_norm: bool = True  # of the pooled features, whose scale it tames before the embedding layer
    normalise: bool = True  # embeddings to unit length, which makes σ a temperature, the same for every size
    dropout: float = 0.0  # of the pooled features, on training embeddings only; the bank never has it
    embedding_start: Start = "auto"  # auto: the features' discriminant if pretrained; a projection keeps distances
    shrinkage: float = 3.0  # for 'discriminant': how much rounder than measured a class is taken to be
    freeze: bool | None = None  # train the embedding layer alone, on features cached once; auto: where there is no GPU
    freeze_batchnorm: bool | None = None  # keep its statistics; auto: pretrained ones, which small batches would spoil

    # -- the images
    resize: int | None = None  # shorter side of the image before cropping; auto: what the weights were trained with
    squash: bool = False  # make images squares of 'resize', as in the paper, instead of keeping their aspect
    crop_size: int | None = None  # side of the crop; auto: likewise
    train_crop_size: int | None = None  # side of training crops; auto: the same
    crop: Literal["resized", "random", "centre"] = "resized"  # of training images; 'resized' is best for unseen classes
    crop_scale: float = 0.16  # smallest share of the image that a resized crop may keep
    flip: bool = True  # mirror at random; switch off where left and right mean something, as with digits
    val_fraction: float = 0.2  # held out to choose the epoch and σ: images of each class, or whole classes (metric)
    test_fraction: float = 0.2  # held out and used once; ignored where the data bring their own split
    cache: str | None = None  # folder of the decoded images, 'off' to decode each time; auto: beside the run

    # -- the kernels
    n_neighbours: int | None = 100  # the paper's, longer than fresh lists would need; 0: all centres
    guaranteed: int = 1  # same-class centres for an example that finds none; 0: it sits out, as in the paper
    sigma: float | Literal["auto", "validation", "learned"] = "auto"  # a number; auto: tuned on the bank at the start
    sigma_factor: float = 1.5  # times the leave-one-out optimum: a wider kernel teaches more of the neighbourhood
    sigma_lr_factor: float = 10.0  # for 'learned': log σ is one number and may move faster than the network
    margin: float = 0.0  # raises the other classes' kernels, in log: an example that is told apart goes on learning
    drop_centres: float = 0.0  # share of an example's neighbours that a step leaves out: no single one suffices then
    learn_weights: bool = True  # the w of equation 2; worth 0.69 points in the paper
    weight_lr_factor: float = 100.0  # a centre's weight is touched only when it is a neighbour, so its steps are longer

    # -- the bank
    update_interval: float | str = 1  # epochs between refreshes (the paper: 1 to 10), or '50 steps'
    background: bool = False  # refresh in a thread, from a snapshot, while training goes on
    write_back: bool = False  # also let each batch replace its own centres
    search: str = "auto"  # engine of the neighbour lists

    # -- the optimisation
    epochs: int = 20  # the training classes are fitted in 5 to 10; early stopping takes the best
    batch_size: int = 32  # images a step
    per_class: int = 0  # images of a class in a batch; 0: batches at random, as in the paper
    optimiser: Literal["adamw", "sgd"] = "adamw"  # the paper's is sgd
    lr: float = 3e-5  # for a pretrained network: higher rates forget what helps unseen classes
    embedding_lr_factor: float = 10.0  # the embedding layer starts at random and must catch up
    momentum: float = 0.9  # of sgd
    weight_decay: float = 1e-4  # of matrices; not of biases, centre weights and σ
    warmup: float = 0.1  # share of the steps in which the rate rises
    schedule: Literal["cosine", "constant"] = "cosine"  # of the rate after that
    clip: float = 1.0  # largest gradient norm; 0: none
    amp: bool | None = None  # bfloat16 products; auto: on a GPU
    patience: int = 10  # epochs without a better validation score before stopping; 0: never stop early

    # -- the machine
    seed: int = 0  # of the split, the weights, the batches and the crops
    device: str = "auto"  # 'cpu', 'cuda'; auto: a GPU if there is one
    threads: int = 2  # that decode images
    resident_gib: float = 16.0  # decoded images up to this size stay in the GPU's memory; 0: they come batch by batch
    # CUDA graphs, or two modes of torch.compile, for the network in training steps
    compile: Literal["auto", "off", "graphs", "default", "reduce-overhead"] = "auto"  # of steps; auto: graphs on a GPU

    def __post_init__(self) -> None:
        for field, hint in get_type_hints(type(self)).items():
            value = getattr(self, field)
            if not _fits(value, hint):
                raise InputError(f"The setting '{field}' must be {_describe(hint)}; got {value!r}.")
        self._require(self.epochs >= 1, "epochs", "at least 1")
        self._require(2 <= self.batch_size <= 2**20, "batch_size", "from 2 to 1048576")
        self._require(self.guaranteed <= 10_000, "guaranteed", "at most 10000")
        self._require(self.layers is None or self.layers >= 1, "layers", "at least 1")
        self._require(0 < self.lr <= LARGEST, "lr", f"above 0 and up to {LARGEST:g}")
        self._require(self.seed < 2**31, "seed", "below 2147483648")
        for field in ("dropout", "drop_centres"):
            self._require(0 <= getattr(self, field) < 1, field, "from 0 to below 1")
        self._require(0 <= self.val_fraction < 1, "val_fraction", "from 0 to below 1")
        self._require(0 <= self.test_fraction < 1, "test_fraction", "from 0 to below 1")
        self._require(0 < self.crop_scale <= 1, "crop_scale", "above 0 and up to 1")
        self._require(0 <= self.warmup < 1, "warmup", "from 0 to below 1")
        self._require(0 <= self.whiten <= 1, "whiten", "from 0 to 1")
        for field in ("dim", "n_neighbours", "resize", "crop_size", "train_crop_size"):
            self._require((getattr(self, field) or 0) >= 0, field, "at least 1, or 0 for none")
        self._require((self.dim or 0) <= 65536, "dim", "at most 65536")
        for field in ("guaranteed", "per_class", "patience", "seed"):
            self._require(getattr(self, field) >= 0, field, "at least 0")
        for field in ("clip", "weight_decay", "momentum", "margin"):
            self._require(0 <= getattr(self, field) <= LARGEST, field, f"from 0 to {LARGEST:g}")
        for field in ("sigma_factor", "sigma_lr_factor", "weight_lr_factor", "embedding_lr_factor", "shrinkage"):
            self._require(0 < getattr(self, field) <= LARGEST, field, f"above 0 and up to {LARGEST:g}")
        self._require(self.threads >= 1, "threads", "at least 1")
        self._require(0 <= self.resident_gib < math.inf, "resident_gib", "at least 0")
        listed = not self.drop_centres or bool(self.n_neighbours)
        self._require(listed, "drop_centres", "0 without neighbour lists (n_neighbours empty)")
        self._require(bool(self.wide) or not self.whiten, "whiten", "0 where nothing is reduced ('wide' empty)")
        self._require(not self.wide or bool(self.dim), "wide", "empty without an embedding layer ('dim' 0)")
        self._require((self.wide or 0) <= 16384, "wide", "at most 16384")
        self._require(not self.wide or self.wide >= (self.dim or math.inf), "wide", "at least as large as 'dim'")
        if isinstance(self.sigma, int | float):
            self._require(NARROWEST <= self.sigma <= WIDEST, "sigma", f"from {NARROWEST:g} to {WIDEST:g}")

    def _require(self, holds: bool, field: str, expected: str) -> None:
        if not holds:
            raise InputError(f"The setting '{field}' must be {expected}; got {getattr(self, field)!r}.")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "the settings") -> "Settings":
        """Settings from names and values; an unknown name is refused with the nearest known one."""
        known = {f.name for f in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                import difflib

                near = difflib.get_close_matches(name, known, 1)
                hint = f" Did you mean '{near[0]}'?" if near else ""
                raise InputError(f"Unknown setting '{name}' in {source}.{hint}")
        return cls(**values)


def read_config(path: Path) -> dict[str, Any]:
    """Settings written in a TOML file: plain ``name = value`` lines, with - or _ in the names."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"The settings file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"The settings file {path} is not valid TOML: {error}.") from None
    return {name.replace("-", "_"): value for name, value in values.items()}


def _fits(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Literal:
        return value in get_args(hint)
    if get_args(hint):
        return any(_fits(value, part) for part in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(repr(choice) for choice in get_args(hint))
    if get_args(hint):
        return " or ".join(_describe(part) for part in get_args(hint))
    return {float: "a number", int: "a whole number", str: "a text", bool: "true or false", type(None): "empty"}.get(
        hint, str(hint)
    )
