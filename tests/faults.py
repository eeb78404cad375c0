"""Faults on purpose: a process that dies, a call that fails, or a power cut, at the n-th touch of the disk.

The package touches the disk through a few calls: creating a file, filling it, flushing, renaming, removing. Each is
counted, and the one whose number is asked for does not happen, or only by half.
"""

import errno
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import safetensors.torch

LOCKS = (".lock", ".training", ".writer")
_injected = [0]


def count(faults=1):
    """Note that faults were injected; the report of a test says how many."""
    _injected[0] += faults


def counted():
    """Return how many faults were injected since the last call."""
    number, _injected[0] = _injected[0], 0
    return number


@dataclass
class Touch:
    """One call that is about to change what is on the disk."""

    number: int
    kind: str  # create, fill, flush, rename, remove
    path: Path
    source: Path | None = None  # of a rename
    half: Callable[[], None] | None = None  # fills a file by half


class Disk:
    """The calls that touch the disk under ``home``; ``strike`` hears of each before it happens, and may prevent it."""

    def __init__(self, home, strike):
        self.home, self.strike, self.count = Path(home), strike, 0
        self.calls = os.replace, os.unlink, os.fsync, os.open
        self.pwrite = os.pwrite
        self.save_file, self.write_text = safetensors.torch.save_file, Path.write_text

    def hit(self, kind, path, **more):
        path = Path(os.fspath(path))
        if (path == self.home or self.home in path.parents) and path.name not in LOCKS:
            self.count += 1
            self.strike(Touch(self.count, kind, path, **more))

    def replace(self, source, target, **options):
        self.hit("rename", target, source=Path(source))
        self.calls[0](source, target, **options)

    def unlink(self, path, **options):
        if Path(path).exists():
            self.hit("remove", path)
        self.calls[1](path, **options)

    def fsync(self, handle):
        self.hit("flush", Path(f"/proc/self/fd/{handle}").readlink())
        self.calls[2](handle)

    def open(self, path, flags, *more, **options):
        if flags & os.O_CREAT:
            self.hit("create", path)
        return self.calls[3](path, flags, *more, **options)

    def save(self, tensors, path, metadata=None):
        def half():
            self.save_file(tensors, path, metadata)
            os.truncate(path, Path(path).stat().st_size // 2)

        self.hit("fill", path, half=half)
        self.save_file(tensors, path, metadata)

    def append(self, handle, data, offset):
        path = Path(f"/proc/self/fd/{handle}").readlink()
        self.hit("fill", path, half=lambda: self.pwrite(handle, data[: len(data) // 2], offset))
        return self.pwrite(handle, data, offset)

    def text(self, path, text, *more, **options):
        self.hit("fill", path, half=lambda: self.write_text(path, text[: len(text) // 2], *more, **options))
        return self.write_text(path, text, *more, **options)


@contextmanager
def watched(home, strike):
    """Let ``strike`` hear of every touch of the disk under ``home``."""
    disk = Disk(home, strike)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", disk.replace)
        patch.setattr(os, "unlink", disk.unlink)
        patch.setattr(os, "fsync", disk.fsync)
        patch.setattr(os, "open", disk.open)
        patch.setattr(os, "pwrite", disk.append)
        patch.setattr(safetensors.torch, "save_file", disk.save)
        patch.setattr(Path, "write_text", lambda path, text, *more, **options: disk.text(path, text, *more, **options))
        yield disk


def killed(home, act, number, halfway=False):
    """Run ``act`` in a process that dies of kill -9 just before its n-th touch of the disk, or in the middle of it.

    Returns whether it died: a process that ended by itself has acknowledged what it did.
    """

    def strike(touch):
        if touch.number == number:
            if halfway and touch.half is not None:
                touch.half()
            os.kill(os.getpid(), signal.SIGKILL)

    count()
    child = os.fork()
    if not child:
        code = 1
        try:
            with watched(home, strike):
                act()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "it failed instead of dying or finishing"
    return os.WIFSIGNALED(status)


@contextmanager
def failing(home, number, error=errno.ENOSPC):
    """Let the n-th touch of the disk fail, and every later one that needs space; what fills a file stops by half."""

    def strike(touch):
        if touch.number >= number and touch.kind != "remove":
            if touch.half is not None:
                touch.half()
            raise OSError(error, os.strerror(error), str(touch.path))

    count()
    with watched(home, strike) as disk:
        yield disk


def after_power_cuts(home, act):
    """Yield, for every moment of ``act``, the files that may be left in ``home`` if the power fails then.

    A file that was not flushed is empty. Of the renames and removals since the folder was last flushed, none, all or
    any single one may have reached the disk.
    """
    first = {path.name: path.read_bytes() for path in Path(home).iterdir() if path.name not in LOCKS}
    touches, flushed = [], {}

    def remember(touch):
        touches.append(touch)
        if touch.kind == "flush" and touch.path.is_file():
            flushed[touch.path.name] = len(touches), touch.path.read_bytes()

    with watched(home, remember):
        act()
    for moment in range(len(touches) + 1):
        durable, pending = dict(first), []
        for touch in touches[:moment]:
            if touch.kind in ("rename", "remove"):
                pending.append(touch)
            elif touch.kind == "flush" and touch.path == Path(home):
                for earlier in pending:
                    _reach(durable, earlier, flushed)
                pending = []
        for subset in ([], pending, *([touch] for touch in pending)):
            files = dict(durable)
            for touch in subset:
                _reach(files, touch, flushed)
            count()
            yield files


def _reach(files, touch, flushed):
    """Let a rename or a removal reach the disk."""
    if touch.kind == "remove":
        files.pop(touch.path.name, None)
    elif touch.source.name in files:
        files[touch.path.name] = files.pop(touch.source.name)
    else:
        when, data = flushed.get(touch.source.name, (touch.number, b""))
        files[touch.path.name] = data if when < touch.number else b""


def fill(folder, files):
    """Make a folder hold these files and no others."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def survived(act, within=0):
    """Run ``act`` in a process of its own and return whether it ended well: not by a signal, nor by an exception.

    One that takes longer than ``within`` seconds hangs and is ended by the system's alarm.
    """
    child = os.fork()
    if not child:
        code = 1
        signal.alarm(within)
        try:
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert not os.WIFSIGNALED(status), f"it died of {signal.Signals(os.WTERMSIG(status)).name}"
    return os.WEXITSTATUS(status) == 0
