"""The report of a model: from a real process, in a real browser, light and dark, without another host."""

import os
import shutil

import numpy as np
import pytest
import torch

from faults import survived
from nngk.model.model import Model
from nngk.report.document import write_report
from nngk.report.findings import Findings, Mistake, ask_about_itself
from nngk.training.loop import train
from nngk.training.settings import Settings
from shapes import TINY, nngk, write_shapes
from small_models import small_model

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("report")
    write_shapes(home / "shapes")
    write_shapes(home / "fresh", seed=4, count=5)
    train(home / "shapes", Settings(**{**TINY, "epochs": 3}), out=home / "model")
    shutil.rmtree(home / "shapes")  # the pictures come with the model
    return home


@pytest.mark.thorough
def test_the_page_in_a_browser(home):
    done = nngk("report", home / "model", home / "fresh", "--out", home / "page.html", "--json")
    assert done.returncode == 0, done.stderr
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or os.environ.get("CHROMIUM")
    if not browser:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    asked, errors, grounds = [], [], set()
    with sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=browser, args=FLAGS)
        for scheme in ("light", "dark"):
            page = chromium.new_page(viewport={"width": 400, "height": 900}, color_scheme=scheme)
            page.on("request", lambda request: asked.append(request.url))
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
            page.goto((home / "page.html").as_uri())
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert page.evaluate("document.documentElement.scrollWidth") <= 400
            assert page.locator("#curves svg").count() >= 2 and page.locator("#unknown svg rect").count() == 40
            assert page.locator("#classes tr").count() == 4 and page.locator("#confusion svg").count() == 1
            widths = page.eval_on_selector_all("img", "images => images.map(i => i.naturalWidth)")
            assert all(width > 0 for width in widths)
        chromium.close()
    assert len(grounds) == 2 and not errors
    assert all(url.startswith(("file://", "data:")) for url in asked)


def test_each_image_is_asked_without_itself():
    """Against plain loops."""
    model = small_model()
    model.n_neighbours = None
    found = ask_about_itself(model)
    m = len(model.centres)
    weights = np.zeros((m, 3))
    for i in range(m):
        for j in range(m):
            squared = float((model.centres[i].double() - model.centres[j].double()).square().sum())
            if i != j:
                weights[i, int(model.labels[j])] += np.exp(float(model.theta[j]) - squared / (2 * model.sigma**2))
    expected = weights / weights.sum(1, keepdims=True)
    assert (found.said == expected.argmax(1)).all()
    assert np.allclose(found.probability, expected.max(1), atol=1e-4)
    wrong = (found.said != model.labels.numpy()).sum()
    assert len(found.mistakes) == wrong and found.accuracy == pytest.approx(1 - wrong / m)


def test_names_are_no_markup(tmp_path):
    model = small_model()
    model.rename("class 0 äöü", "<script>alert(1)</script>\x1b\u202e")
    model.info["data"] = "<b>&\u202e"
    mistake = Mistake(b"", "<i>", "<script>", "'\">", 0.9, [(b"", "<img src=x>", 0.5)])
    truth = np.array([0, 1])
    found = Findings("<u>", truth, truth[::-1], np.array([0.9, 0.8]), np.array([0.2, 0.7]), [mistake])
    write_report(model, found, tmp_path, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not any(mark in page for mark in ("<script", "<img src=x", "<i>", "<u>", "<b>&", "\u202e", "\x1b"))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


@pytest.mark.parametrize(
    "log",
    [None, "[" * 100_000, '{"epoch": 1, "loss": 1e400}\n' * 3, '{"epoch": 1, "loss": NaN}\n' * 3, "\0\n[1]\n", "{}\n"],
)
def test_a_log_that_is_none_is_left_out(log, tmp_path):
    """A pipe in its place would be waited for."""
    model = small_model()
    if log is None:
        os.mkfifo(tmp_path / "log.jsonl")
    else:
        (tmp_path / "log.jsonl").write_text(log)
    found = ask_about_itself(model)
    assert survived(lambda: write_report(model, found, tmp_path, tmp_path / "page.html"), within=20)
    assert "Training loss" not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_model_of_one_image(tmp_path, home):
    model = Model.load(home / "model", "cpu")
    for name in model.class_names[1:]:
        model.remove(name)
    model.classes = type(model.classes)(
        model.class_names, model.centres[:1], model.labels[:1], torch.zeros(1), model.sources[:1]
    )
    with pytest.raises(ValueError, match="fewer than two images"):
        ask_about_itself(model)
