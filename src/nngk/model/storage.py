"""A model's folder: ``model.json``, ``network-….safetensors``, ``bank-….safetensors``.

The JSON names the tensor files and their checksums and is renamed into place last, so a reader sees the old model or
the new one, never a mixture, and a damaged file is refused.
"""

import math
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nngk
from nngk.errors import InputError
from nngk.files import locked, read_json, read_tensors, write_json, write_named_tensors
from nngk.networks import EmbeddingNetwork

FORMAT = 1


@dataclass(frozen=True)
class Stored:
    """What a model's folder holds: the network, the tensors of the bank, and everything that JSON can say."""

    network: EmbeddingNetwork
    bank: dict[str, Tensor]  # 'centres', 'labels', 'theta', 'familiar', and 'softmax.…' where there is such a layer
    record: dict[str, Any]  # 'sigma', 'n_neighbours', 'class_names', 'sources', 'info'


def write(folder: Path, stored: Stored) -> None:
    """Write a model into a folder."""
    files = {}
    for kind, tensors in (("network", stored.network.state_dict()), ("bank", stored.bank)):
        name, checksum = write_named_tensors(folder, kind, tensors)
        files[kind] = {"file": name, "sha256": checksum}
    write_json(
        folder / "model.json",
        {
            "format": FORMAT,
            "files": files,
            "network": stored.network.config,
            **stored.record,
            "versions": {
                "nngk": nngk.__version__,
                "torch": str(torch.__version__),
                "python": platform.python_version(),
            },
        },
    )
    current = {f["file"] for f in files.values()}
    for old in [*folder.glob("network-*.safetensors"), *folder.glob("bank-*.safetensors")]:
        if old.name not in current:
            old.unlink()


@contextmanager
def changing(folder: Path) -> Iterator[tuple[Stored, Callable[[Stored], None]]]:
    """Yield what a folder holds and how to replace it. One process at a time: two would forget each other's changes."""
    with locked(folder) if folder.is_dir() else nullcontext():
        yield read(folder), lambda stored: write(folder, stored)


def read(folder: Path) -> Stored:
    """Read a model's folder. Raise InputError if anything is missing, damaged or inconsistent."""
    if not folder.is_dir():
        raise InputError(f"There is no model folder {folder}. Train one with: nngk train DATA --out {folder}")
    record = read_json(folder / "model.json", "a model folder")
    if record.get("format") != FORMAT:
        raise InputError(
            f"{folder / 'model.json'} has the format {record.get('format')!r}; this version of nngk reads {FORMAT}."
        )
    try:
        record, tensors = _tensors(folder, record)
        network = EmbeddingNetwork.from_config(record["network"])
        network.load_state_dict(tensors["network"])
        return Stored(network, tensors["bank"], _checked(record, tensors["bank"]))
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InputError(
            f"The model in {folder} is damaged ({error}); restore it from a copy or train again."
        ) from None


def _tensors(folder: Path, record: dict[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """Return the record and its tensors; those of the new model where one has taken its place while it was read."""
    while True:
        try:
            files = record["files"].items()
            return record, {kind: read_tensors(folder / f["file"], f["sha256"]) for kind, f in files}
        except InputError:
            now = read_json(folder / "model.json", "a model folder")
            if now == record:
                raise
            record = now


def _checked(record: dict[str, Any], bank: dict[str, Tensor]) -> dict[str, Any]:
    """Return the values of a record, which must fit the bank."""
    rows = {len(bank["centres"]), len(bank["labels"]), len(bank["theta"]), len(record["sources"])}
    labels = bank["labels"]
    if len(rows) > 1 or (len(labels) and int(labels.max()) >= len(record["class_names"])):
        raise ValueError("its bank and its class names do not fit together")
    names, info = (record["class_names"], record["sources"]), record.get("info", {})
    if not all(isinstance(part, list) and all(isinstance(name, str) for name in part) for part in names):
        raise ValueError("its class names and sources should be lists of texts")
    if not isinstance(info, dict):
        raise ValueError("its info should be an object")
    if not 0 < float(record["sigma"]) < math.inf or not _is_count(record["n_neighbours"]):
        raise ValueError("its sigma and its number of neighbours should be above 0")
    return {
        "sigma": float(record["sigma"]),
        "n_neighbours": record["n_neighbours"],
        "class_names": record["class_names"],
        "sources": record["sources"],
        "info": info,
    }


def _is_count(value: object) -> bool:
    """Return whether a record's number of neighbours is one; none stands for all centres."""
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)
