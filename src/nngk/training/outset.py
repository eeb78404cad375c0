"""What is settled before a run: its settings, its folder and its tables."""

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from nngk.bank.refresh import interval_in_steps
from nngk.data import ImageTable, Split, read_images, require_pairs, require_training_images, split
from nngk.data.broken import Tolerance, without_broken
from nngk.device import pick_device
from nngk.errors import InputError
from nngk.losses import require_loss
from nngk.networks.backbones.recipes import recipe
from nngk.ranks import ALONE, Ranks
from nngk.search import require_engine
from nngk.training.checkpoint import SETTINGS, read_settings
from nngk.training.distributed import one_per_machine_first
from nngk.training.feed import cache_of
from nngk.training.model_weights import is_model
from nngk.training.presets import preset_settings
from nngk.training.settings import BEFORE, OF_THE_MACHINE, Settings, left_open
from nngk.training.tune import RECORD


def completed(data: Any, given: Mapping[str, Any], named: Collection[str] | None) -> tuple[Any, Settings, Any]:
    """Return the data as a table, what was given completed by the recipe for them, and the names that were given."""
    asked = Settings.from_dict(dict(given))
    table = read_table(data, asked)
    gpu = pick_device(asked.device).type == "cuda"
    return table, preset_settings(None, given, classes=len(table.class_names), gpu=gpu), list(given) + list(named or ())


def read_table(data: Any, settings: Settings) -> ImageTable:
    """Return data of any kind as a table."""
    return data if isinstance(data, ImageTable) else read_images(data, task=settings.task, seed=settings.seed)


def is_tuning(folder: Path) -> bool:
    """Return whether the run of a folder was stopped while it chose its learning rate."""
    tuning = (folder / SETTINGS).exists() and (folder / RECORD).exists()
    return tuning and read_settings(folder).get("lr", 0.0) is None


def is_preparing(folder: Path) -> bool:
    """Return whether the run of a folder was stopped while it computed features, before its first step."""
    return any(folder.glob("features-*")) and not (folder / "checkpoint.json").exists() and not is_tuning(folder)


def require_free(out: Path, force: bool) -> None:
    """Raise InputError if a new run would replace a run that was stopped, or a model without ``force``."""
    if (out / "run" / "checkpoint.json").exists():
        raise InputError(f"{out} holds an unfinished run. Continue it with --resume, or choose another folder.")
    if (out / "model.json").exists() and not force:
        raise InputError(f"{out} holds a model. Choose another folder with --out, or replace it with --force.")


def training_tables(data: Any, settings: Settings, tolerance: Tolerance | None = None, ranks: Ranks = ALONE) -> Split:
    """Return the tables to train with; raise InputError for what would otherwise show after minutes of decoding.

    Images that cannot be read are left out, as far as ``tolerance`` allows. Without a cache the ranks of a run share
    out the search for them; with one the first rank of each machine comes first and decodes them all into it.
    """
    require_loss(settings.loss)
    require_engine(settings.search)
    interval_in_steps(settings.update_interval, 1)
    table = read_table(data, settings)
    _split(table, settings)  # too few are refused before any of them is decoded
    with one_per_machine_first(ranks) if settings.cache != "off" else nullcontext():
        table = _readable(table, settings, tolerance or Tolerance(), ALONE if settings.cache != "off" else ranks)
    return _split(table, settings)


def _split(table: ImageTable, settings: Settings) -> Split:
    tables = split(table, settings.task, settings.val_fraction, settings.test_fraction, settings.seed)
    require_pairs(tables.train, "training")
    if settings.task == "classify":
        require_training_images(tables.train)
    return tables


def _readable(table: ImageTable, settings: Settings, tolerance: Tolerance, ranks: Ranks) -> ImageTable:
    """Return the images that can be read, decoded into the cache at the size that training reads them at."""
    spec = recipe(settings.network).input if not is_model(settings.weights) else None
    size = settings.resize or (spec.resize if spec is not None else 256)
    if spec is not None and settings.crop_size and not settings.resize:
        size = round(settings.crop_size * spec.resize / spec.size)
    return without_broken(
        table,
        size,
        squash=settings.squash,
        cache=cache_of(settings, table.paths),
        threads=settings.threads,
        tolerance=tolerance,
        ranks=ranks,
    )


def same_settings(folder: Path, asked: Settings, named: Collection[str] | None) -> Settings:
    """Return the settings of the run that is resumed; raise InputError if others are asked for.

    Only what fits a run to its machine may change: the course of the learning rate depends on the rest. What was left
    open ('auto') agrees with what it was settled to.
    """
    if not (folder / "checkpoint.json").exists() and not is_tuning(folder):
        raise InputError(
            f"{folder.parent} holds no run to resume: none was stopped there after its first step. "
            "Start one without --resume."
        )
    before = Settings.from_dict(BEFORE | read_settings(folder))
    old, new, default = before.to_dict(), asked.to_dict(), Settings().to_dict()
    fixed = [n for n in new if n not in OF_THE_MACHINE and n not in left_open(asked)]
    changed = [n for n in fixed if new[n] != old[n] and (new[n] != default[n] if named is None else n in named)]
    if changed:
        told = ", ".join(f"{name} ({old[name]!r}, now {new[name]!r})" for name in changed)
        raise InputError(
            f"The run in {folder.parent} was started with another {told}. "
            "Resume it with its own settings, or start a new run in another folder."
        )
    return replace(before, **{name: new[name] for name in OF_THE_MACHINE})
