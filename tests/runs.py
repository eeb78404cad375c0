"""Small training runs for tests: settings, a run that has not begun, the log of one that has ended."""

import json
from contextlib import contextmanager

from nngk.data import split
from nngk.training.build import build_run
from nngk.training.settings import Settings
from shapes import TINY


def settings(**changes):
    return Settings(**{**TINY, "patience": 0, **changes})


def make_run(data, folder, **changes):
    s = settings(**changes)
    folder.mkdir()
    return build_run(split(data, s.task, s.val_fraction, s.test_fraction, s.seed), s, folder)


def log_of(out):
    return [json.loads(line) for line in (out / "run" / "log.jsonl").read_text().splitlines()]


def stop_after(steps):
    """A replacement for Ctrl-C that comes after so many steps."""

    @contextmanager
    def stopping():
        left = steps

        def asked():
            nonlocal left
            left -= 1
            return left <= 0

        yield asked

    return stopping
