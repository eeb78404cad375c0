"""The settings of a training run, each with its help, its limits and the reason for its default."""

import dataclasses
import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nngk import defaults
from nngk.errors import InputError
from nngk.training.fields import about, check_values, setting

LARGEST = 1e6  # of numbers that have no limit of their own
# What may change when a run goes on elsewhere.
OF_THE_MACHINE = ("device", "threads", "resident_gib", "compile", "bank", "shard_network")

JOB = "The job"
NETWORK = "The network"
IMAGES = "The images"
KERNELS = "The kernels"
BANK = "The bank of centres"
OPTIMISATION = "The optimisation"
MACHINE = "The machine"
GROUPS = (JOB, NETWORK, IMAGES, KERNELS, BANK, OPTIMISATION, MACHINE)

# Settings of the version before and the defaults that they had; they were found to make no difference.
RETIRED: dict[str, Any] = {"margin": 0.0, "write_back": False}
# What runs did before a setting existed, where that is not its default now: they squashed images, and kept those that
# were held out from the model.
BEFORE: dict[str, Any] = {"squash": True, "hold_out": True, "thumbnails": False}
# Values of the version before, and what to use instead.
RETIRED_VALUES = {
    ("compile", "default"): "use 'auto' or 'graphs', which are faster, or 'off'",
    ("compile", "reduce-overhead"): "use 'auto' or 'graphs', which are faster, or 'off'",
}


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run besides its data.

    The defaults are our recipe for a network that is trained to recognise classes. :mod:`nngk.training.presets` knows
    what suits another task, a certain network or a frozen one; ``nngk train`` takes what it says.

    Each field says in its metadata what it does and what it accepts. The checks here, the options of the command line
    and docs/reference.md read it there.

    >>> Settings(task="metric", dim=32).n_neighbours
    200
    """

    task: Literal["classify", "metric"] = setting(
        "classify",
        JOB,
        "Recognise the training classes (classify), or compare images of classes never seen (metric). "
        "The task decides how the data are split and what is scored; the loss and the loop are the same.",
        everyday=True,
    )
    loss: str = setting(
        "nngk",
        JOB,
        "Train with this loss, one of those that 'nngk losses' lists. "
        "The default is the Gaussian kernel loss; the others are there to compare it with.",
        form="NAME",
    )
    teacher: str | None = setting(
        None,
        JOB,
        "Learn the distances that this model finds between images, in place of classes: a second generation, for the "
        "task metric. It is a model's folder, or several with commas between them; 'none' learns from classes.",
        form="FOLDER[,FOLDER]",
        empty="none",
    )

    network: str = setting(
        defaults.NETWORK,
        NETWORK,
        "Use this network, one of those that 'nngk networks' lists. "
        "The default is installed with its weights, so that nothing is downloaded, and is fast enough for a CPU.",
        form="NAME",
        everyday=True,
    )
    weights: str = setting(
        defaults.WEIGHTS,
        NETWORK,
        "Start from 'imagenet' weights, 'random' ones, or those in a file.",
        form="SOURCE",
        everyday=True,
    )
    dim: int | None = setting(
        defaults.DIM,
        NETWORK,
        "Give embeddings this many dimensions; 'none' takes the network's own features. "
        "Fewer dimensions serve the known classes as well, but not those that are added later.",
        least=1,
        most=65536,
        empty="none",
        everyday=True,
    )
    wide: int | None = setting(
        None,
        NETWORK,
        "Train embeddings of this many dimensions and reduce them to 'dim' at the end by principal components. "
        "With 'auto' they are trained at the size of 'dim'. A narrow embedding finds unseen classes better when it "
        "has been trained wide.",
        least=1,
        most=16384,
        empty="auto",
    )
    whiten: float | None = setting(
        0.0,
        NETWORK,
        "Even out the principal components of the embeddings when training ends: 0 leaves the spread of each as it is, "
        "1 makes all equal. With 'auto' it is chosen on validation classes for the task metric, and 0 otherwise. "
        "It helps to tell unseen classes apart where the training classes differ in a few directions only.",
        least=0,
        most=1,
        empty="auto",
    )
    pool: Literal["avg", "max", "avg+max", "gem"] = setting(
        defaults.POOL,
        NETWORK,
        "Pool the feature maps by their average, their maximum, the sum of both, or a generalised mean. "
        "The sum finds 3 to 11 points more of Recall@1 than the average on unseen birds.",
    )
    layers: int | None = setting(
        defaults.LAYERS,
        NETWORK,
        "Pool this many of the last feature maps side by side. "
        "With 'auto' it is the number that serves the network best.",
        least=1,
        empty="auto",
    )
    layer_norm: bool = setting(
        defaults.LAYER_NORM,
        NETWORK,
        "Bring the pooled features to one scale before the embedding layer.",
    )
    normalise: bool = setting(
        defaults.NORMALISE,
        NETWORK,
        "Scale every embedding to unit length. This makes σ a temperature that suits every number of dimensions.",
    )
    dropout: float = setting(
        defaults.DROPOUT,
        NETWORK,
        "Drop this share of the pooled features in training steps. The bank is always computed without dropout.",
        least=0,
        below=1,
    )
    embedding_start: Literal["auto", "random", "projection", "discriminant"] = setting(
        "auto",
        NETWORK,
        "Start the embedding layer at random, as a projection that keeps distances, or as the linear discriminant of "
        "the features. With 'auto' it is the discriminant for a pretrained network, and random otherwise.",
    )
    shrinkage: float = setting(
        3.0,
        NETWORK,
        "Take classes to be this much rounder than measured when the embedding layer starts as a discriminant, "
        "because the classes to come spread in other directions than the training classes.",
        above=0,
        most=LARGEST,
    )
    freeze: bool | None = setting(
        None,
        NETWORK,
        "Train only the embedding layer, on features computed once, and leave the network as it is. "
        "By default this is done for a pretrained network where there is no GPU.",
        empty="auto",
        everyday=True,
    )
    freeze_batchnorm: bool | None = setting(
        None,
        NETWORK,
        "Keep the statistics of batch normalisation. "
        "By default those of a pretrained network are kept, because small batches would spoil them.",
        empty="auto",
    )

    resize: int | None = setting(
        None,
        IMAGES,
        "Bring the shorter side of images to this many pixels, before cropping. "
        "With 'auto' it is the size that the network's weights were trained with.",
        least=1,
        empty="auto",
    )
    detail: int | None = setting(
        None,
        IMAGES,
        "Cut resized crops from images whose shorter side has this many pixels, more than 'resize': those of small "
        "windows are sharper then. With 'none' they are cut from the images as they are read.",
        least=1,
        empty="none",
    )
    squash: bool = setting(
        False,
        IMAGES,
        "Make images squares of 'resize' pixels per side, as in the paper, instead of keeping their aspect.",
    )
    crop_size: int | None = setting(
        None,
        IMAGES,
        "Show the network crops of this many pixels per side. "
        "With 'auto' it is the size that the network's weights were trained with.",
        least=1,
        empty="auto",
    )
    train_crop_size: int | None = setting(
        None,
        IMAGES,
        "Use crops of this many pixels per side in training steps. With 'auto' it is 'crop_size'. "
        "A smaller size suits resized crops, in which objects are larger than in whole images.",
        least=1,
        empty="auto",
    )
    crop: Literal["resized", "random", "centre"] = setting(
        "resized",
        IMAGES,
        "Crop training images to a window of random size and shape, to one at a random place, or to their centre. "
        "Resized crops are the best for unseen classes.",
    )
    crop_scale: float = setting(
        0.16,
        IMAGES,
        "Let a resized crop keep no less than this share of the image's area.",
        above=0,
        most=1,
    )
    flip: bool = setting(
        True,
        IMAGES,
        "Mirror training images at random. Switch it off where left and right mean something, as with digits.",
        everyday=True,
    )
    val_fraction: float = setting(
        defaults.VAL_FRACTION,
        IMAGES,
        "Hold out this share for choosing the epoch and σ. "
        "It is a share of each class's images, or of the classes for the task metric.",
        least=0,
        below=1,
    )
    test_fraction: float = setting(
        defaults.TEST_FRACTION,
        IMAGES,
        "Hold out this share for the final measurement. Data that bring a split of their own keep it.",
        least=0,
        below=1,
    )
    hold_out: bool = setting(
        False,
        IMAGES,
        "Keep held-out images out of the saved model. "
        "By default the model is trained once more when they have measured, on all images.",
        everyday=True,
    )
    cache: str | None = setting(
        None,
        IMAGES,
        "Keep decoded images in this folder, or decode them every time (off). "
        "With 'auto' it is a folder for all runs, which 'nngk cache' shows and clears.",
        empty="auto",
        form="FOLDER|off|auto",
    )
    thumbnails: bool = setting(
        True,
        IMAGES,
        "Keep small pictures of the training images in the model, at most 6 KiB each and 64 MiB in all, "
        "so that its evidence can be shown where the images are not.",
    )

    n_neighbours: int | None = setting(
        200,
        KERNELS,
        "Compare each example with this many of its nearest centres; 'none' compares it with all centres. "
        "The paper has 100 to 200, which is more than fresh neighbour lists would need.",
        least=1,
        empty="none",
    )
    guaranteed: int = setting(
        1,
        KERNELS,
        "Give an example without a neighbour of its own class this many of its nearest such centres. "
        "With 0 the example has no gradient, as in the paper, unless there is a floor.",
        least=0,
        most=10_000,
    )
    floor: float = setting(
        0.0,
        KERNELS,
        "Let every class without a neighbour count as much as this, before probabilities are normalised, so that an "
        "example without a neighbour of its own class is pushed away from the others. "
        "The authors' released code has 1e-10. It is computed without the fused kernels of a GPU.",
        least=0,
        below=1,
    )
    sigma: float | Literal["auto", "validation", "learned"] = setting(
        "auto",
        KERNELS,
        "Set the width of the kernels: a number, tuned on the bank at the start (auto), chosen on the validation part "
        "(validation), or learned with the network (learned).",
        least=defaults.NARROWEST,
        most=defaults.WIDEST,
    )
    sigma_end: float | None = setting(
        None,
        KERNELS,
        "Let a σ that is a number change to this one, evenly over all steps; 'none' leaves it as it is.",
        least=defaults.NARROWEST,
        most=defaults.WIDEST,
        empty="none",
    )
    sigma_factor: float = setting(
        1.7,
        KERNELS,
        "Multiply the tuned σ by this factor. A wider kernel than the leave-one-out optimum teaches more of the "
        "neighbourhood; 1 to 2 are alike and 3 is worse.",
        above=0,
        most=LARGEST,
    )
    sigma_lr_factor: float = setting(
        10.0,
        KERNELS,
        "Multiply the learning rate of a learned σ by this factor. Being one number, it may move faster.",
        above=0,
        most=LARGEST,
    )
    drop_centres: float = setting(
        0.0,
        KERNELS,
        "Leave out this share of an example's neighbours at random in each step, so that it can rely on no single one.",
        least=0,
        below=1,
    )
    learn_weights: bool = setting(
        True,
        KERNELS,
        "Learn a weight for each centre, the w of the paper's equation 2.",
    )
    weight_lr_factor: float = setting(
        100.0,
        KERNELS,
        "Multiply the learning rate of the centres' weights by this factor. "
        "A weight moves only when its centre is a neighbour, so its steps are longer.",
        above=0,
        most=LARGEST,
    )

    update_interval: float | str = setting(
        1,
        BANK,
        "Refresh the centres every so many epochs, or steps if the word is added, as in '50 steps'. "
        "The paper has 1 to 10 epochs; fresher centres are better.",
        form="EPOCHS|'N steps'",
    )
    background: bool = setting(
        False,
        BANK,
        "Refresh the centres in a thread, from a snapshot of the network, while training goes on.",
    )
    bank: Literal["auto", "replicated", "sharded"] = setting(
        "auto",
        BANK,
        "Keep the whole bank in every process (replicated), or a part of its rows in each (sharded). "
        "With 'auto' it is sharded where a copy would take more than a quarter of a process's memory. "
        "It makes no difference to one process.",
    )
    search: str = setting(
        "auto",
        BANK,
        "Find neighbours with this engine: exact, fanng, faiss-flat, faiss-hnsw, faiss-ivf, hnswlib, pynndescent or "
        "usearch. With 'auto' it is exact or fanng, whichever takes less time for the number and size of the centres.",
        form="auto|NAME",
    )

    epochs: int = setting(
        30,
        OPTIMISATION,
        "Train for this many epochs. The one with the best validation score is kept.",
        least=1,
        everyday=True,
    )
    batch_size: int = setting(
        64,
        OPTIMISATION,
        "Train on this many images in each step.",
        least=2,
        most=2**20,
    )
    per_class: int = setting(
        0,
        OPTIMISATION,
        "Fill batches with this many images per class; 0 draws them at random, as in the paper.",
        least=0,
    )
    optimiser: Literal["adamw", "sgd"] = setting(
        "adamw",
        OPTIMISATION,
        "Optimise with AdamW or with stochastic gradient descent, which is the paper's.",
    )
    lr: float | None = setting(
        None,
        OPTIMISATION,
        "Set the network's learning rate. "
        "With 'auto' it is chosen on the validation images, or the recipe's for the task and the network.",
        above=0,
        most=LARGEST,
        empty="auto",
        everyday=True,
    )
    tune: bool = setting(
        True,
        OPTIMISATION,
        "Choose the rate by validation. It is done with short runs, where no rate is given. "
        "This is left out where it would take more than a few minutes. Test images are never looked at.",
        everyday=True,
    )
    embedding_lr_factor: float = setting(
        1.0,
        OPTIMISATION,
        "Multiply the learning rate of the embedding layer by this factor. A layer that starts as a discriminant needs "
        "no faster rate than the network: ten times the rate finds unseen birds worse.",
        above=0,
        most=LARGEST,
    )
    momentum: float = setting(0.9, OPTIMISATION, "Set the momentum of sgd.", least=0, most=LARGEST)
    weight_decay: float = setting(
        1e-4,
        OPTIMISATION,
        "Set the weight decay of matrices. Biases, the centres' weights and σ have none.",
        least=0,
        most=LARGEST,
    )
    warmup: float = setting(
        0.1,
        OPTIMISATION,
        "Let the learning rate rise over this share of all steps.",
        least=0,
        below=1,
    )
    schedule: Literal["cosine", "constant", "steps"] = setting(
        "cosine",
        OPTIMISATION,
        "Lower the learning rate along a cosine after the warm-up, keep it constant, or lower it in steps.",
    )
    step_epochs: int = setting(10, OPTIMISATION, "In steps, lower the rate after this many epochs.", least=1)
    step_factor: float = setting(
        0.5,
        OPTIMISATION,
        "In steps, lower the rate to this share of what it was.",
        above=0,
        most=1,
    )
    head_epochs: int = setting(
        0,
        OPTIMISATION,
        "Train the embedding layer and what the loss learns by themselves for this many epochs first.",
        least=0,
    )
    clip: float = setting(
        1.0,
        OPTIMISATION,
        "Scale down gradients whose norm is larger than this; 0 leaves them as they are.",
        least=0,
        most=LARGEST,
    )
    amp: bool | None = setting(
        None,
        OPTIMISATION,
        "Multiply in bfloat16, which has the range of float32. By default this is done on a GPU.",
        empty="auto",
    )
    patience: int = setting(
        0,
        OPTIMISATION,
        "Stop after this many epochs without a better validation score; 0 never stops early. "
        "The learning rate falls along the whole run, so the last epochs are usually the best.",
        least=0,
    )

    seed: int = setting(
        0,
        MACHINE,
        "Draw what is random from this seed. It decides the split, new weights, batches and crops.",
        least=0,
        below=2**31,
        everyday=True,
    )
    device: str = setting(
        defaults.DEVICE,
        MACHINE,
        "Train on the CPU or on a GPU; 'auto' takes a GPU if there is one.",
        form="auto|cpu|cuda",
        everyday=True,
    )
    threads: int = setting(2, MACHINE, "Decode images with this many threads.", least=1)
    shard_network: bool | None = setting(
        None,
        MACHINE,
        "Share out the network's weights, their gradients and the optimiser's moments over the processes (FSDP), "
        "instead of a copy in each. With 'auto' where copies would take more than half of a process's memory. "
        "It makes no difference to one process.",
        empty="auto",
    )
    resident_gib: float = setting(
        16.0,
        MACHINE,
        "Keep decoded images in the memory of the GPU up to this many GiB; 0 copies them batch by batch.",
        least=0,
        most=LARGEST,
    )
    compile: Literal["auto", "off", "graphs"] = setting(
        "auto",
        MACHINE,
        "Replay training steps as CUDA graphs, or launch them one by one (off). "
        "With 'auto' a GPU replays them, except for networks of timm, and for a frozen network.",
    )

    def __post_init__(self) -> None:
        check_values(self)
        listed = not self.drop_centres or bool(self.n_neighbours)
        self._require(listed, "drop_centres", "0 without neighbour lists ('n_neighbours' is none)")
        self._require(not self.floor or bool(self.n_neighbours), "floor", "0 without neighbour lists")
        self._require(not self.floor or self.bank != "sharded", "floor", "0 with a sharded bank")
        given = self.sigma_end is None or isinstance(self.sigma, int | float)
        self._require(given, "sigma_end", "none unless 'sigma' is a number")
        taught = (self.task, self.loss, bool(self.freeze)) == ("metric", "nngk", False)
        self._require(
            not self.teacher or taught, "teacher", "none unless a whole network is trained for the task metric"
        )
        self._require(not (self.freeze and self.head_epochs), "head_epochs", "0 for a frozen network")
        self._require(self.head_epochs < self.epochs, "head_epochs", f"less than the {self.epochs} epochs")
        layer = "where there is no embedding layer ('dim' is none)"
        self._require(bool(self.dim) or not self.whiten, "whiten", f"0 {layer}")
        self._require(not self.wide or bool(self.dim), "wide", f"auto {layer}")
        self._require(not self.wide or self.wide >= (self.dim or 0), "wide", "at least as large as 'dim'")

    @property
    def trains_kernels(self) -> bool:
        """Whether the loss is that of the kernels, so that the bank is a part of training."""
        return self.loss == "nngk" and not self.teacher

    def _require(self, holds: bool, field: str, expected: str) -> None:
        if not holds:
            raise InputError(f"The setting '{field}' must be {expected}; got {getattr(self, field)!r}.")

    def to_dict(self) -> dict[str, Any]:
        """Return names and values, as :meth:`from_dict` takes them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "the settings") -> "Settings":
        """Return settings from names and values, such as those of a file.

        A setting that can be empty takes the word for it ('auto' or 'none'). An unknown name is refused with the
        nearest known one, and a retired one is dropped at its old default and refused at any other value.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        chosen: dict[str, Any] = {}
        for name, value in values.items():
            if name in RETIRED:
                _require_retired_default(name, value, source)
                continue
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f" Did you mean '{near[0]}'?" if near else ""
                raise InputError(f"Unknown setting '{name}' in {source}.{hint}")
            if isinstance(value, str) and (name, value) in RETIRED_VALUES:
                instead = RETIRED_VALUES[name, value]
                raise InputError(f"{name} = {value!r} in {source} is no longer supported: {instead}.")
            chosen[name] = None if value and value == about(known[name]).empty else value
        return cls(**chosen)


def left_open(settings: Settings) -> list[str]:
    """Return the names of the settings that are 'auto', which the network, the machine or the data will settle.

    >>> "lr" in left_open(Settings()), "lr" in left_open(Settings(lr=1e-3))
    (True, False)
    """
    described = dataclasses.fields(settings)
    return [f.name for f in described if getattr(settings, f.name) is None and about(f).empty == "auto"]


def _require_retired_default(name: str, value: Any, source: str) -> None:
    if value != RETIRED[name]:
        raise InputError(
            f"{name} = {value!r} in {source} is no longer supported, because the setting made no difference: remove "
            "it. A run that was started with it can only be resumed by the version of nngk that started it."
        )


def read_config(path: Path) -> dict[str, Any]:
    """Return the settings written in a TOML file: plain ``name = value`` lines, with - or _ in the names."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"The settings file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"The settings file {path} is not valid TOML: {error}.") from None
    return {name.replace("-", "_"): value for name, value in values.items()}
