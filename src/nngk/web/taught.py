"""Pictures that a model was taught over HTTP, kept in its folder beside what it learned from them."""

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from nngk.files import clear_leftovers, write_atomically

FOLDER = "taught"
LONGEST_SIDE = 2048
SMALL = 512 * 512  # pixels: up to here pictures are kept without loss


@dataclass(frozen=True)
class Encoded:
    """A picture as it is kept: its bytes, and a name that says what is in them."""

    name: str
    data: bytes


def encoded(picture: Image.Image) -> Encoded:
    """Return an RGB picture as it is kept, of a size that is worth keeping.

    It is encoded anew: what a camera or somebody else wrote into the file besides the pixels, such as the place where
    it was taken, is gone.
    """
    picture = picture.copy()
    picture.info.clear()
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    out, small = io.BytesIO(), picture.width * picture.height <= SMALL
    if small:
        picture.save(out, "PNG")
    else:
        picture.save(out, "JPEG", quality=95, subsampling=0)
    digest = hashlib.sha256(out.getvalue()).hexdigest()[:24]
    return Encoded(f"{digest}.{'png' if small else 'jpg'}", out.getvalue())


def keep(picture: Encoded, folder: Path) -> Path:
    """Write a picture into a model's folder, flushed to the disk, and return its path; the same one is kept once."""
    path = folder.resolve() / FOLDER / picture.name
    if not path.exists():
        write_atomically(path, lambda part: part.write_bytes(picture.data))
    return path


def clear_unnamed(folder: Path, sources: Iterable[str]) -> None:
    """Remove pictures that no centre of the model came from: those of undone changes and of killed servers."""
    place = folder / FOLDER
    if not place.is_dir():
        return
    clear_leftovers(place, *"0123456789abcdef")
    named = {Path(source).name for source in sources}
    for path in place.iterdir():
        if path.is_file() and path.name not in named:
            path.unlink(missing_ok=True)
