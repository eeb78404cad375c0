"""Images kept in one memory give the batches that their source gives."""

import numpy as np
import pytest
import torch

from nngk.data.flat_pictures import FlatPictures
from nngk.data.loading import batches
from nngk.data.resident import Resident, kept
from nngk.data.transforms import Augmentation
from resampling import noise


class Noise:
    """Random pictures that count how often they are read."""

    def __init__(self, n=600, size=4):
        self.pixels = torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8)
        self.read = 0

    def __len__(self):
        return len(self.pixels)

    def batch(self, indices):
        self.read += len(indices)
        return self.pixels[torch.as_tensor(indices)]


def test_the_same_batches_and_each_image_read_once():
    source, told = Noise(), []
    images = Resident(source, "cpu", advance=told.append)
    for chosen in (torch.tensor([599, 0, 3]), [5, 5], torch.arange(600).numpy()):
        assert torch.equal(images.batch(chosen), source.pixels[torch.as_tensor(chosen)])
    assert source.read == 600 == sum(told) and len(images) == 600


def test_training_batches_are_the_same():
    source = Noise(40, 16)
    augment, order = Augmentation(size=8), [torch.tensor([7, 1, 30]), torch.tensor([2, 2])]
    runs = [
        list(batches(images, torch.arange(40), order, augment, generator=torch.Generator().manual_seed(3)))
        for images in (source, Resident(source, "cpu"))
    ]
    for a, b in zip(*runs, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


class Ragged:
    """Random pictures of different sizes; the estimate of their bytes may be wrong."""

    def __init__(self, n=600, nbytes=0):
        shapes = np.random.default_rng(0).integers(8, 14, (n, 2)).tolist()
        self.pictures = FlatPictures.of([torch.from_numpy(noise(h, w, i)) for i, (h, w) in enumerate(shapes)])
        self.nbytes = nbytes

    def __len__(self):
        return len(self.pictures)

    def batch(self, indices):
        return self.pictures.select(indices)


@pytest.mark.parametrize("nbytes", [0, 1000, 10**7])
def test_pictures_of_different_sizes(nbytes):
    source = Ragged(nbytes=nbytes)
    images = Resident(source, "cpu")
    assert torch.equal(images.pixels, source.pictures.pixels) and torch.equal(images.places, source.pictures.places)
    chosen = images.batch([599, 0, 3])
    assert chosen.pixels.data_ptr() == images.pixels.data_ptr()  # nothing is moved
    assert all(torch.equal(chosen[i], source.pictures[j]) for i, j in enumerate((599, 0, 3)))
    runs = [
        list(batches(each, torch.arange(600), [torch.tensor([7, 1, 30])], Augmentation(size=8), generator=generator()))
        for each in (source, images)
    ]
    assert torch.equal(runs[0][0][0], runs[1][0][0])


def test_the_bytes_that_a_source_tells_decide():
    source = Ragged(3, nbytes=1000)
    assert kept(source, 4, torch.device("cuda"), 999) is source


def generator():
    return torch.Generator().manual_seed(3)


def test_only_a_gpu_keeps_images():
    source = Noise(3)
    assert kept(source, 4, torch.device("cpu"), 1e9) is source
    assert kept(source, 4, torch.device("cuda"), 3 * 48 - 1) is source  # beyond the limit
    assert kept(source, 4, torch.device("cuda"), 0) is source


def test_no_images():
    assert len(Resident(Noise(0), "cpu")) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu():
    source, device = Noise(), torch.device("cuda")
    images = kept(source, 4, device, 1e9)
    assert isinstance(images, Resident) and images.pixels.is_cuda
    pinned = kept(source, 4, device, 1e9, free=lambda _: 100)
    assert isinstance(pinned, Resident) and pinned.pixels.is_pinned() and pinned.batch([1]).is_pinned()
    order = [torch.tensor([9, 4]), torch.tensor([500])]
    for a, b, c in zip(
        *(list(batches(s, torch.arange(600), order, None, device="cuda")) for s in (source, images, pinned))
    ):
        assert a[0].is_cuda and torch.equal(a[0], b[0]) and torch.equal(a[0], c[0]) and torch.equal(a[1], b[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("free", [None, lambda _: 100], ids=["on the GPU", "pinned"])
def test_pictures_of_different_sizes_on_a_gpu(free):
    source, device, order = Ragged(), torch.device("cuda"), [torch.tensor([9, 4]), torch.tensor([500])]
    source.nbytes = len(source.pictures.pixels)
    images = kept(source, 14, device, 1e9, free=free)
    assert isinstance(images, Resident) and (images.pixels.is_cuda if free is None else images.batch([1]).is_pinned())
    on_cpu = batches(source, torch.arange(600), order, Augmentation(size=8), generator=generator())
    on_gpu = batches(images, torch.arange(600), order, Augmentation(size=8), generator=generator(), device=device)
    for a, b in zip(on_cpu, on_gpu, strict=True):
        assert b[0].is_cuda
        torch.testing.assert_close(a[0], b[0].cpu(), atol=1e-4, rtol=0)
