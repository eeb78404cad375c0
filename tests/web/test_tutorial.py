"""The tutorial of docs/tutorial.md, step by step: from a folder of photos to a page that has learnt a class.

With NNGK_SCREENSHOTS=FOLDER it writes the pictures of the tutorial; those in docs/pictures were made so.
"""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from leaves import leaf, write_leaves
from serving import TOKEN, serving
from web_page import BROWSER, FLAGS, until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not BROWSER, reason="no Chromium on this machine")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of three kinds of leaves, trained as the tutorial says."""
    home = tmp_path_factory.mktemp("tutorial")
    write_leaves(home / "photos")
    command = [sys.executable, "-m", "nngk", "train", "photos", "--out", "my-model"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "my-model" in done.stdout
    return home / "my-model"


def shot(page, name):
    """Keep a picture of the page, with few colours and small, where NNGK_SCREENSHOTS names a folder."""
    if os.environ.get("NNGK_SCREENSHOTS"):
        image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        image.quantize(96, dither=Image.Dither.NONE).save(
            Path(os.environ["NNGK_SCREENSHOTS"]) / f"{name}.png", optimize=True
        )


def photo(kind, number):
    out = io.BytesIO()
    leaf(kind, number).save(out, "JPEG", quality=90)
    return {"name": f"{kind}.jpg", "mimeType": "image/jpeg", "buffer": out.getvalue()}


def answer(page, kind, number):
    """Ask about a photo and return what the page says."""
    page.evaluate("document.getElementById('verdict').replaceChildren()")
    page.set_input_files("#choose", photo(kind, number))
    page.wait_for_selector("#answer:not(.busy) #verdict h2")
    until(page, "[...document.querySelectorAll('#evidence img')].every(i => i.naturalWidth > 0)")
    return page.inner_text("#verdict h2")


def walk(page):
    """Do what the tutorial tells a reader to do."""
    assert answer(page, "oak", 100) == "oak"
    shot(page, "answer")
    assert answer(page, "ginkgo", 100) == "Unknown"
    page.get_by_role("button", name="This is new: teach it").click()
    page.get_by_label("Its name").fill("ginkgo")
    page.set_input_files("[data-more]", [photo("ginkgo", number) for number in range(101, 105)])
    until(page, "document.querySelectorAll('.shots img').length === 5")
    shot(page, "teach")
    page.get_by_role("button", name="Teach it", exact=True).click()
    page.get_by_role("button", name="Undo", exact=True).wait_for()
    assert answer(page, "ginkgo", 106) == "ginkgo"
    shot(page, "taught")
    page.click("#nav-map")
    until(page, "document.getElementById('map-words').textContent.includes(' image')")
    page.wait_for_timeout(500)  # for the frame that it is drawn in
    shot(page, "map")


def test_from_a_folder_of_photos_to_a_page(trained):
    from playwright.sync_api import sync_playwright

    with serving(trained) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        page = browser.new_page(viewport={"width": 940, "height": 760}, reduced_motion="reduce")
        page.goto(f"{server.address}#token={TOKEN}")
        walk(page)
        browser.close()
