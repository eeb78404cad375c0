import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms

from nngk.data import Augmentation, FlatPictures, centre_crop, fitted
from nngk.data.middle import core
from nngk.data.resample import normalise, resample
from nngk.errors import InputError
from resampling import noise, resampled

BATCH = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 3, 20, 20), dtype=np.uint8))
MIXED = FlatPictures.of([torch.from_numpy(noise(h, w)) for h, w in ((20, 24), (33, 16), (16, 40), (20, 24))])
RAW = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("crop", ["resized", "random", "centre"])
@pytest.mark.parametrize("size", [9, 16])
def test_windows_are_resampled_mirrored_and_normalised(crop: str, size: int) -> None:
    augmentation = Augmentation(size=size, crop=crop, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    for batch, heights, widths in ((BATCH, 20, 20), (MIXED, MIXED.heights, MIXED.widths)):
        got = augmentation(batch, seeded())
        windows, mirrored = augmentation.draw(len(batch), heights, widths, seeded())
        for index, (window, flip) in enumerate(zip(windows.tolist(), mirrored.tolist())):
            want = resampled(batch[index].numpy(), window, flip, size) / 255
            want = (want - np.array([0.1, 0.2, 0.3])[:, None, None]) / np.array([0.5, 0.6, 0.7])[:, None, None]
            np.testing.assert_allclose(got[index].numpy(), want, atol=1e-5)


def test_each_picture_has_windows_of_its_own_size() -> None:
    augmentation = Augmentation(size=16, crop="random", flip=False, **RAW)
    got = augmentation(MIXED, seeded())
    windows = augmentation.draw(len(MIXED), MIXED.heights, MIXED.widths, seeded())[0].long().tolist()
    for index, (left, top, _, _) in enumerate(windows):
        torch.testing.assert_close(got[index], MIXED[index][:, top : top + 16, left : left + 16] / 255)
    with pytest.raises(InputError, match="does not fit images of 33×16"):
        centre_crop(17)(MIXED)


@pytest.mark.parametrize("shape", [(256, 384), (294, 256), (256, 256), (257, 1030), (40, 31)])
def test_the_centre_crop_is_torchvisions(shape: tuple[int, int]) -> None:
    # Where the middle lies between two pixels torchvision takes the even one of them, and this library the first.
    pixels = np.random.default_rng(1).integers(0, 256, (*shape, 3), dtype=np.uint8)
    wanted = transforms.Compose([transforms.Resize(64), transforms.CenterCrop(48), transforms.PILToTensor()])(
        Image.fromarray(pixels[:, : 4 * shape[0]])
    )
    got = centre_crop(48, **RAW)(FlatPictures.of([fitted(pixels[:, : 4 * shape[0]], 64)]))[0]
    torch.testing.assert_close(got, wanted / 255)


def test_resized_crops_are_torchvisions() -> None:
    """The windows of torchvision's RandomResizedCrop and what it makes of them, up to its rounding to bytes."""
    picture = fitted(np.random.default_rng(2).integers(0, 256, (90, 150, 3), dtype=np.uint8), 40)
    image = Image.fromarray(picture.permute(1, 2, 0).numpy())
    for seed in range(20):
        torch.manual_seed(seed)
        top, left, tall, wide = transforms.RandomResizedCrop.get_params(image, [0.16, 1.0], [3 / 4, 4 / 3])
        window = torch.tensor([[left, top, wide, tall]])
        got = resample(FlatPictures.of([picture]), window, torch.tensor([False]), 24, *RAW.values())[0]
        wanted = transforms.functional.resized_crop(image, top, left, tall, wide, [24, 24])
        np.testing.assert_allclose(got.permute(1, 2, 0).numpy() * 255, np.array(wanted), atol=1.5)


def test_what_no_window_fits_gives_its_middle() -> None:
    """As in torchvision: of a long picture the largest window of an allowed shape, in the middle."""
    windows, _ = Augmentation(scale=(1.0, 1.0)).draw(2, torch.tensor([10, 40]), torch.tensor([40, 10]), seeded())
    assert windows.tolist() == [[13, 0, 13, 10], [0, 13, 10, 13]]
    whole, _ = Augmentation(scale=(1.0, 1.0), ratio=(1.1, 1.3)).draw(1, 10, 12, seeded())
    assert whole.tolist() == [[0, 0, 12, 10]]


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
    assert (left + wide <= width).all() and (top + tall <= height).all() and (wide > 0).all() and (tall > 0).all()
    # Where no draw fitted, the middle is taken, which touches two opposite sides.
    uncut = (wide < width) & (tall < height)
    wide, tall = wide[uncut].double(), tall[uncut].double()
    # Sides are rounded to whole pixels, and have at least one.
    least, most = (wide - 0.5) * (tall - 0.5) / (height * width), (wide + 0.5) * (tall + 0.5) / (height * width)
    assert ((least <= scale[1] * (1 + 1e-9)) | (wide == 1) | (tall == 1)).all() and (
        most >= scale[0] * (1 - 1e-9)
    ).all()
    larger = (wide > 1) & (tall > 1)
    assert ((wide - 0.5) / (tall + 0.5) <= ratio[1] * (1 + 1e-9))[larger].all()
    assert ((wide + 0.5) / (tall - 0.5) >= ratio[0] * (1 - 1e-9))[larger].all()


def test_areas_are_spread_evenly() -> None:
    _, _, wide, tall = Augmentation(scale=(0.2, 0.6), ratio=(1, 1)).draw(4000, 500, 500, seeded())[0].unbind(1)
    shares = (wide * tall / 500**2).double().sort().values
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


@pytest.mark.parametrize("compiled", [True, False])
def test_what_is_cut_already_is_brought_to_scale_to_the_bit(compiled, monkeypatch) -> None:
    if not compiled:
        monkeypatch.setenv("NNGK_NO_NATIVE", "1")
    mean, std = (0.1, 0.2, 0.7), (0.5, 0.6, 0.3)
    crop = centre_crop(20, mean, std)
    bytes_of_all_values = torch.arange(256, dtype=torch.uint8).repeat(75).view(16, 3, 20, 20)
    for batch in (BATCH, BATCH[::2], BATCH.flip(1), BATCH[:0], bytes_of_all_values):
        expected = normalise(batch.float(), mean, std)
        got = crop(batch)
        assert torch.equal(got, expected) and got.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(crop(FlatPictures.of(list(batch))) if len(batch) else got, expected)
    assert torch.equal(crop(BATCH[0]), crop(BATCH)[0])


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_the_scale_has_the_numbers_that_torch_is_set_to(kind) -> None:
    mean, std = (0.3, 0.2, 0.7), (0.5, 0.6, 0.4)
    torch.set_default_dtype(kind)
    try:
        got = centre_crop(20, mean, std)(BATCH)
        expected = normalise(BATCH.to(kind), mean, std)
    finally:
        torch.set_default_dtype(torch.float32)
    assert got.dtype == kind and torch.equal(got, expected)


def test_the_compiled_core_writes_where_it_is_told() -> None:
    native = core()
    if native is None:
        pytest.skip("without the compiled core")
    levels, pictures = torch.zeros(3, 256).numpy(), torch.zeros(1, 3, 4, 4, dtype=torch.uint8).numpy()
    with pytest.raises(TypeError, match="incompatible"):  # not into a copy of another kind
        native.levelled(pictures, levels, torch.ones(1, 4, 4, 3, dtype=torch.float64).numpy())
    with pytest.raises(TypeError, match="incompatible"):
        native.middle(pictures[0].transpose(1, 2, 0), 4, 4, 0, 0, torch.ones(3, 4, 4).numpy())
