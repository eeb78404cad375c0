"""A model's folder: ``model.json``, ``network-….safetensors``, ``bank-…``, ``thumbnails-…``, and a card for people.

The JSON names the tensor files and their checksums and is renamed into place last, so a reader sees the old model or
the new one, never a mixture, and a damaged file is refused. Writers take turns; one that would undo what another has
done since it read the folder is refused.
"""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta, Struct
from msgspec import field as member
from torch import Tensor

import nngk
from nngk.errors import InputError
from nngk.files import (
    checksum,
    clear_leftovers,
    fitted,
    locked,
    read_json,
    read_record,
    read_tensors,
    write_named_tensors,
    write_record,
)
from nngk.model.card import CARD, write_card
from nngk.model.thumbnails import as_tensors, from_tensors
from nngk.networks import EmbeddingNetwork

FORMAT = 4  # 1 had no checksum of its own, 2 measured the unknown by the density alone, 3 had no thumbnails
RECORD = "model.json"
_WHAT = "a model folder"
_KINDS = ("network", "bank", "thumbnails")  # of tensor files

Seen = dict[Path, str]  # the checksum of the record that each folder held when it was last read or written

_Side = Annotated[int, Meta(ge=1, le=16384)]
_Channels = tuple[float, float, float]


class _TensorFile(Struct, forbid_unknown_fields=True):
    file: Annotated[str, Meta(pattern=r"^[a-z]+-[0-9a-f]+\.safetensors$")]  # in this folder and nowhere else
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class _Files(Struct, forbid_unknown_fields=True):
    network: _TensorFile
    bank: _TensorFile
    thumbnails: _TensorFile | None = None


class _Input(Struct):
    size: _Side
    resize: _Side
    mean: _Channels
    std: _Channels


class _Network(Struct):
    """The fields of a network's configuration whose size decides how much memory is taken; others check themselves."""

    name: str
    dim: Annotated[int, Meta(ge=0, le=65536)] | None
    input: _Input
    weights: dict[str, Any]


class _Info(Struct):
    """The fields of ``info`` that anything is decided by; the others are for people."""

    task: Literal["classify", "metric"] = "classify"
    settings: dict[str, Any] = member(default_factory=dict)
    boxes: bool | None = None
    test: dict[str, float] = member(default_factory=dict)


class _Unknown(Struct, forbid_unknown_fields=True):
    parts: list[str]
    false_alarms: float
    weights: list[float] | None = None  # None: a folder from before there were any


class _Record(Struct, forbid_unknown_fields=True):
    format: int
    files: _Files
    network: _Network
    sigma: float
    n_neighbours: int | None
    class_names: list[str]
    sources: list[str]
    unknown: _Unknown | None = None  # None: a folder of an older format
    drawn: float = 0.0
    info: _Info = member(default_factory=_Info)
    versions: dict[str, str] = member(default_factory=dict)
    checksum: str = ""


@dataclass(frozen=True)
class Stored:
    """What a model's folder holds: the network, the tensors of the bank, and everything that JSON can say."""

    network: EmbeddingNetwork
    bank: dict[str, Tensor]  # 'centres', 'labels', 'theta', 'familiar'; perhaps 'coordinates' and '….…'
    record: dict[str, Any]  # 'sigma', 'n_neighbours', 'class_names', 'sources', 'unknown', 'info'
    seen: Seen = field(default_factory=dict)
    thumbnails: list[bytes] | None = None  # one for each centre


# -- writing


def write(folder: Path, stored: Stored) -> Seen:
    """Write a model into a folder, when no other writer is at it; return what is there now.

    Raise InputError if the model was read from this folder and the folder has changed since.
    """
    with locked(folder):
        seen = stored.seen.get(folder.resolve())
        if seen is not None and _changed(folder, seen):
            raise InputError(
                f"The model in {folder} was changed by somebody else after this one was loaded, and saving would undo "
                "that. Load it again and repeat what you did (Model.changing does both without a gap), or save into "
                "another folder."
            )
        return _write(folder, stored)


def _changed(folder: Path, seen: str) -> bool:
    """Return whether a folder holds another record than the one that was seen; none at all is no change to undo."""
    try:
        return (folder / RECORD).exists() and checksum(read_json(folder / RECORD, _WHAT)) != seen
    except InputError:
        return True


