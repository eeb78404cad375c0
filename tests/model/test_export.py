"""Exports: the same embeddings in onnxruntime, the same neighbours in faiss, the same answers from an .npz."""

import json
import sys

import numpy as np
import pytest
import torch

from nngk import InputError, Model
from nngk.model import export
from nngk.model.export import export_faiss, export_npz, export_onnx
from serving import coloured, write_model
from shapes import nngk
from small_models import small_model


def test_npz_gives_the_same_answers_in_numpy(tmp_path):
    model = small_model(seed=4)
    export_npz(model, tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as kept:
        x = model.embed(coloured("red", 1)).numpy()[0]
        squared = ((kept["centres"] - x) ** 2).sum(1)
        near = squared.argsort()[: int(kept["n_neighbours"])]
        terms = kept["weights"][near] * np.exp(-squared[near] / (2 * kept["sigma"] ** 2))
        sums = np.bincount(kept["labels"][near], terms, minlength=3)
        answer = model.classify(coloured("red", 1))
        for name, p in zip(kept["class_names"], sums / sums.sum()):
            assert answer.probabilities[str(name)] == pytest.approx(float(p), abs=1e-5)
        assert kept["sources"].tolist() == model.sources


def test_faiss_finds_the_same_neighbours(tmp_path):
    faiss = pytest.importorskip("faiss")
    model = small_model(seed=4, classes=9)
    export_faiss(model, tmp_path / "model.faiss")
    index, told = faiss.read_index(str(tmp_path / "model.faiss")), json.loads((tmp_path / "model.json").read_text())
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    squared, found = index.search(x.numpy(), 5)
    ours = model.predict(x, 5)
    assert np.array_equal(found, ours.neighbours.numpy()) and np.allclose(squared, ours.squared.numpy(), atol=1e-4)
    assert told["labels"] == model.labels.tolist() and told["class_names"] == model.class_names
    assert told["sources"] == model.sources and told["sigma"] == model.sigma


def test_an_index_is_not_overwritten_by_what_is_said_of_it(tmp_path):
    with pytest.raises(InputError, match="another ending"):
        export_faiss(small_model(), tmp_path / "index.json")
    assert not list(tmp_path.iterdir())


def test_a_model_without_classes_has_no_centres_to_export(tmp_path):
    model = small_model()
    for name in list(model.class_names):
        model.remove(name)
    for write in (export_npz, export_faiss):
        with pytest.raises(InputError, match="knows no class"):
            write(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_onnx_gives_the_same_embeddings_for_batches_of_any_size(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model = Model.load(write_model(tmp_path), "cpu")
    assert export_onnx(model, tmp_path / "model.onnx") < 1e-5
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].type == "tensor(uint8)"
    for count in (1, 2, 7):  # pictures that need no resizing: what the graph takes is what the model reads
        pictures = [coloured("green", n, side=24) for n in range(count)]
        theirs = session.run(None, {"pictures": np.stack([np.asarray(p).transpose(2, 0, 1) for p in pictures])})[0]
        assert np.abs(theirs - model.embed(pictures).numpy()).max() < 1e-4
    told = session.get_modelmeta().custom_metadata_map
    assert json.loads(told["size"]) == 24 and json.loads(told["class_names"]) == model.class_names
    monkeypatch.setattr(export, "CLOSE", -1.0)  # an export that differs is not written
    with pytest.raises(InputError, match="was not written"):
        export_onnx(model, tmp_path / "wrong.onnx")
    assert not (tmp_path / "wrong.onnx").exists()


@pytest.mark.thorough
def test_on_the_command_line(tmp_path):
    folder = tmp_path / "small"
    small_model().save(folder)
    for code, said in ((0, "Wrote small.npz"), (1, "is there already")):
        done = nngk("export", folder, "--format", "npz", cwd=tmp_path)
        assert done.returncode == code and said in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r"nngk\[export\]"):
        export_onnx(small_model(), tmp_path / "model.onnx")
