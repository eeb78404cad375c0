"""The last training, on all images: what it holds, what it keeps of what was measured, and how it is resumed."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from nngk.cli.train import train_command
from nngk.data import split
from nngk.files import read_record, write_record
from nngk.model.unknown import confidence, required_images
from nngk.training import feed as feeds
from nngk.training import loop
from nngk.training.everything import FOLDER, LOG, joined
from nngk.training.loop import Interrupted, train
from runs import log_of, settings
from shapes import TINY, flags

PARTS = {"val_fraction": 0.25, "test_fraction": 0.25}
EVERYTHING = {**PARTS, "hold_out": False}


@pytest.mark.parametrize("task", ["classify", "metric"])
@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.thorough
def test_all_images_count_and_the_figures_are_those_of_images_held_out(data, tmp_path, task, freeze):
    chosen = {"task": task, "freeze": freeze}
    model = train(data, settings(**EVERYTHING, **chosen), out=tmp_path / "all")
    held = train(data, settings(**PARTS, hold_out=True, **chosen), out=tmp_path / "held")
    assert len(held.centres) < len(data) == len(model.centres)
    assert sorted(model.sources) == sorted(map(str, data.paths))
    by_name = dict(zip(map(str, data.paths), (data.class_names[label] for label in data.labels)))
    labels = (model.class_names[label] for label in model.labels.tolist())
    assert dict(zip(model.sources, labels)) == by_name
    # Measured once, on the model before: a figure of the last one would be one of images that it was trained on.
    assert model.info["test"] == held.info["test"] and model.sigma == held.sigma
    assert model.info["measured"] == held.info["measured"]
    assert model.info["last_training"] == {"images": len(data), "epochs": held.info["best_epoch"]}
    assert "last_training" not in held.info and len(log_of(tmp_path / "all")) == TINY["epochs"]
    with (tmp_path / "all" / "run" / LOG).open() as lines:
        assert len(list(csv.DictReader(lines))) == held.info["best_epoch"]
    assert not (tmp_path / "all" / "run" / FOLDER).exists()
    more = np.log(len(model.centres) / len(held.centres))
    assert model.familiar.parts == held.familiar.parts
    assert model.familiar.weights == held.familiar.weights
    new = len(model.centres) - len(held.centres)
    again = freeze and task == "classify" and new >= required_images(held.familiar.false_alarms)
    for name, values in held.familiar.values.items():  # as they were when these images were new
        now = model.familiar.values[name]
        if again:
            assert len(now) == new > len(values), name
        else:
            assert torch.allclose(now, values + (float(more) if name == "density" else 0.0))


def test_the_familiar_of_a_frozen_network_are_all_images_that_were_held_out(data, tmp_path):
    chosen = {"freeze": True, "val_fraction": 0.3, "test_fraction": 0.3}
    held = train(data, settings(**chosen, hold_out=True), out=tmp_path / "held")
    model = train(data, settings(**chosen, hold_out=False), out=tmp_path / "all")
    first = held.info["measured"]["training"]
    sources = model.sources[first:]
    assert len(sources) >= required_images(held.familiar.false_alarms) and not set(sources) & set(held.sources)
    found = held.predict(held.embed(sources))  # the kernels are asked as they were when these images were new
    now = model.familiar.values
    more = np.log(len(model.centres) / len(held.centres))
    torch.testing.assert_close(now["density"], found.log_density + float(more), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(
        now["confidence"], confidence(found.log_probabilities).to(now["confidence"]), rtol=1e-3, atol=1e-3
    )


def test_features_are_not_computed_again(data, tmp_path, monkeypatch):
    seen, whole = [], feeds.embed_parts

    def counting(network, source, *args, **options):
        seen.append(len(source))
        return whole(network, source, *args, **options)

    monkeypatch.setattr(feeds, "feature_feed", feeds.feature_feed)
    monkeypatch.setattr(feeds, "embed_parts", counting)
    built, asked = [], loop.build_run

    def building(*args, **options):
        built.append(sum(seen))
        run = asked(*args, **options)
        built.append(sum(seen))
        return run

    monkeypatch.setattr(loop, "build_run", building)
    monkeypatch.setattr("nngk.training.everything.build_run", building)
    train(data, settings(**EVERYTHING, freeze=True, epochs=1), out=tmp_path / "m")
    first, second = built[1] - built[0], built[3] - built[2]
    assert (first, second) == (len(data), 0)


@pytest.mark.thorough
def test_stopped_in_the_last_training_it_goes_on_to_the_same_end(data, tmp_path, monkeypatch):
    chosen = settings(**EVERYTHING)
    whole = train(data, chosen, out=tmp_path / "whole")
    steps, take = [], loop.take_step
    measured = -(-len(split(data, **PARTS).train) // TINY["batch_size"]) * TINY["epochs"]

    def counted(*args):
        steps.append(1)
        return take(*args)

    def stop():
        class Stop:
            def __enter__(self):
                return lambda: len(steps) == measured + 1

            def __exit__(self, *error):
                return False

        return Stop()

    monkeypatch.setattr(loop, "take_step", counted)
    monkeypatch.setattr(loop, "_stop_on_ctrl_c", stop)
    with pytest.raises(Interrupted):
        train(data, chosen, out=tmp_path / "cut")
    assert not (tmp_path / "cut" / "model.json").exists()
    assert (tmp_path / "cut" / "run" / FOLDER / "checkpoint.json").exists()
    model = train(data, chosen, out=tmp_path / "cut", resume=True)
    assert len(steps) < 2 * measured + len(data)  # the measured run is not trained again
    assert torch.equal(model.centres, whole.centres) and torch.equal(model.theta, whole.theta)
    assert model.info["test"] == whole.info["test"]


def test_an_unfinished_run_of_before_keeps_its_images_held_out(data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "take_step", _interrupt(loop.take_step))
    with pytest.raises(KeyboardInterrupt):
        train(data, settings(**PARTS, epochs=3), out=tmp_path / "m")
    monkeypatch.undo()
    record = read_record(tmp_path / "m" / "run" / "settings.json", "settings", 2)
    write_record(tmp_path / "m" / "run" / "settings.json", {k: v for k, v in record.items() if k != "hold_out"})
    model = train(data, settings(**EVERYTHING, epochs=3), out=tmp_path / "m", resume=True, named=["epochs"])
    assert "last_training" not in model.info and len(model.centres) < len(data)


def _interrupt(take, after=5):
    done = []

    def step(*args):
        done.append(1)
        if len(done) > after:
            raise KeyboardInterrupt
        return take(*args)

    return step


def test_the_command_says_what_was_measured_and_what_is_held(data, tmp_path):
    folder = data.paths[0].parents[1]
    options = flags(**{**TINY, "epochs": 1, "hold_out": False, **PARTS})
    told = CliRunner().invoke(train_command, [str(folder), "--out", str(tmp_path / "m"), *options, "--quiet"])
    assert told.exit_code == 0, told.output
    assert "before the last training on 10 photos held out, with 20 trained on" in told.output
    assert "holds all 40 photos" in told.output
    record = json.loads((tmp_path / "m" / "model.json").read_text())
    assert record["info"]["last_training"] == {"images": 40, "epochs": 1}


def test_joined_tables_merge_classes_by_name_and_keep_boxes(data):
    first, second = data.select(data.labels < 2).compact(), data.select(data.labels > 0).compact()
    both = joined(first, second)
    assert both.class_names == data.class_names and len(both) == len(first) + len(second) and both.boxes is None
    assert [both.class_names[label] for label in both.labels[len(first) :]] == [
        second.class_names[label] for label in second.labels
    ]
    boxed = joined(first, replace(second, boxes=np.ones((len(second), 4), dtype=np.float32)))
    assert (
        boxed.boxes is not None and np.isnan(boxed.boxes[: len(first)]).all() and (boxed.boxes[len(first) :] == 1).all()
    )