@contextmanager
def changing(folder: Path, known: Stored | None = None) -> Iterator[tuple[Stored, Callable[[Stored], Seen]]]:
    """Yield what a folder holds and how to replace it, while every other writer waits.

    What is ``known`` of it is not read again where the folder still holds the same record.
    """
    _require_folder(folder)
    with locked(folder):
        seen = None if known is None else known.seen.get(folder.resolve())
        is_known = seen is not None and (folder / RECORD).exists() and not _changed(folder, seen)
        yield known if known is not None and is_known else read(folder), lambda stored: _write(folder, stored)


def _write(folder: Path, stored: Stored) -> Seen:
    clear_leftovers(folder, RECORD, CARD, *_KINDS)
    before, present = _identity(folder / RECORD), set(_tensor_files(folder))
    try:
        return _put(folder, stored)
    except OSError:
        if _identity(folder / RECORD) == before:  # nothing names what was written: a full disk needs its room
            for new in set(_tensor_files(folder)) - present:
                with suppress(OSError):
                    new.unlink()
        raise


def _tensor_files(folder: Path) -> list[Path]:
    return [path for kind in _KINDS for path in folder.glob(f"{kind}-*.safetensors")]


def _put(folder: Path, stored: Stored) -> Seen:
    files, parts = {}, {"network": stored.network.state_dict(), "bank": stored.bank}
    if stored.thumbnails is not None:
        parts["thumbnails"] = as_tensors(stored.thumbnails)
    for kind, tensors in parts.items():
        name, digest = write_named_tensors(folder, kind, tensors)
        files[kind] = {"file": name, "sha256": digest}
    versions = {"nngk": nngk.__version__, "torch": str(torch.__version__), "python": platform.python_version()}
    record = {"format": FORMAT, "files": files, "network": stored.network.config, **stored.record, "versions": versions}
    written = write_record(folder / RECORD, record)
    current = {f["file"] for f in files.values()}
    for old in _tensor_files(folder):
        if old.name not in current:
            with suppress(OSError):  # the new model is in place: what cannot be removed now, the next writer removes
                old.unlink()
    write_card(folder, record, stored.bank)
    return {folder.resolve(): written}


# -- reading


def read(folder: Path) -> Stored:
    """Read a model's folder. Raise InputError if anything is missing, damaged or inconsistent."""
    _require_folder(folder)
    while True:
        before = _identity(folder / RECORD)
        try:
            return _read(folder)
        except InputError:
            # A writer may have put a new model in the place of the one that was being read.
            if _identity(folder / RECORD) == before:
                raise


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return what tells one file of a name from the next, even where both say the same."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def require_model(folder: Path) -> None:
    """Raise InputError if there is no model in a folder; whether it is whole shows when it is read."""
    _require_folder(folder)
    if not (folder / RECORD).exists():
        raise InputError(f"{folder} is not {_WHAT}: it holds no {RECORD}.")


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(f"There is no model folder {folder}. Train one with: nngk train DATA --out {folder}")


def _read(folder: Path) -> Stored:
    path = folder / RECORD
    raw = read_record(path, _WHAT, FORMAT)
    record = fitted(raw, _Record, path)
    tensors = {
        kind: read_tensors(folder / entry.file, entry.sha256)
        for kind, entry in ((kind, getattr(record.files, kind)) for kind in _KINDS)
        if entry is not None
    }
    missing = {"centres", "labels", "theta", "familiar"} - tensors["bank"].keys()
    if missing:
        raise damaged_model(folder, f"its bank has no {', '.join(sorted(missing))}")
    values = {name: getattr(record, name) for name in ("sigma", "n_neighbours", "class_names", "sources", "drawn")}
    network = _network(folder, raw["network"], tensors["network"])
    values["unknown"] = raw.get("unknown")
    values["info"] = raw.get("info", {})
    small = None
    if "thumbnails" in tensors:
        try:
            small = from_tensors(tensors["thumbnails"], len(record.sources))
        except InputError as error:
            raise damaged_model(folder, error) from None
    return Stored(network, tensors["bank"], values, {folder.resolve(): checksum(raw)}, small)


def _network(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> EmbeddingNetwork:
    """Return the network of a configuration with its weights, of which each must be there and finite."""
    try:
        network = EmbeddingNetwork.from_state(config, tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError) as error:
        raise damaged_model(folder, str(error).strip().splitlines()[-1].strip() or type(error).__name__) from None
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise damaged_model(folder, f"the network's '{name}' is NaN or infinite")
    return network


def damaged_model(folder: Path, why: object) -> InputError:
    """Return the error for a folder whose parts cannot belong together."""
    return InputError(f"The model in {folder} is damaged ({why}); restore it from a copy or train again.")
