"""The service through real HTTP: its answers are the library's, and its changes are on the disk."""

import io
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from nngk import Model
from serving import TOKEN, classify, coloured, contents, encoded_png, png, serving, teach


@pytest.mark.thorough
def test_answers_are_those_of_the_library(server, tmp_path):
    wide = Image.new("RGB", (301, 120), (40, 70, 200))
    wide.paste((200, 40, 40), (0, 0, 90, 120))
    wide.save(tmp_path / "wide.png")
    coloured("green", 70).save(tmp_path / "green.png")
    patches = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    Image.fromarray(patches).resize((1600, 1200)).save(tmp_path / "photo.jpg")  # decoded at a part of its size
    model = Model.load(server.folder, "cpu")
    with server.client() as client:
        for path in (tmp_path / "wide.png", tmp_path / "green.png", tmp_path / "photo.jpg"):
            files = {"image": path.read_bytes()}
            ours = model.classify(path, evidence=7)
            said = client.post("/classify?evidence=7&top=2", files=files).json()
            assert said["label"] == ours.label and said["unknown"] == pytest.approx(ours.unknown, abs=1e-5)
            assert said["probability"] == pytest.approx(ours.probability, rel=1e-4)
            assert [bar["label"] for bar in said["probabilities"]] == list(ours.probabilities)[:2]
            assert [e["label"] for e in said["evidence"]] == [e.label for e in ours.evidence]
            assert [e["share"] for e in said["evidence"]] == pytest.approx([e.share for e in ours.evidence], abs=1e-4)
            found = client.post("/search?k=4", files=files).json()["found"]
            assert [each["name"] for each in found] == [e.image.rsplit("/", 1)[1] for e in model.search(path, 4)]
            row = client.post("/embed", files=files).json()["embedding"]
            torch.testing.assert_close(torch.tensor([row]), model.embed(path), atol=1e-5, rtol=1e-4)
        everything = client.post("/search?k=1000", files={"image": png("red", 1)}).json()["found"]
        assert len(everything) == len(model.centres)


def test_unknown_is_a_decision(server):
    with server.client(None) as client:
        assert not classify(client, "green", 400)["is_unknown"]
        assert classify(client, "yellow", 400)["is_unknown"]


def test_no_path_of_this_machine_is_told(server):
    with server.client() as client:
        texts = [json.dumps(classify(client, "red", 3)), client.get("/classes").text, client.get("/metrics").text]
        texts += [client.post("/search", files={"image": png("red", 1)}).text]
    assert not any(str(server.folder.parent) in text or "/photos/red" in text for text in texts)


def test_teach_ask_undo(folder):
    before = Model.load(folder, "cpu")
    with serving(folder) as server, server.client() as client:
        assert classify(client, "yellow", 50)["is_unknown"]
        done = teach(client, " golden yellow ", "yellow", range(3))
        assert done.status_code == 200 and done.json()["version"] == 2
        on_disk = Model.load(folder, "cpu")  # what was answered is there
        assert on_disk.class_names == [*before.class_names, "golden yellow"] and len(on_disk.centres) == 39
        answer = classify(client, "yellow", 50)
        assert answer["label"] == "golden yellow" and not answer["is_unknown"] and answer["version"] == 2
        listed = client.get("/classes").json()
        assert listed["undo"] == done.json()["change"]
        mine = next(each for each in listed["classes"] if each["name"] == "golden yellow")
        assert mine["images"] == 3
        shown = client.get(f"/photos/{mine['photos'][0]}")
        assert shown.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(shown.content)).getpixel((9, 9))[0] > 150
        more = teach(client, "red", "yellow", [9])  # a class that it knows gets another picture
        assert client.post("/undo", json={"change": done.json()["change"]}).status_code == 409
        assert client.post("/undo", json={"change": more.json()["change"]}).json()["change"] == done.json()["change"]
        assert client.post("/undo", json={"change": done.json()["change"]}).status_code == 200
        assert classify(client, "yellow", 50)["is_unknown"]
    after = Model.load(folder, "cpu")
    assert after.class_names == before.class_names and torch.equal(after.centres, before.centres)
    assert torch.equal(after.theta, before.theta) and after.sources == before.sources


