"""Python programs in processes of their own that need not import PyTorch again: each is a fork of one that has.

Importing PyTorch and this package takes seconds of processor time, and the suite starts more than a hundred programs.
What a program does after its imports is what it does in a fresh process: its standard streams, working folder,
environment, signals and exit code are its own. Tests of importing itself use ``subprocess``.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

SOURCE = Path(__file__).parents[1] / "src"
# What most programs import: nothing that computes, starts a thread, or loads the compiled core, which reads variables.
_IMPORTED = (
    *("torch", "torch._dynamo", "safetensors.torch", "scipy.special", "jinja2", "rich.progress"),
    *("nngk.cli.train", "nngk.cli.use_model", "nngk.cli.change_model", "nngk.training.loop", "nngk.model.model"),
    *("nngk.experiments.record", "nngk.report"),
)
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(list(_IMPORTED))


def environment() -> dict[str, str]:
    """One thread per process, and this checkout's package."""
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


class Started:
    """A program that runs. Its words are those behind ``python``: "-m" and a module, "-c" and a text, or a file."""

    def __init__(self, words, env=None, cwd=None):
        self.words = [str(word) for word in words]
        self._home = tempfile.TemporaryDirectory()
        self._streams = [Path(self._home.name) / name for name in ("out", "err")]
        given = (self.words, self._streams, dict(env or environment()), cwd or Path.cwd())
        for stream in self._streams:
            stream.touch()
        self.process = _context.Process(target=_program, args=given)
        with mock.patch.dict(os.environ, environment()):  # those of the server, where this is its first program
            self.process.start()

    def until(self, said, stream=1, timeout=120):
        """Wait until it has said something on a stream (1 or 2), and return all that it has said there by then."""
        ends = time.monotonic() + timeout
        while time.monotonic() < ends and self.process.is_alive():
            text = self._streams[stream - 1].read_text(errors="replace")
            if said in text:
                return text
            time.sleep(0.01)
        raise AssertionError(f"it has not said {said!r}")

    def send_signal(self, number):
        os.kill(self.process.pid, number)

    def wait(self, timeout=300, errors=None):
        """The code with which it ended, and what it printed; a program that takes longer is killed."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            raise subprocess.TimeoutExpired(self.words, timeout)
        texts = [stream.read_text(errors=errors) for stream in self._streams]
        self._home.cleanup()
        return subprocess.CompletedProcess(self.words, self.process.exitcode, *texts)


def run(words, *, env=None, cwd=None, timeout=300, errors=None):
    """Start a program and wait for it, as ``subprocess.run`` does with captured text."""
    return Started(words, env, cwd).wait(timeout, errors)


def _program(words, streams, variables, folder):
    """Become the program: this runs in the fork."""
    for number, name in enumerate(streams, start=1):
        with name.open("ab") as file:
            os.dup2(file.fileno(), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    first, *rest = words
    sys.path.insert(0, "" if first in ("-m", "-c") else str(Path(first).parent))
    try:
        if first == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif first == "-c":
            sys.argv = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = words
            runpy.run_path(first, run_name="__main__")
    finally:
        atexit._run_exitfuncs()
