"""The README's first command, through a real process, and its page in a real browser."""

import json
import os
import shutil

import pytest

from shapes import nngk

pytestmark = pytest.mark.thorough
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "nngk-demo"
    done = nngk("demo", "--out", out, "--json", timeout=500)
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)


@pytest.mark.thorough
def test_the_demonstration_measures_what_it_says(demonstration):
    out, said = demonstration
    eight, retrieval, unknown, ten, confidence = said["scores"].values()
    assert eight >= 0.97 and retrieval >= 0.95 and unknown >= 0.9 and ten >= 0.88
    assert abs(confidence - ten) < 0.08  # it means something: about as sure as right
    assert (out / "model" / "model.json").exists() and (out / "digits" / "9").is_dir()


def test_it_does_not_overwrite_an_earlier_one(demonstration):
    out, _ = demonstration
    again = nngk("demo", "--out", out)
    assert again.returncode == 1 and "--force" in again.stderr and "Traceback" not in again.stderr
    assert (out / "index.html").exists()


def test_the_page_in_a_browser(demonstration, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or os.environ.get("CHROMIUM")
    if not browser:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    out, said = demonstration
    errors = []
    with sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=browser, args=FLAGS)
        page = chromium.new_page(viewport={"width": 1000, "height": 900})
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("requestfailed", lambda request: errors.append(request.url))
        page.goto(out.joinpath("index.html").as_uri())
        shown = page.locator("#scores .score b").all_inner_texts()
        assert shown == [f"{value:.1%}" for value in said["scores"].values()]
        assert page.locator("#scores .score small").count() == len(said["scores"])  # a sentence on each
        assert page.locator("#reliability tr").count() >= 4
        assert page.locator("#shown img").count() == 10
        assert page.locator("#answers .answer").count() >= 4
        assert page.locator("#answers .answer .evidence img").count() >= 20
        widths = page.eval_on_selector_all("img", "images => images.map(i => i.naturalWidth)")
        assert widths and min(widths) > 0
        assert page.locator("#map svg text, #map svg use, #map svg path").count() > 50
        # Nothing runs over the side of a narrow window.
        page.set_viewport_size({"width": 400, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        chromium.close()
    assert not errors
