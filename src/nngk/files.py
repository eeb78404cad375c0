"""Files that are whole or absent, records that notice damage, and folders with one writer at a time.

A file is written under a temporary name of its own, flushed to the disk, renamed, and its folder flushed too: whatever
happens on the way, the old file or the new one is there. What a writer that was killed leaves behind is recognised by
its name and cleared by the next one.
"""

import errno
import hashlib
import json
import math
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from filelock import FileLock, Timeout
from torch import Tensor, uint8

from nngk.errors import InputError
from nngk.progress import say

T = TypeVar("T")

LOCK = ".lock"  # in a folder with one writer at a time
_PART = ".part"  # how the names of temporary files end
_ABANDONED = 86_400.0  # seconds after which a temporary file belongs to nobody who is alive
_PATIENCE = 5.0  # seconds of waiting for another writer before a person is told
_DIGEST = "sha256"  # of the tensors, in the metadata of a safetensors file


# -- writing


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path`` and rename it into place."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    _write(path, write, lambda part: path)


def _write(path: Path, write: Callable[[Path], object], final: Callable[[Path], Path]) -> None:
    """Let ``write`` fill a temporary file beside ``path`` and rename it to what ``final`` says of the filled file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{_PART}")
    try:
        part.touch(exist_ok=False)
        mode = part.stat().st_mode  # what this user gives to new files; some libraries keep theirs to themselves
        write(part)
        part.chmod(mode)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(final(part))
        sync_folder(path.parent)
    except OSError as error:
        if error.filename in (None, str(part), part) and error.strerror is not None:
            error.filename = str(path)  # what a person knows of; a full disk names nothing
        raise
    finally:
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, where the system can."""
    with suppress(PermissionError):  # Windows opens no folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def clear_leftovers(folder: Path, *names: str) -> None:
    """Remove what killed writers left of files whose names begin with one of ``names``.

    Only for whoever is the single writer of those files: the temporary file of a living one would go too.
    """
    for path in folder.glob(".*"):
        if path.name.endswith((_PART, ".new")) and path.name.lstrip(".").startswith(names):
            path.unlink(missing_ok=True)


