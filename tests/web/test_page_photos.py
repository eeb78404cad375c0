"""The page with real photos: taught flowers it has never seen, corrected and put back, in a real browser.

Runs where NNGK_DATA names the folder that holds flowers-102; NNGK_SCREENSHOTS=FOLDER keeps a picture of each state.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nngk import Model
from nngk.data import read_images
from serving import TOKEN, serving
from web_page import BROWSER, FLAGS, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.data,
    pytest.mark.skipif(not BROWSER, reason="no Chromium on this machine"),
]
KNOWN, NEW, EACH = 6, 3, 12  # flowers to train on and to teach, and photos of each to train on


@pytest.fixture(scope="module")
def flowers():
    """The training photos of the first flowers, by name."""
    folder = os.environ.get("NNGK_DATA")
    if not folder or not Path(folder, "flowers-102").is_dir():
        pytest.skip("set NNGK_DATA to the folder that holds flowers-102")
    table = read_images("flowers102", data_dir=Path(folder), task="classify")
    kinds: dict[str, list[Path]] = {}
    for path, label, part in zip(table.paths, table.labels.tolist(), table.splits):
        if part != "test":
            kinds.setdefault(table.class_names[label], []).append(Path(path))
    return dict(list(kinds.items())[: KNOWN + NEW])


@pytest.fixture(scope="module")
def trained(flowers, tmp_path_factory):
    """A model of some flowers, trained as the tutorial says."""
    home = tmp_path_factory.mktemp("flowers")
    for name in list(flowers)[:KNOWN]:
        (home / "photos" / name).mkdir(parents=True)
        for path in flowers[name][:EACH]:
            shutil.copy(path, home / "photos" / name)
    command = [sys.executable, "-m", "nngk", "train", "photos", "--out", "model", "--no-tune"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return home / "model"


@pytest.fixture
def page(trained):
    from playwright.sync_api import sync_playwright

    with serving(trained) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        opened = browser.new_page(viewport={"width": 1000, "height": 860}, reduced_motion="reduce")
        opened.goto(f"{server.address}#token={TOKEN}")
        yield opened
        browser.close()


def shot(page, name):
    if os.environ.get("NNGK_SCREENSHOTS"):
        page.screenshot(path=Path(os.environ["NNGK_SCREENSHOTS"]) / f"photos-{name}.png")


def ask(page, path):
    """Ask about a photo and return what the page says."""
    page.evaluate("document.getElementById('verdict').replaceChildren()")
    page.set_input_files("#choose", path)
    page.wait_for_selector("#answer:not(.busy) #verdict h2")
    until(page, "[...document.querySelectorAll('#evidence img')].every(i => i.naturalWidth > 0)")
    return page.inner_text("#verdict h2")


def teach(page, name, paths):
    """Teach a class from the photo that was asked about and more."""
    page.get_by_role("button", name="This is new: teach it").click()
    page.get_by_label("Its name").fill(name)
    page.set_input_files("[data-more]", paths)
    until(page, "many => document.querySelectorAll('.shots img').length === many", len(paths) + 1)
    shot(page, f"teach-{name}")
    page.get_by_role("button", name="Teach it", exact=True).click()
    page.get_by_role("button", name="Undo", exact=True).wait_for()


def undo(page):
    page.get_by_role("button", name="Undo", exact=True).click()
    page.get_by_role("button", name="Undo", exact=True).wait_for(state="detached")


def test_flowers_are_taught_from_three_photos_and_known_on_a_fourth(page, flowers, trained):
    known, new = list(flowers)[:KNOWN], list(flowers)[KNOWN:]
    right = [ask(page, path) == name for name in known for path in flowers[name][EACH : EACH + 3]]
    assert sum(right) >= 0.8 * len(right)
    shot(page, "answer")
    for name in new:
        ask(page, flowers[name][0])
        teach(page, name, flowers[name][1:3])
        assert ask(page, flowers[name][3]) == name
        shot(page, f"taught-{name}")
    assert set(Model.load(trained, "cpu").class_names) == set(flowers)


def test_a_mistake_is_corrected_and_the_correction_undone(page, flowers, trained):
    name, other = list(flowers)[:2]
    before = Model.load(trained, "cpu")
    said = ask(page, flowers[name][-1])
    assert said == name
    page.get_by_role("button", name="This is wrong: it is …").click()
    page.get_by_label("It is", exact=True).select_option(other)
    shot(page, "wrong")
    page.get_by_role("button", name="Correct it").click()
    page.get_by_role("button", name="Undo", exact=True).wait_for()
    until(page, "name => document.getElementById('verdict').innerText.includes(name)", other)
    shot(page, "corrected")
    assert int(Model.load(trained, "cpu").classes.of(other).sum()) == int(before.classes.of(other).sum()) + 1
    undo(page)
    until(page, "name => document.getElementById('verdict').innerText.includes(name)", name)
    shot(page, "undone")
    assert Model.load(trained, "cpu").classes.sources == before.classes.sources
