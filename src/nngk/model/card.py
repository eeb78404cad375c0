"""The card of a model: README.md in its folder, which says to a person what the model is."""

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from nngk.errors import printable
from nngk.files import write_atomically

CARD = "README.md"
MARK = "<!-- Written by nngk with every change of the model. Without this line it is yours, and stays as it is. -->"
SHOWN = 30  # classes that are listed
SETTINGS = (
    "task",
    "preset",
    "loss",
    "dim",
    "epochs",
    "batch_size",
    "lr",
    "optimiser",
    "n_neighbours",
    "seed",
    "freeze",
)
# Of what the networks' own weights are published under.
LICENCES = {
    "efficientnet-lite0": "Apache-2.0, as their package says; trained on ImageNet-1k",
}


def write_card(folder: Path, record: Mapping[str, Any], bank: Mapping[str, torch.Tensor]) -> None:
    """Write the card of the model that a folder's record and bank describe, unless the card there is a person's own.

    The model is in place already: a card that cannot be written does not undo that.
    """
    path = folder / CARD
    with suppress(OSError):
        if not path.exists() or (path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace")):
            text = card(record, bank)
            write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def card(record: Mapping[str, Any], bank: Mapping[str, torch.Tensor]) -> str:
    """Return the card as Markdown."""
    info, network = record["info"], record["network"]
    names, m = record["class_names"], len(record["sources"])
    spec, settings = network["input"], info.get("settings", {})
    lines = [
        MARK,
        f"# {len(names)} classes, {m} images",
        "",
        f"A model of nngk: nearest-neighbour Gaussian kernels around the embeddings of {m} images. It classifies, "
        "finds similar images, says when it does not know, and learns classes that it is shown.",
        "",
        "## Data",
        "",
        f"- Trained on: {_text(info.get('data', 'not recorded'))}, for the task {_text(info.get('task', 'classify'))}",
        *_parts(info),
        f"- Classes: {_listed(names, bank['labels'])}",
        "",
        "## Network",
        "",
        f"- {_text(network['name'])}, {network['dim'] or 'all'} dimensions; pictures of {spec['size']} × "
        f"{spec['size']} pixels, cut from a shorter side of {spec['resize']}",
        f"- Weights: {_text(_weights(network))}",
        f"- Their licence: {_licence(network)}",
        "",
        "## Settings",
        "",
        *[f"- {name}: {_text(settings[name])}" for name in SETTINGS if name in settings],
        f"- σ: {record['sigma']:.4g}; neighbours of an answer: {record['n_neighbours'] or 'all'}",
        "",
        "## Measured",
        "",
        *_figures(info),
        "",
        "## Unknown",
        "",
        *_unknown(record.get("unknown"), bank),
    ]
    return "\n".join(lines) + "\n"


def _parts(info: Mapping[str, Any]) -> list[str]:
    counts = info.get("measured")
    if not counts:
        return []
    lines = [f"- Held out to measure: {counts['test']} images; to choose: {counts['validation']}"]
    if "last_training" in info:
        lines.append(f"- The last training was on all {info['last_training']['images']} images")
    return lines


def _listed(names: list[str], labels: torch.Tensor) -> str:
    counts = torch.bincount(labels.cpu(), minlength=len(names)).tolist() if len(labels) else [0] * len(names)
    shown = ", ".join(f"{_text(name)} ({count})" for name, count in list(zip(names, counts))[:SHOWN])
    return shown + (f", and {len(names) - SHOWN} more" if len(names) > SHOWN else "") if names else "none"


def _figures(info: Mapping[str, Any]) -> list[str]:
    scores, n = info.get("test", {}), info.get("measured", {}).get("test", 0)
    if not scores:
        return ["Nothing: no images were held out."]
    lines = [f"On {n or 'the'} held-out images, of a model that was trained without them.", ""]
    lines += ["| measure | value | 95% interval |", "|---|---|---|"]
    for name, value in scores.items():
        # The others are no counts of images that are right or wrong.
        counted = n and (name.endswith("accuracy") or name.startswith("recall@"))
        low, high = interval(value, n) if counted else (0.0, 0.0)
        lines.append(f"| {name.replace('_', ' ')} | {value:.2%} | {f'{low:.2%} to {high:.2%}' if counted else ''} |")
    lines += ["", "Classes that were added, merged or removed since were not measured."]
    before = info.get("pruned_from")
    return [*lines, f"Nor was the model since it was pruned: then it had {before} centres."] if before else lines


def interval(share: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share that was counted among n.

    >>> [round(x, 3) for x in interval(0.9, 100)]
    [0.826, 0.945]
    """
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def _unknown(settings: Mapping[str, Any] | None, bank: Mapping[str, torch.Tensor]) -> list[str]:
    n = len(bank["familiar"])
    if settings is None or not n:
        return ["No threshold was found: every image is called unknown. Set one with `nngk calibrate`."]
    share, parts = settings["false_alarms"], " and ".join(settings["parts"])
    return [
        f"An image is called unknown if it looks stranger than all but {share:.1%} of {n} images of known classes did, "
        f"by {_text(parts)}: about {share:.1%} false alarms on images like those."
    ]


def _weights(network: Mapping[str, Any]) -> str:
    weights = network["weights"]
    return {"random": "none: trained from nothing"}.get(weights["source"], str(weights.get("name", weights["source"])))


def _licence(network: Mapping[str, Any]) -> str:
    name, source = str(network["name"]), network["weights"]["source"]
    if source == "random":
        return "yours"
    if source == "file" or name == "googlenet-bvlc":
        return "that of the file"
    if name.startswith("timm/"):
        return "that of timm's card for these weights"
    return LICENCES.get(name, "BSD-3-Clause (torchvision); trained on ImageNet-1k")


def _text(words: object) -> str:
    """Return words as one line that Markdown shows as they are."""
    line = printable(str(words).encode("utf-8", "replace").decode())
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#&" else letter for letter in line)
