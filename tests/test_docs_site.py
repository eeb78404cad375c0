"""The documentation builds as a site without a warning, and asks no other host for anything."""

import http.server
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOADING = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "use": "href",
}
pytestmark = pytest.mark.slow


class Loaded(HTMLParser):
    """What a page loads by itself; links that a reader may follow are not among it."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        wanted = dict(attrs).get(LOADING.get(tag, ""))
        if wanted:
            self.addresses.append(wanted)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def external(address):
    return re.match(r"(https?:)?//", address) is not None


def test_every_page_is_there_and_loads_nothing_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"README"} <= {page.stem for page in pages}
    for page in pages:
        loaded = Loaded()
        loaded.feed(page.read_text(encoding="utf-8"))
        assert loaded.addresses and not list(filter(external, loaded.addresses)), page.name
    for sheet in site.rglob("*.css"):
        found = re.findall(r"(?:url\(|@import\s+)[\"']?([^\"')\s]+)", sheet.read_text(encoding="utf-8"))
        assert not list(filter(external, found)), sheet.name


def test_a_browser_asks_no_other_host(site):
    browser_path = shutil.which("chromium")
    if not browser_path:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here, asked = f"http://127.0.0.1:{server.server_port}/", []
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        for name in ("index.html", "tutorial.html", "reference.html", "search.html"):
            page.goto(here + name)
            page.wait_for_load_state("networkidle")
            assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)"), name
        browser.close()
        server.shutdown()
    assert len(asked) > 10 and not [url for url in asked if not url.startswith((here, "data:", "blob:"))]
