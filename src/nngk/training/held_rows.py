"""The parts of a checkpoint that have a row for each training image, which every rank writes and reads for itself.

Parts are safetensors files that the record of the checkpoint names, with the rows that they hold; so a run that was
saved by some ranks goes on with any other number of them, and nobody gathers anything. The files of
torch.distributed.checkpoint would do the same, but describe themselves by a pickle, and files here are never code.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from msgspec import Meta, Struct
from torch import Tensor, nn

from nngk.bank.centres import CentreBank
from nngk.files import damaged, read_tensors, write_named_tensors
from nngk.ranks import ALONE, Ranks
from nngk.training.sharded_network import by_rows, local

KIND = "checkpoint-rows"
_OF_BANK = re.compile(r"(best/)?objective/bank\.(theta|centres|neighbours)")


class Part(Struct, forbid_unknown_fields=True):
    """A file with the rows from ``first`` on of all such tensors."""

    tensors: Annotated[str, Meta(pattern=r"^checkpoint-rows-[0-9a-f]+\.safetensors$")]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    first: Annotated[int, Meta(ge=0)]
    rows: Annotated[int, Meta(ge=0)]
    network: bool = False  # whether it has rows of the network's parameters, too: those of its place among the parts
    network_only: bool = False  # whether it has nothing else, because every rank holds the whole bank


@dataclass(frozen=True)
class HeldRows:
    """Which rows of a bank of ``total`` this rank holds, and where θ stands in the optimiser."""

    span: slice
    total: int
    theta: int = -1
    ranks: Ranks = ALONE
    partial: bool = False  # whether other ranks hold others
    network: bool = False  # whether each rank holds some rows of the network's parameters

    @property
    def in_parts(self) -> bool:
        """Whether this rank holds what no other does, and so writes a part of every checkpoint."""
        return self.partial or self.network

    def belongs(self, name: str, tensor: Tensor) -> bool:
        """Return whether a tensor of a checkpoint has a row for each training image."""
        return bool(_OF_BANK.fullmatch(name)) or (name.startswith(f"optimiser/{self.theta}/") and tensor.ndim > 0)

    def _here(self, name: str, tensor: Tensor) -> bool:
        return by_rows(tensor) or (self.partial and self.belongs(name, tensor))

    def apart(self, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the tensors that all ranks have alike, and those of which each has its rows."""
        held = {name: local(tensor) for name, tensor in tensors.items() if self._here(name, tensor)}
        return {name: tensor for name, tensor in tensors.items() if name not in held}, held

    def write(self, folder: Path, held: dict[str, Tensor]) -> list[dict[str, Any]]:
        """Write the own rows; return the parts of all ranks."""
        name, digest = write_named_tensors(folder, KIND, held)
        rows = self.span.stop - self.span.start
        part: dict[str, Any] = {"tensors": name, "sha256": digest, "first": self.span.start, "rows": rows}
        if self.network:
            part |= {"network": True, "network_only": not self.partial}
        return self.ranks.collect(part)

    def read(self, folder: Path, parts: list[Part]) -> dict[str, Tensor]:
        """Return the own rows from the parts that have some of them."""
        of_bank = [part for part in parts if not part.network_only]
        if of_bank and sorted((p.first, p.rows) for p in of_bank if p.rows) != _without_gap(of_bank, self.total):
            raise damaged(folder / "checkpoint.json", f"its parts do not make up {self.total} rows")
        pieces: dict[str, list[Tensor]] = {}
        for part in parts:  # in the order of the ranks that wrote them
            low, high = max(self.span.start, part.first), min(self.span.stop, part.first + part.rows)
            # The first one also tells a rank without rows the other sizes; a network's parts are put together.
            if low < high or part is parts[0] or part.network:
                for name, tensor in read_tensors(folder / part.tensors, part.sha256).items():
                    if not self.belongs(name, tensor):
                        cut = tensor
                    else:
                        cut = tensor[low - part.first : max(low, high) - part.first] if low < high else tensor[:0]
                    pieces.setdefault(name, []).append(cut)
        return {name: torch.cat(found) for name, found in pieces.items()}

    def cut(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return whole tensors of a checkpoint with only the own rows of those that have some for each image."""
        if not self.partial:
            return tensors
        return {name: t[self.span] if self.belongs(name, t) else t for name, t in tensors.items()}


def held_rows(bank: CentreBank, optimiser: torch.optim.Optimizer, ranks: Ranks, network: bool = False) -> HeldRows:
    """Return which rows of a run's bank this rank holds."""
    parameters: list[nn.Parameter] = [p for group in optimiser.param_groups for p in group["params"]]
    place = next((place for place, p in enumerate(parameters) if p is bank.theta), -1)
    span = ranks.span(len(bank)) if bank.partial else slice(0, len(bank))
    return HeldRows(span, len(bank), place, ranks, bank.partial, network)


def _without_gap(parts: list[Part], total: int) -> list[tuple[int, int]]:
    """Return what the parts' first rows and numbers of rows would be if they made up all rows."""
    expected, first = [], 0
    for part in sorted((part for part in parts if part.rows), key=lambda part: part.first):
        expected.append((first, part.rows))
        first += part.rows
    return expected if first == total else []