def clear_abandoned(path: Path) -> None:
    """Remove temporary files of ``path`` that nobody has touched for a day: for writers that hold no lock."""
    for part in path.parent.glob(f".{escape(path.name)}.*{_PART}"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > _ABANDONED:
                part.unlink()


# -- JSON


def write_json(path: Path, value: Any) -> None:
    """Write JSON, atomically."""
    # In ASCII: a file name may hold bytes that are no text, which only an escape can carry.
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Return a JSON object. Raise InputError if the file of ``what`` is missing, unreadable or damaged."""
    try:
        require_regular(path, "a file of JSON")
        value = parse_json(path.read_text(encoding="utf-8"))
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path.parent} is not {what}: it holds no {path.name}.") from None
    except PermissionError:
        raise forbidden(path) from None
    except (OSError, ValueError) as error:
        raise damaged(path, error) from None
    if not isinstance(value, dict):
        raise damaged(path, "it should hold a JSON object")
    return value


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Raise ValueError if it is none, or has a number that is not finite."""
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is no finite number")
    return value


def damaged(path: Path, why: object) -> InputError:
    """Return the error for a file that cannot be what was written."""
    return InputError(f"{path} is damaged ({why}); restore it from a copy or train again.")


def forbidden(path: Path | str) -> InputError:
    """Return the error for a file or folder that this user may not read."""
    return InputError(f"{path} may not be read by this user: ask its owner for the right to (chmod a+rX).")


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def require_regular(path: Path, what: str) -> os.stat_result:
    """Return the status of a regular file. Raise InputError if it is anything else, which might never end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")
        raise InputError(f"{path} is {kind}, not {what}: give a file, or remove it.")
    return status


@contextmanager
def readable() -> Iterator[None]:
    """Raise InputError with the name of what may not be read or has no possible name, where the system refuses it."""
    try:
        yield
    except PermissionError as error:
        raise forbidden(error.filename or str(error)) from None
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise InputError(
            f"The name {str(error.filename)[:60]!r}… is too long for this system: check the path."
        ) from None


# -- records: JSON objects with a format number and a checksum of what they say


def checksum(record: dict[str, Any]) -> str:
    """Return the SHA-256 of what a record says, whatever its layout and the order of its fields.

    >>> checksum({"a": 1, "b": 2}) == checksum({"b": 2, "a": 1, "checksum": "…"})
    True
    """
    said = {key: value for key, value in record.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def write_record(path: Path, record: dict[str, Any]) -> str:
    """Write a record with its checksum, atomically; return the checksum."""
    plain = json.loads(json.dumps(record, allow_nan=False))  # as a reader will see it: tuples are lists
    sealed = checksum(plain)
    write_json(path, {**plain, "checksum": sealed})
    return sealed


def read_record(path: Path, what: str, newest: int, first_sealed: int = 2) -> dict[str, Any]:
    """Return a record of a format up to ``newest``, which has a checksum from the format ``first_sealed`` on.

    Raise InputError if the file is missing, damaged, or of a version that this one does not know. A record without a
    format number is of the first.
    """
    record = read_json(path, what)
    number = record.get("format", 1)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise damaged(path, f"its format is {number!r}")
    if number > newest:
        raise InputError(
            f"{path} was written by a newer version of nngk (format {number}; this one reads up to {newest}): "
            "update nngk to read it."
        )
    if (number >= first_sealed or "checksum" in record) and record.get("checksum") != checksum(record):
        raise damaged(path, "its checksum is wrong")
    return record


def fitted(value: Any, schema: type[T], path: Path) -> T:
    """Return a value of ``path`` as what ``schema`` describes. Raise InputError if it does not fit."""
    try:
        return msgspec.convert(value, schema)
    except msgspec.ValidationError as error:
        raise damaged(path, error) from None


# -- tensors


def write_named_tensors(folder: Path, kind: str, tensors: dict[str, Tensor]) -> tuple[str, str]:
    """Write tensors into a file whose name says what is in it, so that no other is overwritten: name and SHA-256.

    A reader keeps the files it knows until the JSON that names them points to new ones.
    """
    plain, named = _plain(tensors), {}

    def name_by_content(part: Path) -> Path:
        named["sha256"] = sha256(part)
        named["name"] = f"{kind}-{named['sha256'][:12]}.safetensors"
        return folder / named["name"]

    _write(folder / kind, lambda part: _save(part, plain), name_by_content)
    return named["name"], named["sha256"]


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> str:
    """Write a safetensors file that knows its own checksum, atomically; return the SHA-256 of the file."""
    plain = _plain(tensors)
    write_atomically(path, lambda part: _save(part, plain, {_DIGEST: digest_of(plain)}))
    return sha256(path)


def read_tensors(path: Path, checksum: str | None = None) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file. Raise InputError if it is missing, unreadable or damaged.

    Without the ``checksum`` of the file, the tensors must agree with the one inside it, where there is one.
    """
    from safetensors import SafetensorError

    try:
        require_regular(path, "a file of tensors")
        data = path.read_bytes()
        if checksum is not None and hashlib.sha256(data).hexdigest() != checksum:
            raise damaged(path, "its checksum is wrong")
        tensors, notes = parse_tensors(data)
        if checksum is None and notes.get(_DIGEST) not in (None, digest_of(tensors)):
            raise damaged(path, "its checksum is wrong")
        return tensors
    except FileNotFoundError:
        raise InputError(f"{path} is missing; restore it from a copy or train again.") from None
    except PermissionError:
        raise forbidden(path) from None
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from None


def parse_tensors(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata in the bytes of a safetensors file; raise SafetensorError if they are none.

    From bytes, because tensors of a mapped file would change with it, and end the process if it becomes shorter.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = dict(sorted(load(data).items()))
    except (KeyError, AssertionError) as error:  # a type that this version of the library does not know
        raise SafetensorError(f"{type(error).__name__}: {error}") from None
    end = 8 + int.from_bytes(data[:8], "little")
    return tensors, json.loads(data[8:end]).get("__metadata__") or {}


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    # safetensors refuses tensors that share memory or are not laid out in order; copies are neither.
    return {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}


def digest_of(tensors: dict[str, Tensor]) -> str:
    """Return the SHA-256 of tensors with their names, types and shapes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(uint8).numpy().data)
    return digest.hexdigest()


def _save(part: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, part, metadata)
    except SafetensorError as error:  # a full disk, in this library's words
        raise OSError(f"{part.parent} could not be written ({error})") from None


# -- folders


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one writer at a time, of any thread or process, into a folder; the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        say(f"Waiting for another process that writes into {folder} …")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def alone(folder: Path, lock_name: str, complaint: str) -> Iterator[None]:
    """Hold a folder for oneself. Raise InputError with ``complaint`` if another thread or process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / lock_name)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(complaint) from None
    try:
        yield
    finally:
        lock.release()
