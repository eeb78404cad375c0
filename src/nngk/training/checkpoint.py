"""Everything a run needs to go on, as data: safetensors and JSON."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nngk.errors import InputError
from nngk.files import read_json, read_tensors, write_json, write_named_tensors


def save_checkpoint(
    folder: Path,
    modules: dict[str, nn.Module],
    optimiser: torch.optim.Optimizer,
    state: Any,
    best: dict[str, Tensor] | None = None,
) -> None:
    """Write modules, optimiser, ``state`` and the tensors of the best epoch, where there is one.

    The JSON names the tensor file, so the pair changes in one rename.
    """
    numbers, moments = _optimiser_state(optimiser)
    tensors = tensors_of(modules) | {f"optimiser/{key}": t for key, t in moments.items()}
    tensors |= {f"best/{key}": t for key, t in (best or {}).items()}
    name, checksum = write_named_tensors(folder, "checkpoint", tensors)
    write_json(folder / "checkpoint.json", {"tensors": name, "sha256": checksum, "optimiser": numbers, "state": state})
    for old in folder.glob("checkpoint-*.safetensors"):
        if old.name != name:
            old.unlink()


def load_checkpoint(
    folder: Path, modules: dict[str, nn.Module], optimiser: torch.optim.Optimizer
) -> tuple[Any, dict[str, Tensor]]:
    """Put a checkpoint back into modules and optimiser; return its ``state`` and the best epoch's tensors."""
    record = read_json(folder / "checkpoint.json", "a run that can be resumed")
    try:
        file, checksum, numbers, state = (record[key] for key in ("tensors", "sha256", "optimiser", "state"))
    except KeyError as error:
        raise InputError(f"{folder / 'checkpoint.json'} is damaged: it has no {error}. Start the run again.") from None
    tensors = read_tensors(folder / file, checksum)
    put_back(modules, tensors, folder)
    _restore_optimiser(optimiser, numbers, _under(tensors, "optimiser"))
    return state, _under(tensors, "best")


def tensors_of(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """Return all tensors of some modules, each under the name of its module."""
    return {f"{name}/{key}": t for name, module in modules.items() for key, t in module.state_dict().items()}


def put_back(modules: dict[str, nn.Module], tensors: dict[str, Tensor], source: Path) -> None:
    """Load the tensors of :func:`tensors_of` into their modules."""
    for name, module in modules.items():
        load_module(module, _under(tensors, name), source)


def load_module(module: nn.Module, tensors: dict[str, Tensor], source: Path) -> None:
    """Load tensors into a module; raise InputError if their shapes are another run's."""
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise InputError(
            f"{source} belongs to a run with other settings or data ({first}). "
            "Resume with the settings it was started with, or start a new run in another folder."
        ) from None


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(f"{prefix}/"): t for key, t in tensors.items() if key.startswith(f"{prefix}/")}


def _optimiser_state(optimiser: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Split an optimiser's state into tensors and the numbers beside them."""
    full = optimiser.state_dict()
    numbers: dict[str, Any] = {}
    moments: dict[str, Tensor] = {}
    for parameter, values in full["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                moments[f"{parameter}/{key}"] = value
            else:
                numbers[f"{parameter}/{key}"] = value
    return numbers, moments


def _restore_optimiser(optimiser: torch.optim.Optimizer, numbers: dict[str, Any], moments: dict[str, Tensor]) -> None:
    # Groups and rates come from the settings, which the resumed run shares; only what was accumulated is put back.
    full = optimiser.state_dict()
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**numbers, **moments}.items():
        parameter, _, field = key.partition("/")
        state.setdefault(int(parameter), {})[field] = value
    full["state"] = state
    optimiser.load_state_dict(full)
    # A file has one memory layout; fused optimisers want each moment in the layout of its parameter.
    for group in optimiser.param_groups:
        for weights in group["params"]:
            for field, value in optimiser.state[weights].items():
                if isinstance(value, Tensor) and value.shape == weights.shape:
                    optimiser.state[weights][field] = torch.empty_like(weights).copy_(value)
