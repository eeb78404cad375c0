"""Files that are whole or absent: written under a temporary name, flushed to disk, then renamed."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock
from torch import Tensor

from nngk.errors import InputError


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path`` and rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # what this user gives new files; some libraries keep theirs to themselves
        write(temporary)
        temporary.chmod(mode)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON, atomically."""
    # In ASCII: a file name may hold bytes that are no text, which only an escape can carry.
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object, or say which file of ``what`` is missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path.parent} is not {what}: it holds no {path.name}.") from None
    except PermissionError:
        raise _forbidden(path) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is damaged ({error}); restore it from a copy or train again.") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} is damaged: it should hold a JSON object; restore it from a copy or train again.")
    return value


def write_named_tensors(folder: Path, kind: str, tensors: dict[str, Tensor]) -> tuple[str, str]:
    """Write tensors into a file whose name says what is in it, so that no other is overwritten: name and SHA-256.

    A reader keeps the files it knows until the JSON that names them points to new ones.
    """
    path = folder / f".{kind}.new"
    checksum = write_tensors(path, tensors)
    name = f"{kind}-{checksum[:12]}.safetensors"
    path.replace(folder / name)
    return name, checksum


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> str:
    """Write a safetensors file, atomically; returns its SHA-256."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # safetensors refuses tensors that share memory or are not laid out in order; copies are neither.
    plain = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    try:
        write_atomically(path, lambda part: save_file(plain, part))
    except SafetensorError as error:  # a full disk, in this library's words
        raise OSError(f"{path} could not be written ({error})") from None
    return sha256(path)


def read_tensors(path: Path, checksum: str | None = None) -> dict[str, Tensor]:
    """Read a safetensors file, or say that it is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if checksum is not None and sha256(path) != checksum:
            raise InputError(f"{path} is damaged (its checksum is wrong); restore it from a copy or train again.")
        return load_file(path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing; restore it from a copy or train again.") from None
    except PermissionError:
        raise _forbidden(path) from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged ({error}); restore it from a copy or train again.") from None


def _forbidden(path: Path) -> InputError:
    return InputError(f"{path} may not be read by this user: ask its owner for the right to (chmod a+r).")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one writer at a time, of any thread or process, into a folder; the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        yield