def test_a_removed_class_comes_back_with_its_photos(folder):
    with serving(folder) as server, server.client() as client:
        teach(client, "violet", "violet", range(4))
        gone = client.delete("/classes", params={"name": "violet"})
        assert gone.status_code == 200 and "violet" not in Model.load(folder, "cpu").class_names
        assert client.delete("/classes", params={"name": "violet"}).status_code == 422
        client.post("/undo", json={"change": gone.json()["change"]})
        photos = client.get("/classes/photos", params={"name": "violet"}).json()
        assert photos["total"] == 4
        assert all(client.get(f"/photos/{each}").status_code == 200 for each in photos["photos"])


def test_a_change_by_somebody_else_is_taken_in_and_not_undone(folder):
    with serving(folder) as server, server.client() as client:
        done = teach(client, "yellow", "yellow", range(3)).json()
        with Model.changing(folder, "cpu") as model:
            model.add("elsewhere", coloured("violet", 1))
        refused = client.post("/undo", json={"change": done["change"]})
        assert refused.status_code == 409 and "Somebody else" in refused.json()["error"]
        teach(client, "yellow", "yellow", [5])
        names = {each["name"]: each["images"] for each in client.get("/classes").json()["classes"]}
        assert names["elsewhere"] == 1 and names["yellow"] == 4


def test_all_pictures_are_learned_or_none(folder):
    before = contents(folder)
    with serving(folder) as server, server.client() as client:
        files = [("images", png("yellow", 1)), ("images", b"no picture")]
        assert client.post("/classes", data={"name": "yellow"}, files=files).status_code == 422
        for name in ("", "   ", "a\nb", "x" * 201):
            assert client.post("/classes", data={"name": name}, files=files[:1]).status_code == 422
        assert client.post("/classes", data={"name": "yellow"}).status_code == 422
        assert client.get("/classes").json()["version"] == 1
    assert contents(folder) == before


def test_what_cameras_write_beside_the_pixels_is_not_kept(folder):
    with serving(folder) as server, server.client() as client:
        exif = Image.Exif()
        exif[0x010F] = "SECRET-CAMERA"
        files = []
        for side in (64, 900):
            out = io.BytesIO()
            coloured("yellow", 1, side).save(out, "JPEG", exif=exif, comment=b"SECRET-COMMENT")
            files.append(("images", out.getvalue()))
        assert client.post("/classes", data={"name": "yellow"}, files=files).status_code == 200
    kept = list((folder / "taught").iterdir())
    assert {path.suffix for path in kept} == {".png", ".jpg"}
    assert not any(b"SECRET" in path.read_bytes() for path in kept)


@pytest.mark.thorough
def test_pictures_without_a_class_are_cleared_at_the_next_start(folder):
    with serving(folder) as server, server.client() as client:
        teach(client, "yellow", "yellow", range(2))
        change = teach(client, "violet", "violet", range(3)).json()["change"]
        client.post("/undo", json={"change": change})
        assert len(list((folder / "taught").iterdir())) == 5
    with serving(folder, token=None):
        assert len(list((folder / "taught").iterdir())) == 5  # a server without a token touches nothing
    with serving(folder):
        assert len(list((folder / "taught").iterdir())) == 2
    moved = shutil.move(folder, folder.with_name("elsewhere"))
    with serving(moved) as server, server.client() as client:
        listed = client.get("/classes/photos", params={"name": "yellow"}).json()["photos"]
        assert all(client.get(f"/photos/{each}").status_code == 200 for each in listed)


def test_rename_and_merge(folder):
    with serving(folder) as server, server.client() as client:
        assert client.post("/classes/rename", json={"old": "red", "new": "crimson"}).status_code == 200
        assert classify(client, "red", 60)["label"] == "crimson"
        assert client.post("/classes/rename", json={"old": "red", "new": "x"}).status_code == 422
        assert client.post("/classes/rename", json={"old": "green", "new": "blue"}).status_code in (409, 422)
        done = client.post("/classes/merge", json={"source": "crimson", "target": "blue"})
        assert done.status_code == 200 and classify(client, "red", 60)["label"] == "blue"
        counts = {each["name"]: each["images"] for each in client.get("/classes").json()["classes"]}
        assert counts == {"blue": 24, "green": 12}
        client.post("/undo", json={"change": done.json()["change"]})
        assert sorted(Model.load(folder, "cpu").class_names) == ["blue", "crimson", "green"]


