"""The real Milvus server, from the PyPI package 'milvus': killed with -9 while rows come in, and started again.

python -m pytest -m slow tests/gallery/test_milvus_server.py
"""

import os
import random
import signal
import socket
import threading
import time

import pytest
import torch

from nngk.gallery.embedded import Kind
from nngk.gallery.interface import Unreachable
from nngk.gallery.milvus import Milvus
from nngk.gallery.references import References, reference_ids

KIND = Kind(dim=16, width=3, network="f" * 64)


def rows(name, count=3):
    labels, sources = [name] * count, [f"{name}-{i}.jpg" for i in range(count)]
    ids = reference_ids(labels, sources)
    vectors = torch.randn(count, 16, generator=torch.Generator().manual_seed(int(ids[0])))
    return References(ids, vectors, labels, sources, torch.zeros(count), vectors[:, :3])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def started(folder, port):
    milvus = pytest.importorskip("milvus")
    server = milvus.MilvusServer()
    server.set_base_dir(str(folder))
    server.listen_port = port
    server.start()
    return server


def add_until_killed(gallery, acknowledged, number):
    for count in range(1000):
        name = f"class {number}.{count}"
        try:
            gallery.add(rows(name))
        except Unreachable:
            return
        acknowledged.append(name)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_server_has_every_row_that_was_acknowledged(tmp_path, record_property):
    record_property("injected", 3)
    pytest.importorskip("pymilvus")
    acknowledged, rng, port = [], random.Random(0), free_port()
    for number in range(3):
        server = started(tmp_path / "data", port)
        try:
            gallery = Milvus(f"http://127.0.0.1:{port}", "birds", KIND, create=True)
            held = [label for part in gallery.scan() for label in part.labels]
            assert set(acknowledged) <= set(held), "an acknowledged row is lost"
            assert all(held.count(name) == 3 for name in set(held)), "a class is there by half"
            assert gallery.count() == len(held) and len(set(held)) <= len(acknowledged) + number
            for name in acknowledged[-3:]:
                wanted = rows(name)
                assert torch.equal(gallery.get(wanted.ids).vectors, wanted.vectors)
                assert gallery.search(wanted.vectors, 1).ids.flatten().tolist() == wanted.ids.tolist()
            adding = threading.Thread(target=add_until_killed, args=(gallery, acknowledged, number))
            begun = len(acknowledged)
            adding.start()
            while len(acknowledged) < begun + 5:
                time.sleep(0.05)
            time.sleep(rng.uniform(0.0, 1.0))
        finally:
            os.kill(server.server_proc.pid, signal.SIGKILL)
            server.server_proc.wait()
            server.stop()
        adding.join(200)
        assert not adding.is_alive()
    assert len(acknowledged) > 15
