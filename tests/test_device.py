"""Products of bfloat16 on a processor that announces them and dies of them."""

import sys

import pytest
import torch

from nngk import device
from nngk.errors import InputError
from nngk.training.loop import train
from runs import settings
from shapes import write_shapes


@pytest.fixture
def tried(monkeypatch):
    """Let the trial be made again, by a program of this text."""

    def by(text, tmp_path):
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        device._multiplies_bfloat16.cache_clear()

    yield by
    device._multiplies_bfloat16.cache_clear()


def test_a_processor_that_refuses_ends_no_run(tried, tmp_path):
    tried("kill -ILL $$", tmp_path)
    with pytest.raises(InputError, match=r"without --amp.*ONEDNN_MAX_CPU_ISA"):
        train(write_shapes(tmp_path / "shapes", count=6), settings(amp=True), out=tmp_path / "model")
    device.require_bfloat16(torch.device("cuda"))  # a GPU is not asked
    tried("exit 0", tmp_path)
    device.require_bfloat16(torch.device("cpu"))


@pytest.mark.thorough
def test_the_trial_itself():
    """conftest.py keeps oneDNN from what a machine may refuse, so the product is made everywhere."""
    device._multiplies_bfloat16.cache_clear()
    assert device._multiplies_bfloat16()
