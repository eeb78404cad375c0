"""The examples run, and do what they say."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

from small_models import small_model

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(monkeypatch):
    """A function that imports an example; without its package the test is skipped."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def load(name, *packages):
        for package in packages:
            pytest.importorskip(package)
        return import_module(name)

    yield load
    for name in [each.stem for each in EXAMPLES.glob("*.py")]:
        sys.modules.pop(name, None)


def test_the_loss_in_a_plain_loop(example):
    before, after = example("plain_loop").main()
    assert after > before + 0.1 and after > 0.8


def test_with_the_conventions_of_pytorch_metric_learning(example, capsys):
    before, after = example("metric_learning_conventions", "pytorch_metric_learning").main()
    assert after > before + 0.1 and after > 0.8
    assert "indices_tuple of a miner" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_a_lightning_callback_renews_the_bank(example):
    before, after = example("lightning_callback", "lightning").main()
    assert after > before + 0.1 and after > 0.8


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_hugging_face_datasets_as_a_source(example):
    labels, nearest = example("huggingface_source", "datasets").main()
    assert (labels == nearest).double().mean() > 0.9


def test_fiftyone_json(example):
    model = small_model()
    told = json.loads(json.dumps(example("fiftyone_json").samples(model)))["samples"]
    assert [each["filepath"] for each in told] == model.sources and len(told[0]["embedding"]) == 4
    assert all(0 <= each["mistakenness"] <= 1 and 0 < each["prediction"]["confidence"] <= 1 for each in told)


def test_every_example_is_in_the_list():
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"`{path.name}`" in listed for path in EXAMPLES.glob("*.py") if path.name != "made_up.py")
