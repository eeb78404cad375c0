"""A model's folder: ``model.json``, ``network-….safetensors``, ``bank-….safetensors``.

The JSON names the tensor files and their checksums and is renamed into place last, so a reader sees the old model or
the new one, never a mixture, and a damaged file is refused.
"""

import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nngk
from nngk.defaults import DEVICE
from nngk.device import pick_device
from nngk.errors import InputError
from nngk.files import locked, read_json, read_tensors, write_json, write_named_tensors
from nngk.model.model import Model
from nngk.networks import EmbeddingNetwork

FORMAT = 1


def save_model(model: Model, folder: Path) -> None:
    """Write a model into a folder."""
    bank = {"centres": model.centres, "labels": model.labels, "theta": model.theta, "familiar": model.familiar}
    bank |= {f"softmax.{key}": t for key, t in (model.softmax or {}).items()}
    files = {}
    for kind, tensors in (("network", model.network.state_dict()), ("bank", bank)):
        name, checksum = write_named_tensors(folder, kind, tensors)
        files[kind] = {"file": name, "sha256": checksum}
    write_json(
        folder / "model.json",
        {
            "format": FORMAT,
            "files": files,
            "network": model.network.config,
            "sigma": model.sigma,
            "n_neighbours": model.n_neighbours,
            "class_names": model.class_names,
            "sources": model.sources,
            "info": model.info,
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
def changing(folder: Path, device: str | torch.device = DEVICE) -> Iterator[Model]:
    """A model to change, saved at the end. One process at a time: two would forget each other's changes."""
    with locked(folder) if folder.is_dir() else nullcontext():
        model = load_model(folder, device)
        yield model
        save_model(model, folder)


def load_model(folder: Path, device: str | torch.device = DEVICE) -> Model:
    """Read a model from a folder; anything missing, damaged or inconsistent is refused with a sentence."""
    if not folder.is_dir():
        raise InputError(f"There is no model folder {folder}. Train one with: nngk train DATA --out {folder}")
    record = read_json(folder / "model.json", "a model folder")
    if record.get("format") != FORMAT:
        raise InputError(
            f"{folder / 'model.json'} has the format {record.get('format')!r}; this version of nngk reads {FORMAT}."
        )
    device = pick_device(device)  # before anything is read: a wrong device is no damage
    try:
        record, tensors = _tensors(folder, record)
        network = EmbeddingNetwork.from_config(record["network"])
        network.load_state_dict(tensors["network"])
        return _assemble(record, network, tensors["bank"], device)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InputError(
            f"The model in {folder} is damaged ({error}); restore it from a copy or train again."
        ) from None


def _tensors(folder: Path, record: dict[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """The record and its tensors; of the new model where one has taken its place while it was read."""
    while True:
        try:
            files = record["files"].items()
            return record, {kind: read_tensors(folder / f["file"], f["sha256"]) for kind, f in files}
        except InputError:
            now = read_json(folder / "model.json", "a model folder")
            if now == record:
                raise
            record = now


def _assemble(
    record: dict[str, Any], network: EmbeddingNetwork, bank: dict[str, Tensor], device: str | torch.device
) -> Model:
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
    softmax = {key.removeprefix("softmax."): t for key, t in bank.items() if key.startswith("softmax.")}
    return Model(
        network,
        centres=bank["centres"],
        labels=labels,
        theta=bank["theta"],
        sigma=float(record["sigma"]),
        class_names=record["class_names"],
        sources=record["sources"],
        familiar=bank["familiar"],
        n_neighbours=record["n_neighbours"],
        softmax=softmax or None,
        info=info,
        device=device,
    )


def _is_count(value: object) -> bool:
    """Whether a record's number of neighbours is one; none stands for all centres."""
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)
