"""One file over HTTP: resumed where it stopped, checked before it gets its name."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nngk.errors import InputError

_BLOCK = 1 << 20
_TRIES = 5  # a broken connection is taken up again this often without progress
_PAUSE = 1.0  # seconds, more after each failure
_TIMEOUT = 60.0


def fetch(url: str, file: Path, *, md5: str | None = None, progress: Callable[[int, int], None] | None = None) -> Path:
    """Download `url` to `file`, going on from a part that an earlier attempt left.

    `progress` gets the bytes done and the bytes in all (0 when the server does not say).
    """
    if file.exists():
        if md5 is None or _md5(file) == md5:
            return file
        file.unlink()  # not what was published: fetch it afresh
    file.parent.mkdir(parents=True, exist_ok=True)
    part, mark = file.with_name(f"{file.name}.part"), file.with_name(f"{file.name}.part.etag")
    failures = 0
    while True:
        before = _length(part)
        try:
            _transfer(url, part, mark, progress)
            break
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
                if error.code == 416 and part.exists():  # the part is as long as the file, or longer
                    if md5 is not None and _md5(part) == md5:
                        break
                    part.unlink()
                elif error.code < 500 and error.code != 429:
                    answer = f"{url} answers '{error.code} {error.reason}': the address may have moved."
                    raise InputError(answer) from error
            failures = 0 if _length(part) > before else failures + 1
            if failures >= _TRIES:
                raise InputError(
                    f"{url} cannot be fetched ({getattr(error, 'reason', error)}): check the connection and run the "
                    f"same command again; it goes on from the {_length(part):,} bytes that are here."
                ) from error
            time.sleep(_PAUSE * failures)
    if md5 is not None and _md5(part) != md5:
        part.unlink()
        mark.unlink(missing_ok=True)
        raise InputError(f"What came from {url} has not the published checksum ({md5}); it was removed. Try again.")
    part.replace(file)
    mark.unlink(missing_ok=True)
    return file


def _transfer(url: str, part: Path, mark: Path, progress: Callable[[int, int], None] | None) -> None:
    have = _length(part)
    headers = {"User-Agent": "nngk", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if mark.exists():
            headers["If-Range"] = mark.read_text(encoding="utf-8")  # a changed file is sent from its beginning
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT) as answer:
        resumed = answer.status == 206 and _starts_at(answer, have)
        done = have if resumed else 0
        length = int(answer.headers.get("Content-Length") or 0)
        total = done + length if length else 0
        tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
        if tag and not tag.startswith("W/"):
            mark.write_text(tag, encoding="utf-8")
        with part.open("ab" if resumed else "wb") as stream:
            while block := answer.read(_BLOCK):
                stream.write(block)
                done += len(block)
                if progress:
                    progress(done, total)
            stream.flush()
            os.fsync(stream.fileno())
    if total and done < total:
        raise ConnectionError(f"the connection ended after {done:,} of {total:,} bytes")


def _starts_at(answer: Any, have: int) -> bool:
    return str(answer.headers.get("Content-Range", "")).startswith(f"bytes {have}-")


def _length(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _md5(file: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)  # the sums that were published; they guard against damage only
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
