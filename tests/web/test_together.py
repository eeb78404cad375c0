"""Many clients at once, servers that are killed, and every request that the description allows."""

import hashlib
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from nngk import Model
from nngk.gallery import GalleryModel, open_gallery
from nngk.gallery.filling import fill_with_centres
from serving import FREE, TOKEN, classify, contents, png, serving, teach

KNOWN = ("red", "green", "blue")


def ask_until(stop, server, number, heard):
    """Ask about pictures of all colours; return what was answered wrong."""
    rng, wrong = random.Random(number), []
    with server.client(None) as client:
        while not stop.is_set():
            colour = rng.choice((*KNOWN, "yellow"))
            answer = client.post("/classify", files={"image": png(colour, 100 + rng.randrange(50))})
            if answer.status_code != 200:
                wrong.append(answer.text)
                continue
            said = answer.json()
            heard.append(said["version"])
            taught = said["version"] >= 2
            right = (said["label"] == colour) if colour != "yellow" or taught else said["is_unknown"]
            if not right:
                wrong.append((colour, said))
    return wrong


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


@pytest.mark.thorough
def test_many_clients_while_classes_are_added(folder):
    heard, stop = [], threading.Event()
    with serving(folder) as server, ThreadPoolExecutor(32) as pool, server.client() as client:
        clients = [pool.submit(ask_until, stop, server, number, heard) for number in range(32)]
        try:
            for version, (name, numbers) in enumerate((("yellow", (0, 1, 2)), ("violet", (0, 1)), ("violet", (2,))), 1):
                wait_for(lambda v=version: heard.count(v) >= 25)  # answers come from before, between and after
                assert teach(client, name, name, numbers).status_code == 200
            wait_for(lambda: heard.count(4) >= 25)
        finally:
            stop.set()
        assert [wrong for each in clients for wrong in each.result(60)] == []
        batches = client.get("/metrics").text
    passes = float(next(line for line in batches.splitlines() if "batch_pictures_count" in line).split()[1])
    assert passes < 0.7 * len(heard), "requests shared passes of the network"
    assert len(Model.load(folder, "cpu").centres) == 36 + 6


@pytest.mark.thorough
def test_a_full_queue_is_answered_with_a_time_to_come_back(colours):
    with serving(colours, limits=replace(FREE, waiting=1, at_once=1)) as server, ThreadPoolExecutor(12) as pool:

        def ask(number):
            with server.client(None) as client:
                return [client.post("/classify", files={"image": png("red", number)}) for _ in range(5)]

        answers = [answer for each in pool.map(ask, range(12)) for answer in each]
        busy = [answer for answer in answers if answer.status_code == 503]
        assert {answer.status_code for answer in answers} == {200, 503}
        assert all(answer.headers["retry-after"] and answer.json()["error"] for answer in busy)


def add_until_killed(server, acknowledged, number):
    with server.client() as client:
        for count in range(1000):
            name = hashlib.sha256(f"{number}.{count}".encode()).hexdigest()[:12]  # no two are alike
            try:
                answer = teach(client, name, "violet", range(3 * count, 3 * count + 3))
            except httpx.TransportError:
                return
            assert answer.status_code == 200, answer.text
            acknowledged.append(name)


def sources_by_class(folder, gallery):
    model = Model.load(folder, "cpu")
    if gallery is None:
        return model.sources_by_class()
    with open_gallery(gallery, model) as opened:
        return GalleryModel(model, opened).sources_by_class()


def kill_while_adding(folder, rounds, gallery=None):
    rng, acknowledged = random.Random(0), []
    for number in range(rounds):
        with serving(folder, gallery=gallery, dies=True) as server:
            adding = threading.Thread(target=add_until_killed, args=(server, acknowledged, number))
            begun = len(acknowledged)
            adding.start()
            wait_for(lambda begun=begun: len(acknowledged) > begun)
            time.sleep(rng.uniform(0.0, 0.4))
            os.kill(server.pid, signal.SIGKILL)
            adding.join(60)
            assert not adding.is_alive()
        held = sources_by_class(folder, gallery)
        known = [name for name in held if name not in KNOWN]
        assert set(acknowledged) <= set(known), "an acknowledged class is lost"
        assert len(known) - len(acknowledged) <= number + 1  # each killed server may have had one more under way
        for name in known:
            assert len(held[name]) == 3, "a class is there by half"
            assert all(Path(source).stat().st_size > 0 for source in held[name])
    with serving(folder, gallery=gallery) as server, server.client() as client:  # and it goes on from there
        assert classify(client, "red", 1)["label"] == "red"
        assert teach(client, "last", "yellow", range(3)).status_code == 200


