"""Explanations: the terms of the kernels, where the network looked, and a page that needs nothing else."""

import re

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from nngk import InputError, Model, create_network
from nngk.cli import cli
from nngk.model.explain import explain, log_odds, network_input, where_it_looked
from nngk.model.explain_page import explanation_page
from nngk.networks.input_spec import InputSpec
from serving import coloured, write_model
from shapes import nngk
from small_models import small_model

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 60, 230)}


def spotted(name, number, side=48, spot=14):
    """A coloured spot somewhere on a grey, noisy ground."""
    rng = np.random.default_rng([number, list(COLOURS).index(name)])
    picture = 120 + rng.normal(0, 6, (side, side, 3))
    top, left = rng.integers(0, side - spot, 2)
    picture[top : top + spot, left : left + spot] = COLOURS[name]
    return Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def spots():
    """A model that tells the colours of spots apart."""
    torch.manual_seed(0)
    network = create_network("small", dim=8, weights="random", pool="avg")
    network.input = InputSpec.from_config({**network.input.to_config(), "size": 48, "resize": 48})
    names = list(COLOURS)
    empty = Model(network, centres=torch.empty(0, 8), labels=torch.empty(0).long(), theta=torch.empty(0), sigma=1.0,
                  class_names=[], sources=[], device="cpu")  # fmt: skip
    centres = empty.embed([spotted(name, n) for name in names for n in range(10)])
    spread = torch.cdist(centres, centres).kthvalue(4, dim=1).values.median()
    labels = torch.arange(3).repeat_interleave(10)
    return Model(network, centres=centres, labels=labels, theta=torch.zeros(30), sigma=float(spread),
                 class_names=names, sources=[f"{i}.png" for i in range(30)], n_neighbours=20, device="cpu")  # fmt: skip


def test_the_terms_are_those_of_the_formula():
    model = small_model(seed=2)
    picture = coloured("red", 3)
    told = explain(model, picture, evidence=5)
    x = model.embed(picture)[0]
    total, terms = 0.0, {}
    for source, centre, theta in zip(model.sources, model.centres, model.theta):
        terms[source] = float(theta.exp()) * float(torch.exp(-(x - centre).square().sum() / (2 * model.sigma**2)))
    nearest = sorted(range(12), key=lambda i: float((x - model.centres[i]).norm()))[:5]
    total = sum(terms[model.sources[i]] for i in nearest)
    for centre in told.centres:
        assert centre.kernel * centre.weight == pytest.approx(terms[centre.image], rel=1e-3)
        assert centre.share == pytest.approx(terms[centre.image] / total, rel=1e-3)
    assert [c.share for c in told.centres] == sorted((c.share for c in told.centres), reverse=True)


@pytest.mark.parametrize("softmax", [False, True])
def test_the_odds_are_those_of_the_answer(softmax):
    model = small_model(seed=1, softmax=softmax)
    for number in range(4):
        x = model.embed(coloured("blue", number))
        for label in range(3):
            p = float(model.probabilities(x)[0, label])
            if 0 < p < 1:
                assert float(log_odds(model, x, label)) == pytest.approx(np.log(p / (1 - p)), rel=1e-3, abs=1e-3)


def test_blanking_where_it_looked_lowers_the_odds_more_than_elsewhere(spots):
    """The strongest window beats random ones, on average and nearly always."""
    won, window, luck = [], 12, np.random.default_rng(0)
    for name in COLOURS:
        for number in range(50, 54):
            x = network_input(spots, spotted(name, number))
            label = spots.class_names.index(name)
            seen = where_it_looked(spots, x, label, copies=4)

            def fall(top, left, x=x, label=label):
                blank = x.clone()
                blank[:, :, top : top + window, left : left + window] = x.mean((2, 3), keepdim=True)
                with torch.no_grad():
                    return float(
                        log_odds(spots, spots.network(x), label) - log_odds(spots, spots.network(blank), label)
                    )

            sums = torch.nn.functional.avg_pool2d(seen[None], window, 1)[0]
            best = divmod(int(sums.argmax()), sums.shape[1])
            elsewhere = [fall(*luck.integers(0, 48 - window, 2)) for _ in range(10)]
            won.append(fall(*best) - float(np.mean(elsewhere)))
    assert np.mean(won) > 0 and np.mean([each > 0 for each in won]) >= 0.75, won


def test_a_class_alone_and_a_class_far_away_can_be_explained(spots):
    told = explain(spots, spotted("red", 60), label="blue")
    assert told.label == "blue" and told.looked.isfinite().all() and float(told.looked.max()) == 1.0
    one = small_model()
    for name in one.class_names[1:]:
        one.remove(name)
    assert explain(one, coloured("red", 1)).looked.isfinite().all()
    with pytest.raises(InputError, match="no class 'owl'"):
        explain(spots, spotted("red", 60), label="owl")


def test_the_page_needs_nothing_else_and_names_are_text(spots):
    spots.rename("red", "<b>red</b> & co")
    page = explanation_page(explain(spots, spotted("red", 61)), "a<script>.png")
    spots.rename("<b>red</b> & co", "red")
    assert "<script" not in page and "<b>red" not in page and "&lt;b&gt;red" in page
    assert "the file is gone" in page  # the tests' centres have no files
    assert not re.findall(r'(?:src|href)="(?!data:)', page)


@pytest.mark.thorough
def test_on_the_command_line(tmp_path):
    folder = write_model(tmp_path)
    coloured("red", 400).save(tmp_path / "new.png")
    done = nngk("explain", folder, "new.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "new.explained.html").read_text()
    assert "data:image/jpeg" in page and "Kernel" in page
    wrong = CliRunner().invoke(cli, ["explain", str(folder), str(tmp_path / "gone.png")]).exception
    assert isinstance(wrong, InputError) and "There is no image" in str(wrong)
