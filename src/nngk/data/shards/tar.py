"""Tar files as WebDataset writes them: the files of a sample follow each other and share a name up to its first dot.

The class of a picture is in the sample's ``.cls`` file or under ``label`` in its ``.json`` file; where it has neither,
it is the folder that the picture lies in.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from nngk.data.folder import is_image
from nngk.errors import InputError
from nngk.files import parse_json

_MOST_TEXT = 1 << 20  # bytes of a file that says a class


def tar_rows(shard: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each picture, which says where in the file it lies, and its class.

    Raise InputError if the file is no tar file, or a picture has no class.
    """
    pictures: list[tuple[str, str, str]] = []  # key, name, folder
    classes: dict[str, str] = {}
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                if not member.isreg():
                    continue
                file = PurePosixPath(member.name)
                key = str(file.parent / file.name.split(".", 1)[0])
                if is_image(Path(file.name)):
                    place = f"{member.offset_data}+{member.size} {file.name}"
                    pictures.append((key, place, file.parent.name))
                elif file.suffix in (".cls", ".json") and member.size <= _MOST_TEXT:
                    text = archive.extractfile(member)
                    said = _class(b"" if text is None else text.read(), file.suffix, f"{shard}/{member.name}")
                    if said:
                        classes[key] = said
    except (tarfile.TarError, EOFError) as error:
        raise InputError(f"{shard} cannot be read as an uncompressed tar file ({error}): write it again.") from None
    for key, place, folder in pictures:
        label = classes.get(key, folder)
        if not label:
            raise InputError(
                f"{shard} holds {key} without a class: expected {key}.cls, a 'label' in {key}.json, or a folder."
            )
        yield place, label


def tar_bytes(shard: Path, place: str) -> bytes:
    """Return the bytes of a picture. Raise FileNotFoundError if the name does not say where it lies."""
    offset, plus, size = place.split(" ", 1)[0].partition("+")
    if not (plus and offset.isdigit() and size.isdigit()):
        raise FileNotFoundError(shard / place)
    with shard.open("rb") as file:
        file.seek(int(offset))
        data = file.read(min(int(size), os.fstat(file.fileno()).st_size))
    if len(data) < int(size):
        raise OSError("the tar file ends before the picture does")
    return data


def _class(data: bytes, kind: str, name: str) -> str:
    try:
        text = data.decode()
        if kind == ".cls":
            return text.strip()
        said = parse_json(text)
    except ValueError as error:
        raise InputError(f"{name} should say a class, and cannot be read ({error}).") from None
    label = said.get("label") if isinstance(said, dict) else None
    return str(label).strip() if isinstance(label, str | int) else ""
