"""Embedding many images: evaluation mode, order, batches, errors."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import torch
from torch import nn

from nngk.data import Augmentation, Images, centre_crop, read_images
from nngk.networks import create_network
from nngk.networks.embed import Rows, embed, embed_parts, untransformed
from shapes import write_shapes


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return read_images(write_shapes(tmp_path_factory.mktemp("shapes"), count=5))


def test_equals_one_image_at_a_time(table):
    network = create_network("small", dim=8, weights="random", dropout=0.5, layer_norm=True)
    plain = centre_crop(16, network.input.mean, network.input.std)
    images = Images(table, 18)
    seen = []
    x = embed(network, images, plain, batch_size=4, advance=seen.append)
    assert x.shape == (15, 8) and x.dtype == torch.float32 and sum(seen) == 15
    assert network.training and not x.is_inference() and not x.requires_grad
    network.eval()
    with torch.no_grad():
        one_by_one = torch.cat([network(plain(images.batch([i]))) for i in range(15)])
    torch.testing.assert_close(x, one_by_one, rtol=1e-4, atol=1e-5)
    assert torch.equal(embed(network, images, plain, batch_size=4), x)
    assert not network.training


def test_evaluation_transform_has_no_randomness(table):
    plain = centre_crop(16, (0.5,) * 3, (0.5,) * 3)
    batch = Images(table, 18).batch(range(15))
    torch.manual_seed(1)
    first = plain(batch)
    torch.manual_seed(2)
    assert torch.equal(first, plain(batch))
    moved = Augmentation(size=16, mean=(0.5,) * 3, std=(0.5,) * 3)(batch, torch.Generator().manual_seed(0))
    assert not torch.equal(first, moved)


def test_rows_are_cached_features():
    rows = Rows(torch.randn(10, 3))
    linear = nn.Linear(3, 2)
    with torch.no_grad():
        torch.testing.assert_close(embed(linear, rows, untransformed, batch_size=3), linear(rows.rows))
    assert len(rows) == 10


def test_mode_is_put_back_after_a_failure():
    class Broken:
        def __len__(self):
            return 4

        def batch(self, indices):
            raise OSError("unreadable")

    network = nn.Linear(3, 2).train()
    with pytest.raises(OSError, match="unreadable"):
        embed(network, Broken(), untransformed)
    assert network.training


def test_embeddings_can_take_part_in_training():
    x = embed(nn.Linear(3, 2), Rows(torch.randn(4, 3)), untransformed)
    weight = torch.ones(2, requires_grad=True)
    (x * weight).sum().backward()
    assert weight.grad is not None


def test_rows_are_gathered_whole():
    rows = torch.randint(0, 255, (5, 3, 4, 4), dtype=torch.uint8)
    for indices in (torch.tensor([4, 0, 0]), [3], torch.arange(0)):
        assert torch.equal(Rows(rows).batch(indices), rows[torch.as_tensor(indices)])


def test_nothing_to_embed():
    assert len(embed(nn.Linear(3, 2), Rows(torch.empty(0, 3)), untransformed)) == 0


@pytest.fixture(params=[2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 7, 15])
def test_side_by_side_gives_what_one_after_another_gives(table, threads, count):
    network = create_network("small", dim=8, weights="random")
    plain, images = centre_crop(16, network.input.mean, network.input.std), Images(table.select(range(count)), 18)
    found = [embed(network, images, plain, batch_size=size) for size in (None, 1, 4)]
    assert torch.get_num_threads() == threads
    torch.set_num_threads(1)
    whole = embed(network, images, plain)
    for rows in found:
        torch.testing.assert_close(rows, whole, rtol=1e-4, atol=1e-5)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("nngk-worker")]


class Numbers:
    """Images that are their own number, some of which take long or cannot be read."""

    def __init__(self, bad=()):
        self.bad, self.asked = bad, []

    def __len__(self):
        return 24

    def batch(self, indices):
        first = int(indices[0])
        self.asked.append(first)
        time.sleep(0.02 if first % 2 == 0 else 0)
        if first in self.bad:
            raise OSError(f"unreadable: {first}")
        return indices.view(-1, 1, 1, 1).expand(-1, 3, 1, 1).float()


class Threads(nn.Module):
    """Says the number of an image, and with how many threads it is embedded."""

    def forward(self, x):
        return torch.cat([x[:, :1, 0, 0], torch.full((len(x), 1), float(torch.get_num_threads()))], 1)


class Untouched:
    size = 1

    def __call__(self, batch, generator=None):
        return batch


def test_parts_come_in_order_and_each_pass_has_one_core(threads):
    seen = embed(Threads(), Numbers(), Untouched(), batch_size=2)
    assert seen[:, 0].tolist() == list(range(24)) and seen[:, 1].unique().tolist() == [1.0]


def test_one_part_has_all_cores(threads):
    assert embed(Threads(), Numbers(), Untouched(), batch_size=24)[:, 1].unique().tolist() == [threads]


def test_a_network_that_speaks_to_other_processes_has_one_pass_at_a_time(threads):
    network = Threads()
    network.unshard = lambda: None
    assert embed(network, Numbers(), Untouched(), batch_size=2)[:, 1].unique().tolist() == [threads]


def test_the_first_failure_is_told(threads):
    numbers = Numbers(bad=(4, 5, 6))
    with pytest.raises(OSError, match="unreadable: 4"):
        embed(Threads(), numbers, Untouched(), batch_size=1)
    assert torch.get_num_threads() == threads and len(numbers.asked) < 24


def test_who_stops_early_leaves_no_threads(threads):
    numbers = Numbers()
    parts = embed_parts(Threads(), numbers, Untouched(), batch_size=1)
    assert next(parts)[0, 0] == 0
    parts.close()
    assert len(numbers.asked) <= 2 * threads + 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("nngk-worker")]


def in_a_thread(work):
    """Return what a new thread finds."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_only_the_workers_have_fewer_threads(threads):
    """Neither who takes the parts nor a thread that is born meanwhile, which would keep its number for ever."""
    with (
        ThreadPoolExecutor(1) as meanwhile,
        closing(embed_parts(Threads(), Numbers(), Untouched(), batch_size=1)) as parts,
    ):
        for part in parts:
            assert part[0, 1] == 1 and torch.get_num_threads() == threads
            assert meanwhile.submit(torch.get_num_threads).result() == threads
            assert in_a_thread(torch.get_num_threads) == threads
        assert meanwhile.submit(torch.get_num_threads).result() == threads


