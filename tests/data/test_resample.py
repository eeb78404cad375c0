"""Resampling of windows: the plain way and the kernel, against loops and Pillow."""

import numpy as np
import pytest
import torch
from PIL import Image

from interpreter import interpreted
from nngk.data.flat_pictures import FlatPictures
from nngk.data.resample import resample, taps
from resampling import noise, resampled

MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
SHAPES = ((12, 20), (31, 10), (9, 9), (12, 20))
# Inside, the whole picture, its last pixel, all but its first row and column.
WINDOWS = torch.tensor([[2, 1, 5, 4], [0, 0, 10, 31], [8, 8, 1, 1], [1, 1, 19, 11]])
MIRRORED = torch.tensor([True, False, True, True])


def batch():
    return FlatPictures.of([torch.from_numpy(noise(h, w, seed)) for seed, (h, w) in enumerate(SHAPES)])


def by_loops(size):
    out = [resampled(p.numpy(), w, m, size) for p, w, m in zip(batch(), WINDOWS.tolist(), MIRRORED.tolist())]
    return (np.stack(out) / 255 - np.array(MEAN)[:, None, None]) / np.array(STD)[:, None, None]


@pytest.mark.parametrize("size", [1, 7, 16])
def test_the_plain_way_equals_loops(size):
    got = resample(batch(), WINDOWS, MIRRORED, size, MEAN, STD)
    np.testing.assert_allclose(got.numpy(), by_loops(size), atol=2e-5)


@pytest.mark.parametrize("size", [5, 30])
def test_it_is_pillows(size):
    raw = resample(batch(), WINDOWS, torch.zeros(4, dtype=torch.bool), size, (0.0,) * 3, (1.0,) * 3) * 255
    for picture, (left, top, wide, tall), got in zip(batch(), WINDOWS.tolist(), raw):
        image = Image.fromarray(picture.permute(1, 2, 0).numpy())
        cut = image.crop((left, top, left + wide, top + tall))
        wanted = cut.resize((size, size), Image.Resampling.BILINEAR)
        # Pillow rounds to bytes after each of its two passes.
        np.testing.assert_allclose(got.permute(1, 2, 0).numpy(), np.array(wanted), atol=1.5)


@interpreted
@pytest.mark.parametrize("size", [7, 17])
def test_the_kernel_equals_loops(size):
    from nngk.data.resample_triton import resample_flat

    everything = batch()
    chosen, order = everything.select([3, 1, 0, 2]), [3, 1, 0, 2]  # places that are not in the order of the pixels
    got = resample_flat(chosen, WINDOWS[order], MIRRORED[order], taps(WINDOWS, size), size, MEAN, STD)
    np.testing.assert_allclose(got.numpy(), by_loops(size)[order], atol=2e-5)


@interpreted
def test_the_kernel_copies_whole_pixels_exactly():
    from nngk.data.resample_triton import resample_flat

    windows = torch.tensor([[3, 2, 8, 8], [1, 20, 8, 8]])
    pictures = batch().select([0, 1])
    still = torch.zeros(2, dtype=torch.bool)
    got = resample_flat(pictures, windows, still, taps(windows, 8), 8, (0.0,) * 3, (1.0,) * 3)
    for picture, (left, top, _, _), cut in zip(pictures, windows.tolist(), got):
        assert torch.equal((cut * 255).round().byte(), picture[:, top : top + 8, left : left + 8])
        torch.testing.assert_close(cut, picture[:, top : top + 8, left : left + 8] / 255, atol=1e-6, rtol=0)


def test_no_pictures():
    nothing, windows = FlatPictures.of([]), torch.zeros((0, 4), dtype=torch.int64)
    assert resample(nothing, windows, torch.zeros(0, dtype=torch.bool), 4, MEAN, STD).shape == (0, 3, 4, 4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", [7, 64])
def test_the_gpu_gives_what_the_cpu_gives(size):
    expected = resample(batch(), WINDOWS, MIRRORED, size, MEAN, STD)
    got = resample(batch().to("cuda"), WINDOWS, MIRRORED, size, MEAN, STD)
    torch.testing.assert_close(got.cpu(), expected, atol=2e-5, rtol=0)
