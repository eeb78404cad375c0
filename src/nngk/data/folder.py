"""Read a folder with one sub-folder per class, or train/, val/ and test/ folders of those."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nngk.data.table import ImageTable, quoted
from nngk.errors import InputError

EXTENSIONS = frozenset(
    f".{ending}"
    for ending in (
        *("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff"),
        *("ppm", "pgm", "pbm", "pnm", "avif", "jp2", "tga", "heic", "heif"),
    )
)
_SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


def split_name(text: str) -> str | None:
    """Return 'train', 'val' or 'test' for any usual spelling of them, else None.

    >>> split_name("Validation")
    'val'
    """
    return _SPLIT_NAMES.get(text.strip().lower())


def is_image(path: Path) -> bool:
    """Return whether a name looks like a picture's; hidden files never do."""
    return path.suffix.lower() in EXTENSIONS and not path.name.startswith(".")


def read_folder(folder: Path) -> ImageTable:
    """Return the table of an image folder, in sorted order."""
    rows = list(_classes(folder))
    splits: list[str] | None = None
    roles = {name: split_name(name) for name, _ in rows}
    if _has_parts(folder, roles):
        # Pictures that lie in a part's folder itself belong to no class.
        inside = [(str(roles[part]), path.relative_to(folder / part).parts, path) for part, path in rows]
        splits = [role for role, below, _ in inside if len(below) > 1]
        rows = [(below[0], path) for _, below, path in inside if len(below) > 1]
    if not rows:
        raise InputError(_nothing(folder))
    if len({name for name, _ in rows}) == 1 and (question := doubt(folder)):
        raise InputError(f"{folder} has one sub-folder with images. {question}")
    names = sorted({name for name, _ in rows})
    number = {name: label for label, name in enumerate(names)}
    return ImageTable(
        paths=[path for _, path in rows],
        labels=np.array([number[name] for name, _ in rows], dtype=np.int64),
        class_names=names,
        splits=splits,
        name=folder.resolve().name,
    )


def _has_parts(folder: Path, roles: dict[str, str | None]) -> bool:
    """Return whether the folders with pictures are train, val and test; one such name alone may be a class's."""
    named = sorted(name for name, role in roles.items() if role)
    others = sorted(name for name, role in roles.items() if not role)
    parts = {role for role in roles.values() if role}
    if others and len(parts) > 1:
        raise InputError(
            f"{folder} has parts ({quoted(named)}) beside other folders with images ({quoted(others)}): move those "
            "away, or list the images in a CSV file with the columns path,label,split."
        )
    if len(parts) > 1 and "train" not in parts:
        raise InputError(f"{folder} has {quoted(named)}, but no folder 'train': add it, or rename the folders.")
    return not others and "train" in parts


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder that are not hidden, sorted; raise OSError if it cannot be read."""
    with os.scandir(folder) as entries:
        return sorted(folder / entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def images_below(folder: Path) -> list[Path]:
    """Return every picture at any depth below a folder, sorted; hidden folders are left out.

    Raise InputError if a folder cannot be read: its pictures must not be missing without a word. What looks like a
    picture and is none, such as a named pipe, is returned too, and refused when it is opened.
    """
    found = []
    for place, inner, names in os.walk(folder, onerror=_tell):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        found += [path for path in map(Path(place).joinpath, names) if is_image(path)]
    return sorted(found)


def overlooked(folder: Path) -> str:
    """Return a sentence about files below a folder that are not read: hidden ones, and what is no picture; or ''."""
    hidden, others = 0, Counter[str]()
    for _, inner, names in os.walk(folder):
        hidden += sum(name.startswith(".") for name in [*inner, *names])
        inner[:] = [name for name in inner if not name.startswith(".")]
        seen = [Path(name) for name in names if not name.startswith(".")]
        others.update(path.suffix.lower() or "no ending" for path in seen if not is_image(path))
    parts = [f"{hidden} hidden {'file or folder' if hidden == 1 else 'files and folders'}"] if hidden else []
    if others:
        kinds = ", ".join(kind for kind, _ in others.most_common(5)) + (", …" if len(others) > 5 else "")
        count = others.total()
        parts.append(f"{count} {'file' if count == 1 else 'files'} that {'is' if count == 1 else 'are'} no picture")
        parts[-1] += f" ({kinds})"
    return f"Not read in {folder}: {' and '.join(parts)}." if parts else ""


def doubt(folder: Path) -> str:
    """Return a question about a folder whose classes may lie deeper than its sub-folders; or ''.

    That is so where no sub-folder holds a picture itself, and each holds several folders with pictures, as the parent
    of several data sets does.
    """
    subs = [sub for sub in subfolders(folder) if images_below(sub)]
    roles = {split_name(sub.name) for sub in subs}
    if not subs or (None not in roles and "train" in roles):
        return ""
    if any(is_image(path) for sub in subs for path in sub.iterdir()):
        return ""
    inner = {sub: [place for place in subfolders(sub) if images_below(place)] for sub in subs}
    if not all(len(places) > 1 for places in inner.values()):
        return ""
    first = subs[0]
    return (
        f"The classes would be {quoted([sub.name for sub in subs], 3)}, but these hold no images themselves, only "
        f"folders such as {quoted([place.name for place in inner[first]], 3)}. If those are the classes, give "
        f"{first} instead of {folder}."
    )


def _tell(error: OSError) -> None:
    raise InputError(
        f"The folder {error.filename} cannot be read ({error.strerror}): give this user the right to (chmod a+rX), or "
        "move it away. Its images would be missing."
    )


def _classes(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield (class name, path) of every picture at any depth below each class's folder."""
    for sub in subfolders(folder):
        yield from ((sub.name, path) for path in images_below(sub))


def _nothing(folder: Path) -> str:
    parts = [sub for sub in subfolders(folder) if split_name(sub.name) and images_below(sub)]
    if parts:
        return (
            f"{folder} has images right in {quoted([part.name for part in parts])}, without a folder for each class: "
            "put the images of each class into a sub-folder there that bears its name."
        )
    loose = sum(is_image(folder / name) for name in os.listdir(folder))  # noqa: PTH208
    if loose:
        return (
            f"{folder} has {loose} images but no sub-folders with images: put the images of each class into a "
            "sub-folder that bears its name, or list them in a CSV file with the columns path,label."
        )
    return f"{folder} has no images: expected a sub-folder for each class with its images inside."
