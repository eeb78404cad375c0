"""Where decoded images are kept for all runs, how much of them, and how they go."""

import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from nngk.data.packs.keys import absolute
from nngk.errors import InputError
from nngk.files import LOCK, alone

LIMIT = 50 * 10**9  # bytes of decoded images that are kept
IMAGES = "images"  # the only folder there that is ours to remove
_USED = ".used"  # its time says when a folder was last asked for
_RESTING = 24 * 3600.0  # seconds after which nobody is at work in a folder


def cache_home() -> Path:
    """Return the folder of everything that can be computed again: $XDG_CACHE_HOME/nngk, or ~/.cache/nngk."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "nngk"
    except RuntimeError:  # a process that belongs to nobody
        raise FileNotFoundError(errno.ENOENT, "There is no home folder; set XDG_CACHE_HOME") from None


def image_cache(paths: Iterable[Path], home: Path | None = None) -> Path:
    """Return the folder in which the decoded images of these files are kept, one for each place they come from."""
    folders = sorted({os.path.dirname(absolute(path)) for path in paths})  # noqa: PTH120
    shared = os.path.commonpath(folders) if folders else ""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(shared))[:40] or "images"  # noqa: PTH119
    digest = hashlib.blake2b(shared.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
    return (home or cache_home()) / IMAGES / f"{name}-{digest}"


def use_cache(folder: Path, limit: int = LIMIT) -> Path:
    """Mark a folder of the cache as used, and remove those that were not used for longest where all are too large.

    Folders that were used within a day stay: somebody may be reading them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _USED).touch()
    others = [place for place in folder.parent.glob("*/") if place != folder]
    total = cache_bytes(folder.parent)
    for place in sorted(others, key=_last_used):
        if total <= limit or time.time() - _last_used(place) < _RESTING:
            break
        total -= cache_bytes(place)
        shutil.rmtree(place, ignore_errors=True)
    return folder


def _last_used(folder: Path) -> float:
    with suppress(OSError):
        return (folder / _USED).stat().st_mtime
    return 0.0


def cache_bytes(folder: Path) -> int:
    """Return how many bytes the files below a folder take."""
    total = 0
    for place, _, names in os.walk(folder.resolve()):  # which may be a link to another disk
        for name in names:
            with suppress(OSError):  # another process may remove it at this moment
                total += (Path(place) / name).stat().st_size
    return total


def clear_cache() -> int:
    """Remove the images that are kept; return how many bytes that was.

    What another process is writing stays, and one that reads keeps what it has open.
    """
    home = cache_home() / IMAGES
    before = cache_bytes(home)
    for place in home.glob("*/"):
        with suppress(OSError, InputError), alone(place, LOCK, f"{place} is being written."):
            for path in place.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                elif path.name != LOCK:  # the next writer must find the one that others wait for
                    path.unlink()
    return before - cache_bytes(home)