@pytest.mark.thorough
def test_killed_while_adding(folder):
    kill_while_adding(folder, 5)


@pytest.mark.slow
def test_killed_while_adding_often(folder, record_property):
    record_property("injected", 50)
    kill_while_adding(folder, 50)


@pytest.fixture
def gallery(folder, tmp_path):
    """A gallery with the centres of the model."""
    model = Model.load(folder, "cpu")
    with open_gallery(str(tmp_path / "gallery"), model, write=True) as opened:
        fill_with_centres(opened, model)
    return str(tmp_path / "gallery")


@pytest.mark.thorough
def test_killed_while_adding_to_a_gallery(folder, gallery):
    kill_while_adding(folder, 3, gallery)


@pytest.mark.slow
def test_killed_while_adding_to_a_gallery_often(folder, gallery, record_property):
    record_property("injected", 50)
    kill_while_adding(folder, 50, gallery)


@pytest.mark.thorough
def test_a_server_over_a_gallery(folder, gallery):
    state = contents(folder)
    with serving(folder, gallery=gallery) as server, server.client() as client:
        assert classify(client, "red", 900)["label"] == "red" and classify(client, "yellow", 1)["is_unknown"]
        first = teach(client, "sun", "yellow", range(3))
        assert first.status_code == 200
        said = classify(client, "yellow", 50)
        assert said["label"] == "sun" and not said["is_unknown"] and said["decided_by"] == "kernels"
        photo = next(each["id"] for each in said["evidence"] if each["label"] == "sun")
        assert client.get(f"/photos/{photo}").headers["content-type"] == "image/jpeg"
        found = client.post("/search?k=7", files={"image": png("blue", 3)}).json()["found"]
        assert len(found) == 7 and found[0]["label"] == "blue"
        renamed = client.post("/classes/rename", json={"old": "sun", "new": "moon"})
        assert renamed.status_code == 200 and classify(client, "yellow", 50)["label"] == "moon"
        merged = client.post("/classes/merge", json={"source": "moon", "target": "red"})
        assert classify(client, "yellow", 50)["label"] == "red"
        undone = client.post("/undo", json={"change": merged.json()["change"]})
        assert undone.status_code == 200 and classify(client, "yellow", 50)["label"] == "moon"
        assert client.post("/undo", json={"change": first.json()["change"]}).status_code == 409  # not the latest
        assert client.delete("/classes", params={"name": "blue"}).status_code == 200
        names = {each["name"]: each["images"] for each in client.get("/classes").json()["classes"]}
        assert names == {"red": 12, "green": 12, "moon": 3}
        refused = teach(client, "sun", "yellow", range(1))  # a picture of another class is one of this too
        assert refused.status_code == 200
    assert contents(folder) == state  # the model's own folder is as it was
    with serving(folder, gallery=gallery, token=None) as server, server.client() as client:
        assert classify(client, "yellow", 50)["label"] in ("moon", "sun")
        assert {each["name"] for each in client.get("/classes").json()["classes"]} == {"red", "green", "moon", "sun"}


@pytest.mark.thorough
def test_no_request_that_the_description_allows_breaks_the_server(folder):
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings

    few = settings(
        max_examples=2,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    with serving(folder, limits=replace(FREE, seconds=10)) as server:
        schema = schemathesis.openapi.from_url(f"{server.address}openapi.json")
        tried = set()
        for result in schema.get_all_operations():
            operation = result.ok()

            @few
            @given(case=operation.as_strategy())
            def attempt(case):
                for headers in ({}, {"Authorization": f"Bearer {TOKEN}"}):
                    answer = case.call(base_url=server.address.rstrip("/"), headers=headers)
                    assert answer.status_code < 500, (case.operation.label, answer.status_code, answer.text)
                    tried.add(case.operation.label)

            attempt()
        assert {"POST /classify", "POST /classes", "DELETE /classes", "POST /undo"} <= tried
        assert not [line for line in server.said() if "traceback" in line]
    assert contents(folder)
    Model.load(folder, "cpu")
