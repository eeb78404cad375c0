"""Answers over a gallery of either kind are those of the model's own bank, also after classes came and went."""

import copy

import pytest
import torch

from nngk.errors import InputError
from nngk.gallery import GalleryModel, open_gallery
from nngk.gallery.addresses import kind_of, parsed
from nngk.gallery.filling import fill_with_centres, fill_with_images
from nngk.gallery.milvus import _stored, _text
from nngk.model import Model
from nngk.model.unknown import Familiar
from nngk.networks import create_network
from nngk.networks.input_spec import InputSpec
from serving import coloured, write_colours

DIM, CLASSES, EACH = 64, 12, 15


@pytest.fixture(scope="module")
def model():
    """Features with the spread of real ones: classes that overlap, weights that differ, a space of the unknown."""
    torch.manual_seed(0)
    network = create_network("small", dim=DIM, weights="random")
    network.input = InputSpec.from_config({**network.input.to_config(), "size": 16, "resize": 16})
    labels = torch.arange(CLASSES).repeat_interleave(EACH)
    means = torch.randn(CLASSES, DIM)
    made = Model(
        network,
        centres=means[labels] + 1.2 * torch.randn(len(labels), DIM),
        labels=labels,
        theta=0.3 * torch.randn(len(labels)),
        sigma=3.0,
        class_names=[f"class {i}" for i in range(CLASSES)],
        sources=[f"photos/{i}.jpg" for i in range(len(labels))],
        familiar=Familiar.densities(None),
        n_neighbours=40,
        device="cpu",
    )
    width = made.network.head.linear.in_features
    features = torch.nn.functional.layer_norm(
        torch.randn(CLASSES, width)[labels] + torch.randn(len(labels), width), (width,)
    )
    made.learn_unknown(features)
    return made


@pytest.fixture(params=["folder", "milvus"])
def place(request, tmp_path):
    if request.param == "folder":
        return str(tmp_path / "gallery")
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    return f"milvus://{tmp_path}/lite.db/birds"


def questions(model):
    torch.manual_seed(1)
    near = model.centres[::7] + 0.4 * torch.randn(len(model.centres[::7]), DIM)
    x = torch.cat([near, 3 * torch.randn(6, DIM)])
    return x, torch.randn(len(x), model.network.head.linear.in_features)


# A model draws the kernels of a class that was added together; a gallery leaves them at their photos.
NEARLY = 0.02


def compare(over, model, within=1e-4):
    """Every answer is the same: label, probabilities, unknown and evidence."""
    x, features = questions(model)
    for got, expected in zip(over.answers(x, 7, features=features), model.answers(x, 7, features=features)):
        assert got.label == expected.label and got.is_unknown == expected.is_unknown
        assert got.unknown == pytest.approx(expected.unknown, abs=within)
        assert got.probabilities == pytest.approx(expected.probabilities, abs=within)
        if within == NEARLY:
            continue
        assert [(e.image, e.label) for e in got.evidence] == [(e.image, e.label) for e in expected.evidence]
        assert [e.share for e in got.evidence] == pytest.approx([e.share for e in expected.evidence], abs=within)
    assert sorted(over.class_names) == sorted(model.class_names) and over.images == model.images


def answered(over):
    x, features = questions(over.model)
    return [(a.label, round(a.probability, 4)) for a in over.answers(x, features=features)]


def made(over, change):
    change.write(over.gallery)
    return over.after(change)


