"""Adding, removing and searching at once, from several threads."""

import threading
import time

import pytest
import torch

from nngk.search import FANNG, Exact
from nngk.search.native import core

pytestmark = pytest.mark.skipif(core() is None, reason="the compiled core is not built")


@pytest.mark.thorough
def test_readers_beside_a_writer_see_no_wrong_answer() -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(3000, 24, generator=generator)
    more = torch.randn(600, 24, generator=generator) + 1
    everything = torch.cat([base, more])
    engine = FANNG(24, threads=2)
    engine.build(base)
    failures: list[str] = []
    done = threading.Event()

    def read(seed: int) -> None:
        mine = torch.Generator().manual_seed(seed)
        while not done.is_set():
            q = torch.randn(8, 24, generator=mine)
            d, i = engine.search(q, 5, ef=40)
            if (i < 0).any() or (i >= 3600).any():
                failures.append(f"indices {i.tolist()}")
            # Ids are never given twice, so a distance can be checked after the point is gone.
            right = (everything[i.clamp(0, 3599)] - q[:, None]).square().sum(2)
            if not torch.allclose(d, right, rtol=1e-3, atol=1e-4):
                failures.append("a distance does not belong to its index")
            own = engine.all_neighbours(3, ef=10)[1] if seed == 0 else None
            if own is not None and (own[:3000] == torch.arange(3000)[:, None]).any():
                failures.append("a point is its own neighbour")

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for reader in readers:
        reader.start()
    try:
        for step in range(12):
            engine.add(more[50 * step : 50 * step + 50])
            engine.remove(range(300 + 100 * step, 400 + 100 * step))
            time.sleep(0.01)
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert not failures, failures[:3]
    kept = torch.ones(3600, dtype=torch.bool)
    kept[300:1500] = False
    names = kept.nonzero()[:, 0]
    q = torch.randn(50, 24, generator=generator)
    found = engine.search(q, 5, ef=len(engine))[1]
    assert torch.equal(found, names[Exact(everything[kept]).search(q, 5)[1]])


def test_exact_engine_serves_several_threads() -> None:
    x = torch.randn(2000, 32, generator=torch.Generator().manual_seed(1))
    engine = Exact(x, threads=2)
    wanted = engine.search(x[:100], 7)
    answers: list[bool] = []

    def ask() -> None:
        for _ in range(10):
            d, i = engine.search(x[:100], 7)
            answers.append(torch.equal(d, wanted[0]) and torch.equal(i, wanted[1]))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 40 and all(answers)


def test_searches_without_a_pause_do_not_keep_a_change_out() -> None:
    x = torch.randn(2000, 16, generator=torch.Generator().manual_seed(0))
    engine = FANNG(16, threads=1)
    engine.build(x)
    engine.prepare()
    done, added = threading.Event(), threading.Event()

    def read() -> None:
        while not done.is_set():
            engine.search(x[:400], 10, ef=60)

    def add() -> None:
        engine.add(x[:3] + 1)
        added.set()

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    time.sleep(0.1)
    writer = threading.Thread(target=add)
    writer.start()
    came = added.wait(30)
    done.set()
    for thread in (*readers, writer):
        thread.join()
    assert came and len(engine) == 2003


def test_the_graph_is_made_once_by_whoever_asks_first() -> None:
    x = torch.randn(1500, 16, generator=torch.Generator().manual_seed(0))
    engine = FANNG(16, threads=1)
    engine.build(x)
    lists = engine.all_neighbours(5)[1]
    answers: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: answers.append(engine.search(x[:50], 5, ef=40)[1])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4 and all(torch.equal(answer, answers[0]) for answer in answers)
    assert torch.equal(answers[0][:, 0], torch.arange(50))
    assert torch.equal(engine.all_neighbours(5)[1], lists)
