"""Where an experiment's images and weights come from, and what to do when they are not there."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from nngk.data import DATASETS, ImageTable, read_images
from nngk.data.datasets.official import locate
from nngk.data.packs.layout import is_pack, open_pack
from nngk.errors import InputError
from nngk.experiments.paper.quick import quick_table

# The networks that can stand for each of the paper's, the most faithful first, with the names their files may have.
STANDINS: dict[str, dict[str, tuple[str, ...]]] = {
    "googlenet": {
        "googlenet-bvlc": ("googlenet_bvlc_fp16.safetensors", "googlenet_bvlc.safetensors"),
        "googlenet": ("googlenet-1378be20.pth", "googlenet.safetensors"),
    },
    "resnet50": {
        "resnet50-v1": ("resnet50_v1.safetensors",),
        "resnet50": ("resnet50-0676ba61.pth", "resnet50.safetensors"),
    },
    "vgg16": {"vgg16": ("vgg16-397923af.pth", "vgg16.safetensors")},
    "alexnet": {"alexnet": ("alexnet-owt-7be5be79.pth", "alexnet.safetensors")},
}
DOWNLOADED = {"googlenet": "googlenet", "resnet50": "resnet50", "vgg16": "vgg16", "alexnet": "alexnet"}


@dataclass
class Sources:
    """The folders that a user named; every table is read once."""

    data: Path | None
    weights: str | None  # 'imagenet', or a folder
    work: Path
    quick: bool = False
    allow_missing: bool = False  # whether a dataset serves that lacks some of its images
    _tables: dict[tuple[str, str], ImageTable] = field(default_factory=dict)

    def table(self, dataset: str, task: str) -> ImageTable:
        """Return a dataset with the paper's splits for a task, from a pack, a list or its official layout."""
        if (dataset, task) not in self._tables:
            made = quick_table(self.work / "quick-data", dataset, task) if self.quick else self._find(dataset, task)
            self._tables[dataset, task] = made
        return self._tables[dataset, task]

    def _find(self, dataset: str, task: str) -> ImageTable:
        known = DATASETS[dataset]
        folder = self.data or (Path(os.environ["NNGK_DATA"]) if os.environ.get("NNGK_DATA") else None)
        if folder is None:
            raise InputError(
                f"Where is {known.title}? Give the folder that holds it with --data, or set NNGK_DATA. "
                f"Fetch it with: nngk data download {dataset} DIR"
            )
        if not folder.is_dir():
            raise InputError(f"There is no folder {folder}, where {known.title} was to be: check --data.")
        found = _pack_of(folder, dataset, task)
        if found is not None:
            return read_images(found, task=task)
        listed = folder / f"{dataset}-{task}.csv"  # path,label,split: reduced copies, for instance
        if listed.is_file():
            return replace(read_images(listed, task=task, allow_missing=self.allow_missing), name=dataset, task=task)
        if locate(known, folder) is None:
            raise InputError(
                f"There is no {known.title} in {folder}: expected {' or '.join(known.folders)} in its official layout, "
                f"or a pack of it for the task '{task}', or a list {listed.name} with the columns path,label,split. "
                f"Fetch it with: nngk data download {dataset} {folder}"
            )
        return read_images(dataset, data_dir=folder, task=task, allow_missing=self.allow_missing)

    def network(self, wanted: str, start: str = "imagenet") -> tuple[str, str]:
        """Return the network that stands for ``wanted``, one of the paper's or one of ours, and its weights."""
        if self.quick:
            return "small", "random"
        if start == "random":
            return next(iter(STANDINS.get(wanted, {wanted: ()}))), "random"
        source = self.weights or os.environ.get("NNGK_WEIGHTS") or "imagenet"
        if source == "imagenet":
            # Downloads are the library's; a network it has no download for says so itself.
            return DOWNLOADED.get(wanted, wanted), "imagenet"
        return _weights_in(Path(source), wanted)


def _pack_of(folder: Path, dataset: str, task: str) -> Path | None:
    """Return a pack of the dataset that is split for the task and cropped to the boxes where the paper crops."""
    cropped = DATASETS[dataset].crop and task == "classify"
    for place in [folder, *sorted(p for p in folder.iterdir() if p.is_dir())]:
        if is_pack(place):
            meta = open_pack(place).meta
            if (meta["name"], meta["task"], meta["boxes_applied"]) == (dataset, task, cropped):
                return place
    return None


def _weights_in(folder: Path, wanted: str) -> tuple[str, str]:
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder} of weights: check --weights, or use --weights imagenet.")
    family = STANDINS.get(wanted)
    if family is None:  # one of our own names
        family = {name: files for group in STANDINS.values() for name, files in group.items() if name == wanted}
    for network, files in family.items():
        for file in files:
            if (folder / file).is_file():
                return network, str(folder / file)
    if not family:
        raise InputError(f"No file in {folder} is known to hold the weights of '{wanted}': use --weights imagenet.")
    names = " or ".join(files[0] for files in family.values())
    raise InputError(
        f"There are no weights of {wanted} in {folder}: expected {names}. {_origin(wanted)} Where an experiment takes "
        "any network, --network resnet50 or another of 'nngk networks' does too."
    )


def _origin(wanted: str) -> str:
    if wanted.endswith("-bvlc"):
        return "It is the GoogLeNet of the Caffe model zoo (bvlc_googlenet) as safetensors."
    if wanted.endswith("-v1"):
        return "It is the first ResNet50 (MSRA's, the weights of Keras) as safetensors."
    return "--weights imagenet downloads torchvision's; its file in that folder serves as well."