def test_another_thread_may_close(threads):
    parts = embed_parts(Threads(), Numbers(), Untouched(), batch_size=1)
    next(parts)
    in_a_thread(parts.close)
    assert torch.get_num_threads() == threads == in_a_thread(torch.get_num_threads)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("nngk-worker")]


def test_threads_that_embed_at_once_do_not_disturb_each_other(threads):
    def work(_):
        seen = embed(Threads(), Numbers(), Untouched(), batch_size=8)
        return seen[:, 0].tolist(), seen[:, 1].unique().tolist(), torch.get_num_threads()

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(work, range(30)))
    assert found == [(list(range(24)), [1.0], threads)] * 30
    assert torch.get_num_threads() == threads == in_a_thread(torch.get_num_threads)


def test_a_thread_with_its_own_number_does_not_hand_it_on(threads):
    """PyTorch's number is each thread's own: what the process had is put back, not what the caller has."""

    def work():
        torch.get_num_threads()
        begun.set()
        assert changed.wait(60)
        return embed(Threads(), Numbers(), Untouched(), batch_size=8)[:, 1].unique().tolist(), torch.get_num_threads()

    begun, changed = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(work)
        assert begun.wait(60)
        torch.set_num_threads(threads + 1)
        changed.set()
        assert coming.result() == ([1.0], threads)
    assert torch.get_num_threads() == threads + 1 == in_a_thread(torch.get_num_threads)


def test_workers_that_cannot_start_leave_nothing_behind(threads, monkeypatch):
    whole, begun = threading.Thread.start, []

    def start(thread):
        if thread.name.startswith("nngk-worker_"):
            begun.append(thread)
            if len(begun) == 2:
                raise RuntimeError("can't start new thread")
        whole(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        embed(Threads(), Numbers(), Untouched(), batch_size=1)
    assert torch.get_num_threads() == threads == in_a_thread(torch.get_num_threads)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("nngk-worker")]


def test_images_at_hand_are_embedded_with_all_cores_in_the_thread_that_asks(threads):
    class Where(Threads):
        def forward(self, x):
            names.add(threading.current_thread().name)
            return super().forward(x)

    names = set()
    pictures = Rows(torch.arange(24.0).view(-1, 1, 1, 1).expand(-1, 3, 1, 1))
    seen = embed(Where(), pictures, Untouched(), batch_size=2)
    assert seen[:, 0].tolist() == list(range(24)) and seen[:, 1].unique().tolist() == [threads]
    assert names == {threading.current_thread().name}
