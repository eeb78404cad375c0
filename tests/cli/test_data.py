"""``nngk data`` through real processes."""

import json

import numpy as np
import pytest
from PIL import Image

from shapes import nngk


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(3):
            pixels = rng.integers(0, 255, (12, 10, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


@pytest.mark.thorough
def test_check_and_pack(photos, tmp_path):
    done = nngk("data", "check", photos, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["images"] == 6 and report["complete"]
    for squash in ([], ["--squash"]):
        done = nngk("data", "pack", "folder", photos, tmp_path / "pack", "--size", 16, *squash, "--json")
        facts = {"pack": str(tmp_path / "pack"), "images": 6, "classes": 2, "size": 16, "squash": bool(squash)}
        assert json.loads(done.stdout) == facts
    assert json.loads(nngk("data", "check", tmp_path / "pack", "--json").stdout)["images"] == 6


@pytest.mark.thorough
def test_check_finds_a_broken_image(photos):
    whole = (photos / "cat" / "0.png").read_bytes()
    (photos / "cat" / "0.png").write_bytes(whole[: len(whole) // 2])
    done = nngk("data", "check", photos)
    assert done.returncode == 1 and "0.png" in done.stdout and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [("download", "mnist"), ("pack", "mnist"), ("check",)])
@pytest.mark.thorough
def test_wrong_names_get_a_sentence(command, tmp_path):
    extra = [tmp_path / "none"] + ([tmp_path / "out"] if command[0] == "pack" else [])
    done = nngk("data", *command, *extra)
    assert done.returncode == 1 and done.stderr.startswith("Error: ") and "Traceback" not in done.stderr
