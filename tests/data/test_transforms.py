import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nngk.data import Augmentation, centre_crop
from nngk.errors import InputError

BATCH = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 3, 20, 20), dtype=np.uint8))
RAW = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_hand(image: np.ndarray, window: list[float], mirrored: bool, size: int) -> np.ndarray:
    """Bilinear samples with plain loops in float64; (3, S, S) -> (3, size, size), pixels 0 to 1."""
    left, top, wide, tall = window
    _, height, width = image.shape
    out = np.zeros((3, size, size))
    for row in range(size):
        for column in range(size):
            share = (column + 0.5) / size
            x = left + wide * (1 - share if mirrored else share) - 0.5
            y = top + tall * (row + 0.5) / size - 0.5
            x, y = min(max(x, 0), width - 1), min(max(y, 0), height - 1)
            x0, y0 = math.floor(x), math.floor(y)
            x1, y1 = min(x0 + 1, width - 1), min(y0 + 1, height - 1)
            a, b = x - x0, y - y0
            for channel in range(3):
                p = image[channel].astype(np.float64)
                upper = (1 - a) * p[y0, x0] + a * p[y0, x1]
                lower = (1 - a) * p[y1, x0] + a * p[y1, x1]
                out[channel, row, column] = ((1 - b) * upper + b * lower) / 255
    return out


@pytest.mark.parametrize("crop", ["resized", "random", "centre"])
@pytest.mark.parametrize("size", [9, 16])
def test_samples_equal_plain_loops(crop: str, size: int) -> None:
    augmentation = Augmentation(size=size, crop=crop, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    got = augmentation(BATCH, seeded())
    windows, mirrored = augmentation.draw(5, 20, 20, seeded())
    for image, window, flip, result in zip(BATCH.numpy(), windows.tolist(), mirrored.tolist(), got.numpy()):
        want = by_hand(image, window, flip, size)
        for channel in range(3):
            want[channel] = (want[channel] - augmentation.mean[channel]) / augmentation.std[channel]
        np.testing.assert_allclose(result, want, atol=2e-4)


def test_centre_crop_copies_the_middle() -> None:
    got = centre_crop(12, **RAW)(BATCH)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, BATCH[:, :, 4:16, 4:16] / 255, atol=1e-4, rtol=0)
    torch.testing.assert_close(centre_crop(20, **RAW)(BATCH), BATCH / 255, atol=1e-4, rtol=0)
    torch.testing.assert_close(centre_crop(7, **RAW)(BATCH), BATCH[:, :, 6:13, 6:13] / 255, atol=1e-4, rtol=0)


def test_random_crop_copies_windows_of_its_own_for_each_image() -> None:
    augmentation = Augmentation(size=12, crop="random", flip=False, **RAW)
    batch = BATCH[:1].expand(64, -1, -1, -1)
    got = augmentation(batch, seeded())
    seen = set()
    for result, (left, top, _, _) in zip(got, augmentation.draw(64, 20, 20, seeded())[0].long().tolist()):
        torch.testing.assert_close(result, BATCH[0, :, top : top + 12, left : left + 12] / 255, atol=1e-4, rtol=0)
        seen.add((left, top))
    assert len(seen) > 32
    assert {left for left, _ in seen} == {top for _, top in seen} == set(range(9))


def test_flip_mirrors_about_half_of_the_images() -> None:
    augmentation = Augmentation(size=20, crop="centre", **RAW)
    got = augmentation(BATCH[:1].expand(200, -1, -1, -1), seeded())
    straight, mirrored = BATCH[0] / 255, BATCH[0].flip(-1) / 255
    flips = 0
    for result in got:
        flipped = torch.allclose(result, mirrored, atol=1e-4)
        assert flipped or torch.allclose(result, straight, atol=1e-4)
        flips += flipped
    assert 70 < flips < 130


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 1000),
    st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted),
    st.tuples(st.floats(0.2, 5), st.floats(0.2, 5)).map(sorted),
    st.integers(4, 40),
    st.integers(4, 40),
)
def test_windows_stay_inside_and_in_range(
    seed: int, scale: list[float], ratio: list[float], height: int, width: int
) -> None:
    augmentation = Augmentation(size=4, scale=tuple(scale), ratio=tuple(ratio))
    windows, _ = augmentation.draw(50, height, width, seeded(seed))
    left, top, wide, tall = windows.unbind(1)
    assert (left >= 0).all() and (top >= 0).all()
    assert (left + wide <= width * (1 + 1e-12)).all() and (top + tall <= height * (1 + 1e-12)).all()
    area = wide * tall / (height * width)
    assert (area <= scale[1] * (1 + 1e-9)).all()
    uncut = (wide < width) & (tall < height)
    assert (area[uncut] >= scale[0] * (1 - 1e-9)).all()
    aspect = (wide / tall)[uncut]
    assert ((aspect >= ratio[0] * (1 - 1e-9)) & (aspect <= ratio[1] * (1 + 1e-9))).all()


def test_areas_are_spread_evenly() -> None:
    _, _, wide, tall = Augmentation(scale=(0.2, 0.6), ratio=(1, 1)).draw(4000, 100, 100, seeded())[0].unbind(1)
    shares = (wide * tall / 10_000).sort().values
    torch.testing.assert_close(shares, torch.linspace(0.2, 0.6, 4000, dtype=torch.float64), atol=0.02, rtol=0)


def test_same_generator_same_result_and_one_image_alone() -> None:
    augmentation = Augmentation(size=9)
    assert torch.equal(augmentation(BATCH, seeded(3)), augmentation(BATCH, seeded(3)))
    assert not torch.equal(augmentation(BATCH, seeded(3)), augmentation(BATCH, seeded(4)))
    assert torch.equal(centre_crop(9)(BATCH[1]), centre_crop(9)(BATCH)[1])


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="does not fit images of 20×20"):
        centre_crop(21)(BATCH)
    with pytest.raises(InputError, match="Expected uint8"):
        centre_crop(8)(BATCH.float())
    for wrong in ({"crop": "round"}, {"size": 0}, {"scale": (0.5, 0.2)}, {"ratio": (0.0, 1.0)}):
        with pytest.raises(InputError):
            Augmentation(**wrong)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("crop", ["resized", "random", "centre"])
def test_the_gpu_gives_what_the_cpu_gives(crop: str) -> None:
    augmentation = Augmentation(size=12, crop=crop)
    got = augmentation(BATCH.cuda(), seeded(5))
    assert got.is_cuda
    torch.testing.assert_close(got.cpu(), augmentation(BATCH, seeded(5)), atol=1e-3, rtol=0)
    on_gpu = torch.Generator(device="cuda").manual_seed(5)
    assert augmentation(BATCH.cuda(), on_gpu).shape == (5, 3, 12, 12)
