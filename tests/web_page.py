"""What the tests of the page share: which browser, and how to wait for it."""

import os
import shutil
import time
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or os.environ.get("CHROMIUM")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]


def until(page: Any, expression: str, argument: object = None, patience: float = 20) -> None:
    """Wait until an expression holds. Playwright's own way evaluates text inside the page, which its policy forbids."""
    end = time.monotonic() + patience
    while not page.evaluate(expression, argument):
        assert time.monotonic() < end, (expression, page.inner_text("body"))
        page.wait_for_timeout(30)
