"""Packs, official layouts and weights: what stands for what, and what is said when it is not there."""

from dataclasses import replace

import pytest

from nngk.data import pack
from nngk.errors import InputError
from nngk.experiments.paper.contents import find_experiment
from nngk.experiments.paper.quick import quick_table
from nngk.experiments.paper.sources import Sources
from nngk.training.presets import classify_settings, metric_settings


def sources(tmp_path, **options):
    return Sources(**({"data": tmp_path, "weights": None, "work": tmp_path / "work"} | options))


def test_a_pack_is_found_by_dataset_task_and_boxes(tmp_path):
    metric = quick_table(tmp_path / "pictures", "cub200", "metric")
    pack(metric, tmp_path / "data" / "one", 16)
    found = sources(tmp_path, data=tmp_path / "data").table("cub200", "metric")
    assert found.splits == metric.splits and found.task == "metric"
    # For classification the paper crops birds to their boxes: a pack that is not cropped does not serve.
    pack(quick_table(tmp_path / "pictures", "cub200", "classify"), tmp_path / "data" / "two", 16)
    with pytest.raises(InputError, match="a pack of it for the task 'classify'"):
        sources(tmp_path, data=tmp_path / "data").table("cub200", "classify")
    flowers = quick_table(tmp_path / "pictures", "flowers102", "classify")
    pack(flowers, tmp_path / "data" / "three", 16)
    assert len(sources(tmp_path, data=tmp_path / "data").table("flowers102", "classify")) == len(flowers)


def test_a_list_of_reduced_copies_serves_too(tmp_path):
    table = quick_table(tmp_path / "pictures", "cars196", "metric")
    lines = [f"{path},{table.class_names[y]},{part}" for path, y, part in zip(table.paths, table.labels, table.splits)]
    (tmp_path / "cars196-metric.csv").write_text("\n".join(["path,label,split", *lines, "gone.jpg,a car,train"]))
    with pytest.raises(InputError, match=r"gone\.jpg"):
        sources(tmp_path).table("cars196", "metric")
    found = sources(tmp_path, allow_missing=True).table("cars196", "metric")
    assert found.splits == table.splits and (found.name, found.task) == ("cars196", "metric")
    with pytest.raises(InputError, match=r"cars196-classify\.csv"):
        sources(tmp_path, allow_missing=True).table("cars196", "classify")


def test_the_truest_network_at_hand_stands_for_the_papers(tmp_path, monkeypatch):
    monkeypatch.delenv("NNGK_WEIGHTS", raising=False)
    assert sources(tmp_path).network("googlenet") == ("googlenet", "imagenet")
    (tmp_path / "resnet50-0676ba61.pth").touch()
    here = sources(tmp_path, weights=str(tmp_path))
    assert here.network("resnet50") == ("resnet50", str(tmp_path / "resnet50-0676ba61.pth"))
    (tmp_path / "resnet50_v1.safetensors").touch()
    assert here.network("resnet50")[0] == "resnet50-v1"
    assert here.network("resnet50", "random") == ("resnet50-v1", "random")
    with pytest.raises(InputError, match=r"googlenet_bvlc_fp16\.safetensors"):
        here.network("googlenet")
    with pytest.raises(InputError, match="--network resnet50"):
        here.network("vgg16")
    with pytest.raises(InputError, match="no folder"):
        sources(tmp_path, weights=str(tmp_path / "nowhere")).network("vgg16")


def test_the_papers_preset_is_what_the_text_says():
    s = metric_settings("paper", 1024)
    assert (s.optimiser, s.batch_size, s.update_interval, s.n_neighbours) == ("sgd", 20, 10, 100)
    assert not s.normalise and not s.layer_norm and s.pool == "avg" and s.crop == "random" and s.flip
    # Of the sum at 1e-5 with decay 2e-4, a step is lr * gradient of the mean + lr * decay * weight.
    assert s.lr / 20 == pytest.approx(1e-5) and s.lr * s.weight_decay == pytest.approx(1e-5 * 2e-4)
    assert s.embedding_start == "projection" and s.momentum == 0  # a random layer; plain gradient descent
    assert all(10 <= metric_settings("paper", dim).sigma <= 30 for dim in (64, 128, 256, 512, 1024))
    c = classify_settings("paper", "vgg16")
    assert c.dim is None and c.dropout == 0.5 and c.sigma == 100 and c.batch_size == 20
    assert replace(c, loss="softmax") == classify_settings("paper", "vgg16", "softmax")


def test_another_network_gets_its_own_settings():
    birds, table3 = find_experiment("birds-metric"), find_experiment("birds-architectures")
    assert {t.network for t in birds.trials("best", "resnet50-v1")} == {"resnet50-v1"}
    assert all(t.settled for preset in ("best", "paper") for t in birds.trials(preset))
    assert not any(t.settled for t in birds.trials("frozen"))  # epochs are chosen for the data at hand
    assert find_experiment("neighbours").trials("best", "resnet50")[0].settings.pool == "avg+max"
    with pytest.raises(InputError, match="compares networks"):
        table3.trials("best", "resnet50")
