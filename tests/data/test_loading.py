import threading
import time
from collections.abc import Callable

import pytest
import torch

from nngk.data import Augmentation, batches, random_batches
from nngk.errors import InputError


class Numbered:
    """Image i is filled with the value i; later batches may come faster than earlier ones."""

    def __init__(self, wait: float = 0.0, broken: int | None = None) -> None:
        self.wait, self.broken, self.asked = wait, broken, 0

    def batch(self, indices: torch.Tensor) -> torch.Tensor:
        self.asked += 1
        time.sleep(self.wait / (1 + int(indices[0])))
        if self.broken is not None and self.broken in indices.tolist():
            raise InputError("The image 5.png cannot be read.")
        return indices.to(torch.uint8)[:, None, None, None].expand(-1, 3, 6, 6).contiguous()


@pytest.fixture
def loaders() -> Callable[[], int]:
    """Count the threads that load images for this test, and not for one before it."""
    before = set(threading.enumerate())
    return lambda: sum(t.name.startswith("nngk-load") for t in set(threading.enumerate()) - before)


LABELS = [i % 7 for i in range(40)]


def test_batches_come_in_order_with_their_labels(loaders: Callable[[], int]) -> None:
    wanted = random_batches(LABELS, 6, 0, 0)
    got = list(batches(Numbered(wait=0.02), LABELS, wanted, None, threads=4, prefetch=4))
    assert len(got) == len(wanted)
    for (images, labels, indices), want in zip(got, wanted):
        assert torch.equal(indices, want)
        assert images[:, 0, 0, 0].tolist() == want.tolist()
        assert labels.tolist() == [LABELS[i] for i in want] and labels.dtype == torch.int64
    assert loaders() == 0


def test_randomness_does_not_depend_on_threads() -> None:
    images = torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8)

    class Fixed:
        def batch(self, indices: torch.Tensor) -> torch.Tensor:
            return images[indices]

    def run(threads: int, prefetch: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(7)
        options = {"generator": generator, "threads": threads, "prefetch": prefetch}
        return torch.cat(
            [x for x, _, _ in batches(Fixed(), LABELS, random_batches(LABELS, 8, 0, 0), Augmentation(9), **options)]
        )

    assert torch.equal(run(1, 1), run(4, 3))


def test_an_error_in_a_thread_reaches_the_consumer(loaders: Callable[[], int]) -> None:
    stream = batches(Numbered(broken=13), LABELS, torch.arange(40).split(10), None)
    assert next(stream)[2][0] == 0
    with pytest.raises(InputError, match=r"5\.png"):
        next(stream)
    assert loaders() == 0


def test_closing_stops_the_threads_and_no_more_is_read(loaders: Callable[[], int]) -> None:
    images = Numbered()
    stream = batches(images, LABELS, torch.arange(40).split(2), None, threads=2, prefetch=3)
    next(stream)
    assert loaders() > 0
    stream.close()
    assert loaders() == 0
    assert images.asked <= 4


def test_reading_goes_on_while_the_consumer_works() -> None:
    images = Numbered()
    stream = batches(images, LABELS, torch.arange(40).split(2), None, threads=1, prefetch=2)
    next(stream)
    limit = time.monotonic() + 10
    while images.asked < 3 and time.monotonic() < limit:  # nobody has asked for the second batch yet
        time.sleep(0.001)
    assert images.asked == 3
    stream.close()


def test_index_batches_may_be_endless_and_empty() -> None:
    def endless():
        while True:
            yield torch.tensor([3])

    stream = batches(Numbered(), LABELS, endless(), None)
    assert [next(stream)[1].item() for _ in range(5)] == [3] * 5
    stream.close()
    assert list(batches(Numbered(), LABELS, [], None)) == []
    with pytest.raises(InputError, match="at least one thread"):
        batches(Numbered(), LABELS, [], None, threads=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_arrive_on_the_gpu() -> None:
    for images, labels, indices in batches(
        Numbered(), LABELS, torch.arange(40).split(8), Augmentation(4, crop="centre"), device="cuda"
    ):
        assert images.is_cuda and labels.is_cuda and indices.is_cuda
        assert labels.tolist() == [LABELS[i] for i in indices.tolist()]


@pytest.mark.parametrize("fault", [RuntimeError, MemoryError, SystemExit])
def test_a_thread_that_dies_is_heard_of(fault: type[BaseException], loaders: Callable[[], int]) -> None:
    """The error of a thread reaches whoever waits for its batch; nothing hangs, and no batch is left out."""

    class Dying(Numbered):
        def batch(self, indices: torch.Tensor) -> torch.Tensor:
            if 5 in indices.tolist():
                raise fault("on purpose")
            return super().batch(indices)

    found: list[int] = []
    with pytest.raises(fault, match="on purpose"):
        for _, _, indices in batches(Dying(), LABELS, torch.arange(12).split(2), None):
            found += indices.tolist()
    assert found == [0, 1, 2, 3]
    assert loaders() == 0
