"""The features of a frozen network are kept as they come: what stops them loses little, nothing is computed twice."""

import signal
import time

import pytest
import torch

import forked
from nngk.training import feed, frozen_features
from nngk.training.frozen_features import kept_features
from nngk.training.loop import Interrupted, train
from nngk.training.settings import Settings
from shapes import TINY, write_shapes

ROWS = torch.arange(20.0).view(10, 2)


def parts(asked, stop=99):
    def parts_from(first, last):
        asked.append(first)
        for row in range(first, len(ROWS)):
            if row == stop:
                raise KeyboardInterrupt
            yield ROWS[row : row + 1]

    return parts_from


@pytest.mark.parametrize("seconds", [0.0, 100.0])
def test_an_interruption_loses_nothing_that_was_computed(tmp_path, monkeypatch, seconds):
    monkeypatch.setattr(frozen_features, "SAVE_SECONDS", seconds)
    file, asked, counted = tmp_path / "features-a.safetensors", [], []
    with pytest.raises(KeyboardInterrupt):
        kept_features(file, 10, parts(asked, stop=6), counted.append)
    assert not file.exists() and sum(counted) == 6
    assert torch.equal(kept_features(file, 10, parts(asked), counted.append), ROWS)
    assert torch.equal(kept_features(file, 10, parts(asked), counted.append), ROWS)
    assert asked == [0, 6] and list(tmp_path.iterdir()) == [file]


def test_a_damaged_piece_is_computed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(frozen_features, "SAVE_SECONDS", 0.0)
    file, asked = tmp_path / "features-a.safetensors", []
    with pytest.raises(KeyboardInterrupt):
        kept_features(file, 10, parts(asked, stop=6), lambda n: None)
    piece = sorted(tmp_path.iterdir())[3]
    piece.write_bytes(piece.read_bytes()[:-1] + b"\x01")
    assert torch.equal(kept_features(file, 10, parts(asked), lambda n: None), ROWS)
    assert asked == [0, 3]


SETTINGS = {**TINY, "freeze": True, "thumbnails": False}
SLOW = """
import sys, time
from nngk.training import feed, frozen_features
from nngk.training.loop import train
from nngk.training.settings import Settings
frozen_features.SAVE_SECONDS = 0.0
whole = feed.embed_parts
def slow(*given, **how):
    for part in whole(*given, **{**how, "batch_size": 4}):
        yield part
        print("part", flush=True)
        time.sleep(0.3)
feed.embed_parts = slow
try:
    train(sys.argv[1], Settings(**%r), out=sys.argv[2])
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.thorough
def test_a_process_that_is_stopped_while_it_computes_features(tmp_path, monkeypatch, how):
    data, out = write_shapes(tmp_path / "shapes"), tmp_path / "model"
    process = forked.Started(["-c", SLOW % (SETTINGS,), data, out])
    process.until("part\n" * 3)
    time.sleep(0.05)
    process.send_signal(how)
    done = process.wait()
    assert done.returncode != 0 and not (out / "model.json").exists()
    if how == signal.SIGINT:
        assert "Interrupted: Stopped before the first step" in done.stderr and "same command" in done.stderr
    begun, whole = [], feed.embed_parts

    def watched(*given, **rest):
        begun.append(rest["first"])
        return whole(*given, **rest)

    monkeypatch.setattr(feed, "embed_parts", watched)
    train(data, Settings(**SETTINGS), out=out, resume=True)
    assert begun[0] >= 8 and begun[1:] == [0, 0]  # training goes on; validation and test had not begun
    assert (out / "model.json").exists() and not list((out / "run").glob("features-*"))


def test_the_sentence_says_that_nothing_is_lost(tmp_path, monkeypatch):
    def stop(*given, **rest):
        raise KeyboardInterrupt

    monkeypatch.setattr(feed, "embed_parts", stop)
    with pytest.raises(Interrupted, match="what was computed of the images is kept"):
        train(write_shapes(tmp_path / "shapes", count=6), Settings(**SETTINGS), out=tmp_path / "m")