def test_a_name_that_is_nearly_known_is_questioned(folder):
    with serving(folder) as server, server.client() as client:
        asked = client.post("/classes", data={"name": "Green"}, files=[("images", png("yellow", 1))])
        assert asked.status_code == 409 and "'green'" in asked.json()["error"]
        sure = client.post("/classes", data={"name": "Green", "sure": True}, files=[("images", png("yellow", 1))])
        assert sure.status_code == 200
        assert {each["name"] for each in client.get("/classes").json()["classes"]} >= {"green", "Green"}


def test_a_model_that_knows_nothing_says_so_and_can_be_taught(folder):
    with serving(folder) as server, server.client() as client:
        for name in ("red", "green", "blue"):
            assert client.delete("/classes", params={"name": name}).status_code == 200
        for route in ("/classify", "/search"):
            refused = client.post(route, files={"image": png("red", 1)})
            assert refused.status_code == 422 and "knows no class" in refused.json()["error"]
        teach(client, "red", "red", range(3))
        assert classify(client, "red", 9)["label"] == "red"


def test_a_photo_whose_file_is_gone(colours, tmp_path):
    folder = shutil.copytree(colours, tmp_path / "model")
    with Model.changing(folder, "cpu") as model:
        coloured("yellow", 1).save(tmp_path / "lost.png")
        model.add("lost", [tmp_path / "lost.png"])
    (tmp_path / "lost.png").unlink()
    with serving(folder) as server, server.client() as client:
        photo = client.get("/classes/photos", params={"name": "lost"}).json()["photos"][0]
        gone = client.get(f"/photos/{photo}")
        assert gone.status_code == 404 and "gone" in gone.json()["error"]
        assert client.get("/classes/photos", params={"name": "nothing"}).status_code == 404


def test_a_photo_whose_file_is_gone_is_shown_by_its_thumbnail(colours, tmp_path):
    folder = shutil.copytree(colours, tmp_path / "model")
    with Model.changing(folder, "cpu") as model:
        model.keep_thumbnails([b""] * len(model.sources))
        coloured("yellow", 1).save(tmp_path / "lost.png")
        model.add("lost", [tmp_path / "lost.png"])
    (tmp_path / "lost.png").unlink()
    with serving(folder) as server, server.client() as client:
        photo = client.get("/classes/photos", params={"name": "lost"}).json()["photos"][0]
        shown = client.get(f"/photos/{photo}")
        assert shown.status_code == 200 and shown.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(shown.content)).size[0] > 0


def test_state_counters_and_log(server):
    with server.client() as client:
        assert client.get("/health").json() == {"status": "alive"}
        assert client.get("/ready").json() == {"status": "ready"}
        classify(client, "red", 5)
        client.get("/nothing%0A%7B%7D")
        metrics = client.get("/metrics").text
    assert 'nngk_requests_total{method="POST",route="/classify",status="200"}' in metrics
    assert "nngk_batch_pictures_bucket" in metrics and "nngk_classes 3.0" in metrics and "/nothing" not in metrics
    lines = server.said()  # every line is JSON
    assert {"time", "method", "path", "status", "ms", "bytes", "client"} <= lines[-1].keys()
    assert any(line["path"] == "/nothing\n{}" and line["status"] == 404 for line in lines)
    assert TOKEN not in server.log.read_text()


def test_every_route_is_described(server):
    with server.client() as client:
        description = client.get("/openapi.json").json()
        assert client.get("/docs").status_code == 404  # its scripts would come from another host
    paths = {"/classify", "/search", "/embed", "/classes", "/classes/photos", "/photos/{id}", "/undo"}
    assert paths | {"/health", "/ready", "/metrics"} <= description["paths"].keys()
    for methods in description["paths"].values():
        for route in methods.values():
            assert route["description"] and route["responses"]
    guarded = {
        (path, method)
        for path, methods in description["paths"].items()
        for method, route in methods.items()
        if route.get("security")
    }
    assert {("/classes", "post"), ("/classes", "delete"), ("/undo", "post")} <= guarded
    assert ("/classify", "post") not in guarded


def test_a_picture_of_another_kind_is_read(server):
    with server.client() as client:
        for kind in ("JPEG", "WEBP", "GIF", "BMP", "TIFF"):
            out = io.BytesIO()
            coloured("blue", 7, 64).save(out, kind)
            assert client.post("/classify", files={"image": out.getvalue()}).json()["label"] == "blue", kind
        clear = Image.new("RGBA", (40, 40), (200, 40, 40, 255))
        assert client.post("/classify", files={"image": encoded_png(clear)}).json()["label"] == "red"
