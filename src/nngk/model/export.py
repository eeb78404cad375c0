"""A model for other programs: its network in ONNX, its centres in faiss or in NumPy's format."""

import io
import json
import logging
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nngk.errors import InputError, MissingExtra
from nngk.files import write_atomically
from nngk.model.model import Model

CLOSE = 1e-4  # how far an embedding of the exported network may be from ours, in any of its numbers
BATCHES = (1, 3)  # sizes of the batches that the exported network is checked with


class WithPreprocessing(nn.Module):
    """A network that takes pictures as bytes: RGB values from 0 to 255, (B, 3, size, size)."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        spec = model.network.input
        self.network = model.network
        self.register_buffer("mean", 255 * torch.tensor(spec.mean).view(1, 3, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(spec.std).view(1, 3, 1, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        embeddings: Tensor = self.network((pictures.float() - self.mean) / self.std)
        return embeddings


def export_onnx(model: Model, path: Path) -> float:
    """Write the network with its preprocessing; return the largest difference from PyTorch's embeddings.

    The graph takes ``pictures`` (batch, 3, size, size), uint8, RGB, and gives ``embeddings`` (batch, dim), float32. It
    subtracts the mean and divides by the standard deviation; resizing and cropping come before it, and its metadata say
    how: the shorter side to ``resize`` with antialiasing, then ``size`` × ``size`` from the middle. Raise InputError if
    onnxruntime gives other embeddings than PyTorch.
    """
    onnx, runtime = _onnx()
    side = model.network.input.size
    network = WithPreprocessing(model).cpu().to(memory_format=torch.contiguous_format).eval()
    pictures = torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8)
    said = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(said), _Quiet("torch.onnx", "onnxscript", "onnx_ir"):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            network,
            (pictures,),
            input_names=["pictures"],
            output_names=["embeddings"],
            dynamic_shapes={"pictures": {0: torch.export.Dim("batch")}},
            dynamo=True,
        )
    model.network.to(model.device).to(memory_format=torch.channels_last)
    if program is None:
        raise InputError(f"The network '{model.network.config['name']}' cannot be written as an ONNX graph.")
    graph = program.model_proto
    for key, value in _facts(model).items():
        entry = graph.metadata_props.add()
        entry.key, entry.value = key, value if isinstance(value, str) else json.dumps(value)
    onnx.checker.check_model(graph)
    content = graph.SerializeToString()
    worst = _difference(runtime.InferenceSession(content, providers=["CPUExecutionProvider"]), network, side)
    if not worst <= CLOSE:
        raise InputError(
            f"The exported network gives other embeddings than PyTorch (by {worst:.2g}), so it was not written. "
            "Export the centres alone (--format npz) and embed with nngk."
        )
    write_atomically(path, lambda part: part.write_bytes(content))
    return worst


def _onnx() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  (torch.onnx needs it)
    except ImportError as error:
        raise MissingExtra(error.name or "onnx", "export", "Export to ONNX") from error
    return onnx, onnxruntime


class _Quiet:
    """Let other packages' loggers say errors alone."""

    def __init__(self, *names: str) -> None:
        self.loggers = [logging.getLogger(name) for name in names]

    def __enter__(self) -> None:
        self.levels = [logger.level for logger in self.loggers]
        for logger in self.loggers:
            logger.setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        for logger, level in zip(self.loggers, self.levels):
            logger.setLevel(level)


@torch.no_grad()
def _difference(session: Any, network: nn.Module, side: int) -> float:
    """Return the largest difference between both on random pictures, in batches of several sizes."""
    luck, worst = torch.Generator().manual_seed(0), 0.0
    for count in BATCHES:
        pictures = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=luck)
        theirs = session.run(["embeddings"], {"pictures": pictures.numpy()})[0]
        worst = max(worst, float((torch.from_numpy(theirs) - network(pictures)).abs().max()))
    return worst


def _facts(model: Model) -> dict[str, Any]:
    """Return what another program needs to know besides tensors."""
    spec = model.network.input
    return {
        "network": str(model.network.config["name"]),
        "size": spec.size,
        "resize": spec.resize,
        "squash": spec.squash,
        "sigma": model.sigma,
        "n_neighbours": model.n_neighbours,
        "class_names": model.class_names,
    }


def export_faiss(model: Model, path: Path) -> None:
    """Write the centres as a flat faiss index of squared distances, and what they are beside it as JSON.

    Row i of the index is ``labels[i]`` (a place in ``class_names``), ``theta[i]`` and ``sources[i]`` of the JSON.
    """
    from nngk.search.adapters.faiss import load_faiss

    model.require_classes()
    if path.suffix == ".json":
        raise InputError(f"{path} would be the index and the JSON beside it: give the index another ending, as .faiss.")
    faiss = load_faiss()
    index = faiss.IndexFlatL2(model.network.dim)
    index.add(model.classes.positions.cpu().float().numpy())
    told = _facts(model) | {
        "labels": model.labels.tolist(),
        "theta": model.theta.tolist(),
        "sources": [source.encode("utf-8", "replace").decode() for source in model.sources],
    }
    write_atomically(path, lambda part: faiss.write_index(index, str(part)))
    write_atomically(path.with_suffix(".json"), lambda part: part.write_text(json.dumps(told), encoding="utf-8"))


def export_npz(model: Model, path: Path) -> None:
    """Write centres, labels, weights (exp θ), σ and names as NumPy arrays; nothing in it is pickled."""
    model.require_classes()
    sources = [source.encode("utf-8", "replace").decode() for source in model.sources]
    arrays = {
        "centres": model.classes.positions.cpu().numpy(),
        "labels": model.labels.cpu().numpy(),
        "theta": model.theta.cpu().numpy(),
        "weights": model.theta.double().exp().cpu().numpy(),
        "sigma": np.array(model.sigma),
        "n_neighbours": np.array(model.n_neighbours or 0),  # 0: all
        "class_names": np.array(model.class_names),
        "sources": np.array(sources),
    }

    def write(part: Path) -> None:
        with part.open("wb") as file:  # a name of its own, to which NumPy would add .npz
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    write_atomically(path, write)


FORMATS: dict[str, Callable[[Model, Path], float | None]] = {
    "onnx": export_onnx,
    "faiss": export_faiss,
    "npz": export_npz,
}
