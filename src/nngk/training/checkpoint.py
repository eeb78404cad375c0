"""Everything that a run needs to go on, as data: safetensors and JSON."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from msgspec import Meta, Struct
from torch import Tensor, nn

from nngk.errors import InputError
from nngk.files import (
    alone,
    clear_leftovers,
    damaged,
    fitted,
    read_record,
    read_tensors,
    write_named_tensors,
    write_record,
)
from nngk.training.held_rows import HeldRows, Part
from nngk.training.log import LogMark, mark_log, require_log
from nngk.training.sharded_network import held_like

FORMAT = 2  # 1 had no checksum of its own, and no mark of the log
IN_PARTS = 3  # with rows that several ranks have written
SETTINGS, RECORD = "settings.json", "checkpoint.json"
_WHAT = "a run that can be resumed"

State = TypeVar("State")


class _Record(Struct, forbid_unknown_fields=True):
    tensors: Annotated[str, Meta(pattern=r"^checkpoint-[0-9a-f]+\.safetensors$")]  # in this folder and nowhere else
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    optimiser: dict[str, float | bool | None]
    state: dict[str, Any]
    log: LogMark | None = None
    parts: list[Part] = []
    format: int = 1
    checksum: str = ""


@contextmanager
def only_training(folder: Path) -> Iterator[None]:
    """Hold the folder of a run. Raise InputError if another training is at work in it.

    What a training that was killed there left half-written is cleared.
    """
    with alone(folder, ".training", f"Another training is at work in {folder.parent}. Wait for it, or choose --out."):
        clear_leftovers(folder, "checkpoint", "log", "settings", "features")
        yield


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write the settings of a run."""
    write_record(folder / SETTINGS, {"format": FORMAT, **settings})


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a run, by name. Raise InputError if they are missing or damaged."""
    record = read_record(folder / SETTINGS, _WHAT, FORMAT)
    return {name: value for name, value in record.items() if name not in ("format", "checksum")}


def save_checkpoint(
    folder: Path,
    modules: dict[str, nn.Module],
    optimiser: torch.optim.Optimizer,
    state: dict[str, Any],
    best: dict[str, Tensor] | None = None,
    held: HeldRows | None = None,
) -> None:
    """Write modules, optimiser, ``state`` and the tensors of the best epoch, where there is one.

    The JSON names the tensor file, so that the pair changes in one rename. Where other ranks hold rows of the bank,
    each writes its own (``held``) and the first one the rest.
    """
    numbers, moments = _optimiser_state(optimiser)
    tensors = tensors_of(modules) | {f"optimiser/{key}": t for key, t in moments.items()}
    tensors |= {f"best/{key}": t for key, t in (best or {}).items()}
    parts: list[dict[str, Any]] = []
    if held is not None and held.in_parts:
        tensors, rows = held.apart(tensors)
        parts = held.write(folder, rows)
    if held is None or held.ranks.first:
        _write_rest(folder, tensors, parts, {"optimiser": numbers, "state": state})
    if parts and held is not None:
        held.ranks.wait()  # nobody begins another one before this one is whole


def _write_rest(folder: Path, tensors: dict[str, Tensor], parts: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    """Write the tensors, and the record that names them and the parts; then remove the checkpoint before."""
    name, digest = write_named_tensors(folder, "checkpoint", tensors)
    record = {"format": IN_PARTS if parts else FORMAT, "tensors": name, "sha256": digest, **facts}
    write_record(folder / RECORD, record | ({"parts": parts} if parts else {}) | {"log": mark_log(folder)})
    kept = {name, *(part["tensors"] for part in parts)}
    for old in folder.glob("checkpoint-*.safetensors"):
        if old.name not in kept:
            with suppress(OSError):  # the new checkpoint is in place: the next one removes what stays
                old.unlink()


def load_checkpoint(
    folder: Path,
    modules: dict[str, nn.Module],
    optimiser: torch.optim.Optimizer,
    state_type: type[State],
    held: HeldRows | None = None,
) -> tuple[State, dict[str, Tensor]]:
    """Put a checkpoint back into modules and optimiser; return its state and the tensors of the best epoch.

    Raise InputError if anything is damaged, or belongs to another run. ``held`` says which rows of the bank are wanted,
    whoever wrote them; all of them without it.
    """
    path = folder / RECORD
    record = fitted(read_record(path, _WHAT, IN_PARTS), _Record, path)
    state = _state(record.state, state_type, path)
    tensors = read_tensors(folder / record.tensors, record.sha256)
    if held is not None:
        tensors = held.cut(tensors) | held.read(folder, record.parts) if record.parts else held.cut(tensors)
    elif record.parts:
        raise InputError(f"{path} was written in parts by several ranks: resume the run with 'nngk train --resume'.")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.isnan().any():
            raise damaged(folder / record.tensors, f"'{name}' is NaN")
    if record.log is not None:
        require_log(folder, record.log)
    put_back(modules, tensors, folder)
    try:
        _restore_optimiser(optimiser, record.optimiser, _under(tensors, "optimiser"))
    except (KeyError, ValueError, TypeError, RuntimeError, IndexError) as error:
        raise damaged(path, f"the optimiser's state does not fit: {error}") from None
    return state, _under(tensors, "best")


def _state(values: dict[str, Any], state_type: type[State], path: Path) -> State:
    """Return the state of a run as its dataclass, which must know every field."""
    unknown = values.keys() - {f.name for f in dataclasses.fields(state_type)}  # type: ignore[arg-type]
    if unknown:
        raise damaged(path, f"it has the unknown fields {', '.join(sorted(unknown))}")
    state = fitted(values, state_type, path)
    if any(isinstance(v, int | float) and abs(v) >= 2**53 for v in values.values()):
        raise damaged(path, "a number is too large")
    return state


def tensors_of(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """Return all tensors of some modules, each under the name of its module."""
    return {f"{name}/{key}": t for name, module in modules.items() for key, t in module.state_dict().items()}


def put_back(modules: dict[str, nn.Module], tensors: dict[str, Tensor], source: Path) -> None:
    """Load the tensors of :func:`tensors_of` into the modules."""
    for name, module in modules.items():
        load_module(module, _under(tensors, name), source)


def load_module(module: nn.Module, tensors: dict[str, Tensor], source: Path) -> None:
    """Call ``load_state_dict``. Raise InputError if the shapes are those of another run."""
    try:
        own = module.state_dict()
        module.load_state_dict({name: held_like(t, own.get(name, t)) for name, t in tensors.items()})
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
                    optimiser.state[weights][field] = torch.empty_like(weights).copy_(held_like(value, weights))
