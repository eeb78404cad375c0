"""Faults on purpose: a process that dies, a call that fails, or a machine that loses power at the n-th touch of the disk.

Files are touched through a few calls of the operating system: opening for writing, writing, flushing, renaming,
removing. Each is counted, and the one whose number is asked for does not happen, or happens by half.
"""

import errno
import os
import signal
import stat
from contextlib import contextmanager
from pathlib import Path

import pytest
import safetensors.torch


class Disk:
    """Counts the calls that change what is on the disk under ``home`` and lets ``strike`` decide what becomes of each.

    ``strike(number, name, path)`` is called before the call; it may raise, kill, or return. Afterwards ``half`` is
    called for a write that is to be cut short.
    """

    def __init__(self, home, strike):
        self.home, self.strike, self.count = Path(home), strike, 0
        self.real = {"replace": os.replace, "unlink": os.unlink, "fsync": os.fsync, "open": os.open}
        self.save_file, self.write_text = safetensors.torch.save_file, Path.write_text

    def ours(self, path):
        path = Path(os.fspath(path))
        return self.home in path.parents and path.name not in (".lock", ".training")

    def hit(self, name, path, half=None):
        if self.ours(path):
            self.count += 1
            self.strike(self.count, name, Path(path), half)

    def replace(self, source, target, **options):
        self.hit("replace", target)
        self.real["replace"](source, target, **options)

    def unlink(self, path, **options):
        if Path(path).exists():
            self.hit("unlink", path)
        self.real["unlink"](path, **options)

    def fsync(self, handle):
        self.hit("fsync", os.readlink(f"/proc/self/fd/{handle}") + "/." * stat.S_ISDIR(os.fstat(handle).st_mode))
        self.real["fsync"](handle)

    def open(self, path, flags, *more, **options):
        if flags & os.O_CREAT:
            self.hit("touch", path)
        return self.real["open"](path, flags, *more, **options)

    def save(self, tensors, path, metadata=None):
        def half():
            self.save_file(tensors, path, metadata)
            os.truncate(path, os.stat(path).st_size // 2)

        self.hit("save_file", path, half)
        self.save_file(tensors, path, metadata)

    def text(self, path, text, *more, **options):
        self.hit("write", path, lambda: self.write_text(path, text[: len(text) // 2], *more, **options))
        return self.write_text(path, text, *more, **options)


@contextmanager
def watched(home, strike):
    """Let ``strike`` see every touch of the disk under ``home``; yields the counter."""
    disk = Disk(home, strike)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", disk.replace)
        patch.setattr(os, "unlink", disk.unlink)
        patch.setattr(os, "fsync", disk.fsync)
        patch.setattr(os, "open", disk.open)
        patch.setattr(safetensors.torch, "save_file", disk.save)
        patch.setattr(Path, "write_text", lambda path, text, *more, **options: disk.text(path, text, *more, **options))
        yield disk


def touches(home, act):
    """The calls, by name, that ``act`` makes when nothing goes wrong."""
    names = []
    with watched(home, lambda number, name, path, half: names.append(name)):
        act()
    return names


def killed(home, act, number, halfway=False):
    """Run ``act`` in a process that dies of kill -9 just before its n-th touch of the disk, or in its middle.

    Returns whether it died; a process that finishes instead has acknowledged its work.
    """

    def strike(now, name, path, half):
        if now == number:
            if halfway and half is not None:
                half()
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        try:
            with watched(home, strike):
                act()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, "it failed instead of dying or finishing"
    return False


@contextmanager
def failing(home, number, error=errno.ENOSPC):
    """Let the n-th touch of the disk fail; a write fails by half. Removing succeeds: that is how space is made."""

    def strike(now, name, path, half):
        if now == number and name != "unlink":
            if half is not None:
                half()
            raise OSError(error, os.strerror(error), str(path))

    with watched(home, strike) as disk:
        yield disk


# -- loss of power: what was not flushed may be gone, in any order


class Recorder:
    """Remembers what happens on the disk under ``home``, to say what may be there if the power fails at any time."""

    def __init__(self, home):
        self.home = Path(home)
        self.contents = {p.name: p.read_bytes() for p in self.home.iterdir() if p.is_file()}
        self.steps = []  # (kind, names…)

    def strike(self, number, name, path, half):
        if name == "fsync":
            kind = "folder" if path.name == "." or path == self.home else "file"
            data = None if kind == "folder" else path.read_bytes()
            self.steps.append((kind, path.name, data))
        elif name == "unlink":
            self.steps.append(("unlink", path.name, None))

    def replaced(self, source, target):
        self.steps.append(("replace", Path(source).name, Path(target).name))


def after_power_loss(home, act):
    """Yield, for every moment of ``act`` and several orders of what was still in flight, the files that may be left.

    A file that was not flushed is empty under its new name. A rename or a removal that the folder's flush has not
    reached may have happened or not, each on its own.
    """
    recorder = Recorder(home)
    real = os.replace

    def strike(number, name, path, half):
        recorder.strike(number, name, path, half)

    with watched(home, strike) as disk:
        counted = disk.replace

        def replace(source, target, **options):
            recorder.replaced(source, target)
            counted(source, target, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", replace)
            act()
    assert os.replace is real
    for moment in range(len(recorder.steps) + 1):
        durable, flushed, pending = dict(recorder.contents), {}, []
        for kind, first, second in recorder.steps[:moment]:
            if kind == "file":
                flushed[first] = second
            elif kind == "folder":
                for step in pending:
                    _apply(durable, flushed, step)
                pending = []
            else:
                pending.append((kind, first, second))
        subsets = [[], pending, *([step] for step in pending), pending[::-1]]
        for subset in subsets:
            files = dict(durable)
            for step in subset:
                _apply(files, flushed, step)
            yield files


def _apply(files, flushed, step):
    kind, first, second = step
    if kind == "replace":
        files[second] = flushed.get(first, b"")
    elif not first.startswith("."):
        files.pop(first, None)


def restore(folder, files):
    """Make a folder hold these files and no others."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