@pytest.mark.thorough
def test_answers_are_those_of_the_bank(model, place):
    bank = copy.deepcopy(model)
    pictures = [coloured("red", i, 20) for i in range(4)]
    with open_gallery(place, bank, write=True) as gallery:
        assert fill_with_centres(gallery, bank) == (len(bank.centres), 0)
        assert fill_with_centres(gallery, bank) == (0, len(bank.centres))
        over = GalleryModel(bank, gallery)
        compare(over, bank)
        assert [e.image for e in over.search(pictures[0], 9)] == [e.image for e in bank.search(pictures[0], 9)]

        added = over.add("kite", [*pictures, pictures[0]])  # the last is there twice
        over = made(over, added)
        bank.add("kite", [*pictures, pictures[0]])
        compare(over, bank, NEARLY)
        more = [coloured("blue", i, 20) for i in range(2)]
        over = made(over, over.add("kite", more))
        bank.add("kite", more)
        compare(over, bank, NEARLY)
        with pytest.raises(InputError, match="already"):
            over.add("kite", more)
        over = made(over, over.remove("class 3"))
        bank.remove("class 3")
        over = made(over, over.rename("class 4", "swift"))
        bank.rename("class 4", "swift")
        merged = over.merge("class 5", "swift")
        before, over = over, made(over, merged)
        bank.merge("class 5", "swift")
        compare(over, bank, NEARLY)
        for wrong in (lambda: over.rename("swift", "kite"), lambda: over.merge("x", "kite"), lambda: over.remove("x")):
            with pytest.raises(InputError):
                wrong()
        over = made(over, merged.reverse())
        assert over.known.names.count("class 5") == 1 and over.images == before.images
        gallery.flush()
        told = answered(over)
    with open_gallery(place, bank) as gallery:  # what was written is there for the next process
        again = GalleryModel(bank, gallery)
        assert again.sources_by_class().keys() == over.sources_by_class().keys() and answered(again) == told


@pytest.mark.thorough
def test_images_are_embedded_once_also_when_it_is_stopped(model, place, tmp_path, monkeypatch):
    from nngk.data import read_images
    from nngk.gallery import filling

    monkeypatch.setattr(filling, "AT_ONCE", 4)
    table = read_images(write_colours(tmp_path / "photos", ("red", "blue"), 7))
    with open_gallery(place, model, write=True) as gallery:
        write, left = gallery.add, [2]

        def stop(rows):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            write(rows)

        with monkeypatch.context() as patch:
            patch.setattr(gallery, "add", stop)
            with pytest.raises(KeyboardInterrupt):
                fill_with_images(gallery, model, table)
        assert gallery.count() == 8
        assert fill_with_images(gallery, model, table) == (6, 8) and gallery.count() == 14
        assert fill_with_images(gallery, model, table) == (0, 14)
        rows = gallery.get([number for part in gallery.scan() for number in part.ids.tolist()])
        by_source = dict(zip(rows.sources, rows.vectors))
        expected = model.embed([str(path) for path in table.paths])
        for path, row in zip(table.paths, expected):
            torch.testing.assert_close(by_source[str(path)], row, rtol=0, atol=1e-4)
        assert GalleryModel(model, gallery).classify(table.paths[0]).label == "blue"


def test_vectors_of_another_network_are_refused(model, place):
    with open_gallery(place, model, write=True):
        pass
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.network.head.linear.weight[0, 0] += 1
    with pytest.raises(InputError, match="another network"):
        open_gallery(place, other)
    assert kind_of(other).network != kind_of(model).network == kind_of(copy.deepcopy(model)).network


@pytest.mark.parametrize(
    "address",
    [
        "http://x/y",
        "milvus://",
        "milvus://host:19530",
        "milvus://host/",
        "milvus://host/a b",
        "milvus://u:p@h/name",
        "milvus://host/a/b",
        "milvus://host/1name",
        "milvus:///name",
        "milvus://host/name?x=1",
        "milvus://[::1/name",
        "milvus://host:99999/name",
        "milvus://host:port/name",
    ],
)
def test_addresses_that_mean_nothing(address):
    with pytest.raises(InputError, match="milvus://host:port/name"):
        parsed(address)


def test_there_is_no_gallery(model, tmp_path):
    with pytest.raises(InputError, match=r"gallery\.json"):
        open_gallery(str(tmp_path / "nowhere"), model)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.txt").write_text("mine")
    with pytest.raises(InputError, match="no gallery, and not empty"):
        open_gallery(str(tmp_path / "photos"), model, write=True)


@pytest.mark.parametrize("text", ["owl", "", '"', '"quoted"', "o\udcffl", "ö\n", "null", "\ud800"])
def test_any_name_survives_a_database(text):
    assert _text(_stored(text)) == text and isinstance(_stored(text).encode(), bytes)
