"""Find out what a folder holds, whether it is complete, and which of its images are broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageChops

from nngk.data.datasets.by_name import DATASETS, recognise
from nngk.data.datasets.official import Dataset, resolve, shortfalls
from nngk.data.decode import load_image
from nngk.data.folder import read_folder, subfolders
from nngk.data.packs.layout import open_pack, pack_table, was_pack
from nngk.data.table import quoted
from nngk.device import cpu_count
from nngk.errors import InputError, printable
from nngk.files import readable
from nngk.progress import Seen


@dataclass
class FolderReport:
    """The answer of `check_folder`; `str()` of it is for people, `to_dict()` for programs."""

    folder: str
    kind: str  # a dataset's name, 'pack', 'folder', 'collection' or 'unknown'
    title: str
    images: int = 0
    classes: int = 0
    splits: dict[str, int] = field(default_factory=dict)
    decoded: bool = False  # whether every image was opened
    missing: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # sentences
    notes: list[str] = field(default_factory=list)  # sentences about what is unusual but not wrong
    parts: list[FolderReport] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing and nothing is broken."""
        return self.kind != "unknown" and not self.problems and all(part.complete for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON."""
        parts = [part.to_dict() for part in self.parts]
        return {**asdict(self), "parts": parts, "complete": self.complete}

    def __str__(self) -> str:
        lines = [f"{self.folder}: {self.title}"]
        if self.images:
            splits = ", ".join(f"{count:,} {name}" for name, count in self.splits.items())
            lines.append(f"  {self.images:,} images of {self.classes:,} classes{f' ({splits})' if splits else ''}")
        lines += [f"  problem: {problem}" for problem in self.problems]
        lines += [f"  note: {note}" for note in self.notes]
        if self.kind not in ("unknown", "collection") and self.complete:
            lines.append("  complete; every image opens" if self.decoded else "  complete; the images were not opened")
        # Names come from outside: they must not move the cursor, nor forge a line.
        return "\n".join([*map(printable, lines), *(str(part) for part in self.parts)])


def check_folder(folder: str | Path, *, decode: bool = False, progress: Seen | None = None) -> FolderReport:
    """Find out what a folder is and whether it is whole; `decode` opens every image too.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as home:
    ...     for name in ("cat", "dog"):
    ...         Path(home, name).mkdir()
    ...         for number in "12":
    ...             Image.new("RGB", (5, 4)).save(f"{home}/{name}/{number}.png")
    ...     report = check_folder(home, decode=True)
    ...     report.kind, report.images, report.classes, report.complete
    ('folder', 4, 2, True)
    """
    with readable():
        return _checked(Path(folder), decode, progress)


def _checked(folder: Path, decode: bool, progress: Seen | None) -> FolderReport:
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}: check the path.")
    dataset = recognise(folder)
    if dataset is not None:
        return _check_dataset(dataset, folder, decode, progress)
    if was_pack(folder):
        return _check_pack(folder, decode, progress)
    parts = [place for place in subfolders(folder) if was_pack(place) or recognise(place)]
    if parts:
        report = FolderReport(str(folder), "collection", f"a folder that holds {len(parts)} dataset(s)")
        report.parts = [_checked(place, decode, progress) for place in parts]
        return report
    return _check_plain(folder, decode, progress)


def _check_dataset(dataset: Dataset, folder: Path, decode: bool, progress: Seen | None) -> FolderReport:
    report = FolderReport(str(folder), dataset.name, dataset.title)
    try:
        listed = dataset.read(folder)
    except InputError as error:
        report.problems.append(str(error))
        return report
    paths = resolve(folder, listed.names)
    there = np.array([path is not None for path in paths], dtype=bool)
    report.images, report.classes = int(there.sum()), len(np.unique(listed.labels[there]))
    splits = listed.splits or listed.unseen
    if splits is not None:
        report.splits = dict(Counter(split for split, here in zip(splits, there) if here))
    report.missing = [name for name, path in zip(listed.names, paths) if path is None]
    report.problems += [f"{fault[0].upper()}{fault[1:]}." for fault in shortfalls(dataset, listed, there)]
    other = sum(path is not None and path.name != Path(name).name for path, name in zip(paths, listed.names))
    if other:
        report.notes.append(f"{other:,} images have another file ending than listed; they are read all the same.")
    if decode:
        _open_all([path for path in paths if path is not None], report, progress)
    return report


def _check_pack(folder: Path, decode: bool, progress: Seen | None) -> FolderReport:
    report = FolderReport(str(folder), "pack", "a pack of decoded images")
    try:
        table, opened = pack_table(folder), open_pack(folder)
    except InputError as error:
        report.problems.append(str(error))
        return report
    task = f", split for the task '{table.task}'" if table.task else ""
    shape = f"at {opened.size}×{opened.size}" if opened.squash else f"with shorter sides of {opened.size} pixels"
    report.title = f"a pack of {table.name} {shape}{task}"
    report.images, report.classes = len(table), len(np.unique(table.labels))
    report.splits = dict(Counter(table.splits or ()))
    if decode:
        report.decoded = True
        for row, path in enumerate(opened.meta["paths"]):
            if not opened.intact(row):
                report.broken.append(path)
            if progress:
                progress(row + 1, len(table))
        if report.broken:
            report.problems.append(
                f"{len(report.broken):,} images were damaged after packing: {quoted(report.broken, 3)}."
            )
    return report


def _check_plain(folder: Path, decode: bool, progress: Seen | None) -> FolderReport:
    try:
        table = read_folder(folder)
    except InputError as error:
        names = ", ".join(dataset.title for dataset in DATASETS.values())
        report = FolderReport(str(folder), "unknown", "not a folder of images that is known here")
        report.problems.append(f"{error} Nor is it a pack, or one of {names} in its official layout.")
        return report
    report = FolderReport(str(folder), "folder", "an image folder with one sub-folder per class", len(table))
    report.classes, report.splits = len(table.class_names), dict(Counter(table.splits or ()))
    if report.classes < 2:
        report.problems.append(f"All images are of one class, '{table.class_names[0]}': at least two are needed.")
    single = [table.class_names[c] for c in np.flatnonzero(table.counts() == 1)]
    if single:
        report.notes.append(f"{len(single)} classes have a single image, too few to train with: {quoted(single)}.")
    if decode:
        _open_all(table.paths, report, progress)
    return report


def _open_all(paths: list[Path], report: FolderReport, progress: Seen | None) -> None:
    report.decoded = True
    grey = 0
    for number, (path, outcome) in enumerate(_outcomes(paths), start=1):
        if isinstance(outcome, str):
            report.broken.append(str(path))
        else:
            grey += outcome
        if progress:
            progress(number, len(paths))
    if report.broken:
        report.problems.append(f"{len(report.broken):,} images cannot be opened: {quoted(report.broken, 3)}.")
    if grey:
        report.notes.append(f"{grey:,} images have no colour; they are read as RGB.")


def _outcomes(paths: list[Path]) -> Iterator[tuple[Path, bool | str]]:
    """Yield each image's path with whether it is grey, or with why it cannot be opened."""

    def attempt(path: Path) -> bool | str:
        try:
            return _is_grey(load_image(path))
        except InputError as error:
            return str(error)

    with ThreadPoolExecutor(cpu_count()) as pool:
        # In pieces, so that an interruption does not wait for all of them.
        for start in range(0, len(paths), 256):
            piece = paths[start : start + 256]
            yield from zip(piece, pool.map(attempt, piece))


def _is_grey(image: Image.Image) -> bool:
    """Return whether the colours of a picture are equal, or one level off, as in a lossy file."""
    red, green, blue = image.split()
    apart = (ImageChops.difference(red, green), ImageChops.difference(green, blue))
    return not any(any(difference.histogram()[2:]) for difference in apart)
