import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from torchvision import transforms

from nngk.data import FlatPictures, fitted, fitted_pictures, load_image, square, squares
from nngk.data.opening import Allowed
from nngk.errors import InputError

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (6, 8, 3), dtype=np.uint8)
GREY = RNG.integers(0, 256, (6, 8), dtype=np.uint8)


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image)


def test_paths_images_arrays_and_tensors_give_the_same_picture(tmp_path: Path) -> None:
    Image.fromarray(RGB).save(tmp_path / "a.png")
    sources = [
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        Image.fromarray(RGB),
        RGB,
        RGB.astype(np.int64),
        RGB.astype(np.uint16) * 257,
        RGB / 255.0,
        RGB.transpose(2, 0, 1),
        torch.from_numpy(RGB).permute(2, 0, 1),
        torch.from_numpy(RGB).permute(2, 0, 1).float() / 255,
        torch.from_numpy(RGB),
    ]
    for source in sources:
        np.testing.assert_array_equal(pixels(load_image(source)), RGB)


def test_grey_of_any_depth(tmp_path: Path) -> None:
    want = np.repeat(GREY[:, :, None], 3, axis=2)
    Image.fromarray(GREY).save(tmp_path / "grey.png")
    Image.fromarray(GREY.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    Image.fromarray(GREY.astype(np.float32) / 255).save(tmp_path / "float.tiff")
    Image.fromarray(GREY.astype(np.int32) * 257).save(tmp_path / "int.tiff")
    for source in [*tmp_path.iterdir(), GREY, GREY[:, :, None], GREY[None], torch.from_numpy(GREY)]:
        np.testing.assert_array_equal(pixels(load_image(source)), want)
    bits = GREY > 127
    np.testing.assert_array_equal(pixels(load_image(bits))[:, :, 0], bits * 255)


def test_a_dark_16_bit_picture_stays_dark(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 200, dtype=np.uint16)).save(tmp_path / "dark.png")
    assert pixels(load_image(tmp_path / "dark.png")).max() <= 1


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    layered = np.zeros((2, 2, 4), dtype=np.uint8)
    layered[0, 0] = (200, 100, 0, 255)
    layered[0, 1] = (200, 100, 0, 0)
    layered[1, 0] = (0, 0, 0, 128)
    Image.fromarray(layered).save(tmp_path / "a.png")
    for source in (tmp_path / "a.png", layered):
        got = pixels(load_image(source))
        assert got[0, 0].tolist() == [200, 100, 0]
        assert got[0, 1].tolist() == [255, 255, 255]
        assert got[1, 0].tolist() == [127, 127, 127]
    Image.fromarray(np.array([[[50, 0], [50, 255]]], dtype=np.uint8), mode=None).save(tmp_path / "la.png")
    assert pixels(load_image(tmp_path / "la.png"))[0, :, 0].tolist() == [255, 50]


def test_palette_with_and_without_a_transparent_colour(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "plain.png")
    image.save(tmp_path / "clear.png", transparency=1)
    assert pixels(load_image(tmp_path / "plain.png"))[0].tolist() == [[10, 20, 30], [40, 50, 60]]
    assert pixels(load_image(tmp_path / "clear.png"))[0].tolist() == [[10, 20, 30], [255, 255, 255]]


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to show
    Image.fromarray(RGB).save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(pixels(load_image(tmp_path / "turned.png")), np.rot90(RGB, -1))


def test_cmyk(tmp_path: Path) -> None:
    Image.new("CMYK", (4, 4), (0, 255, 255, 0)).save(tmp_path / "red.jpg", quality=95)
    red = pixels(load_image(tmp_path / "red.jpg"))[0, 0]
    assert red[0] > 240 and red[1] < 15 and red[2] < 15


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "gif", "bmp"])
def test_a_truncated_file_is_named(tmp_path: Path, ending: str) -> None:
    stream = io.BytesIO()
    noise = RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(stream, {"jpg": "jpeg"}.get(ending, ending))
    file = tmp_path / f"half.{ending}"
    for share in (0.0, 0.02, 0.5):
        file.write_bytes(stream.getvalue()[: int(len(stream.getvalue()) * share)])
        with pytest.raises(InputError, match=rf"half\.{ending} cannot be read.*Replace it or remove it"):
            load_image(file)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (np.zeros((5, 5, 7), dtype=np.uint8), r"not \(5, 5, 7\)"),
        (np.zeros((0, 5), dtype=np.uint8), r"not \(0, 5\)"),
        (np.zeros(5, dtype=np.uint8), r"not \(5,\)"),
        (np.full((4, 4), 2.5), "before any normalisation"),
        (np.full((4, 4), np.nan), "before any normalisation"),
        (np.full((4, 4), 300), "expected 0 to 255"),
        (np.full((4, 4), "x"), "holds numbers"),
        (7, "Cannot read an image from int"),
        ("nowhere.png", "There is no image nowhere.png"),
    ],
)
def test_what_is_not_an_image_is_refused(source: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_image(source)


def test_a_folder_is_not_an_image(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        load_image(tmp_path)


def test_square_squashes_the_box() -> None:
    image = np.zeros((40, 60, 3), dtype=np.uint8)
    image[10:30, 20:50] = (255, 0, 0)
    got = square(image, 16, box=(20, 10, 50, 30))
    assert got.shape == (3, 16, 16) and got.dtype == torch.uint8 and got.is_contiguous()
    assert got[0].min() == 255 and got[1:].max() == 0
    # By hand: cutting whole pixels and resizing the cut is the same thing.
    noise = RNG.integers(0, 256, (40, 60, 3), dtype=np.uint8)
    cut = Image.fromarray(noise[4:36, 8:40]).resize((16, 16), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(square(noise, 16, (8, 4, 40, 36)).permute(1, 2, 0).numpy(), np.asarray(cut))


def test_boxes_are_clipped_and_nan_is_the_whole() -> None:
    noise = RNG.integers(0, 256, (40, 60, 3), dtype=np.uint8)
    assert torch.equal(square(noise, 16, (-5, -5, 99, 99)), square(noise, 16))
    assert torch.equal(square(noise, 16, np.full(4, np.nan)), square(noise, 16))
    assert torch.equal(square(noise, 16, (1.2, 3.9, 20.1, 30.0)), square(noise, 16, (1, 3, 21, 30)))
    with pytest.raises(InputError, match="nothing inside the 60×40 picture"):
        square(noise, 16, (70, 0, 80, 10))


def test_squares_is_a_batch() -> None:
    assert torch.equal(squares([RGB, GREY], 5)[0], square(RGB, 5))
    assert squares([], 5).shape == (0, 3, 5, 5)


@pytest.mark.parametrize("shape", [(40, 60), (61, 40), (33, 33), (10, 40), (3, 2)])
@pytest.mark.parametrize("size", [16, 50])
def test_the_shorter_side_is_fitted_as_torchvision_does(shape: tuple[int, int], size: int) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8))
    wanted = transforms.functional.pil_to_tensor(transforms.Resize(size)(image))
    got = fitted(image, size)
    assert min(got.shape[1:]) == size and torch.equal(got, wanted)


def test_a_very_long_picture_loses_its_ends() -> None:
    long = np.zeros((2, 100, 3), dtype=np.uint8)
    long[:, 46:54] = 200  # the middle eight columns: four times the height
    assert fitted(long, 4).shape == (3, 4, 16) and (fitted(long, 4) == 200).all()
    assert torch.equal(fitted(long.transpose(1, 0, 2), 4), fitted(long, 4).transpose(1, 2))
    assert fitted(np.zeros((1, 5000), dtype=np.uint8), 8).shape == (3, 8, 32)
    assert fitted(long, 4, squash=True).shape == (3, 4, 4) and fitted(long, 4, squash=True).max() < 200


def test_a_box_is_cut_before_the_shorter_side_is_fitted() -> None:
    image = np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    assert torch.equal(fitted(image, 8, (10.2, 5, 29.5, 14.9)), fitted(image[5:15, 10:30], 8))
    assert fitted(image, 8, (10.2, 5, 29.5, 14.9)).shape == (3, 8, 16)


def test_pictures_are_a_batch_of_either_kind() -> None:
    shown = [np.zeros((4, 6), dtype=np.uint8), np.full((6, 4), 9, dtype=np.uint8)]
    batch = fitted_pictures(shown, 8)
    assert isinstance(batch, FlatPictures) and batch[0].shape == (3, 8, 12) and batch[1].shape == (3, 12, 8)
    assert torch.equal(fitted_pictures(shown, 8, squash=True), squares(shown, 8))
    assert len(fitted_pictures([], 8)) == 0


@pytest.mark.parametrize("squash", [False, True])
def test_a_fitted_picture_is_not_touched_again(squash):
    """It is returned as it is; one that only looks like it is read like any other."""
    picture = np.random.default_rng(0).integers(0, 256, (30, 41, 3), dtype=np.uint8)
    once = fitted(picture, 16, squash=squash)
    assert fitted(once, 16, squash=squash).data_ptr() == once.data_ptr()
    assert torch.equal(
        once, torch.from_numpy(np.array(Image.fromarray(once.permute(1, 2, 0).numpy()))).permute(2, 0, 1)
    )
    for other in (once.float() / 255, once[:, :, :-1], once[:1], once.permute(1, 2, 0).numpy()):
        again = fitted(other, 16, squash=squash)
        assert again.shape[0] == 3 and again.dtype == torch.uint8 and min(again.shape[1:]) == 16
    assert fitted(once, 8, squash=squash).shape[1] == 8
    assert fitted(torch.zeros(3, 16, 80, dtype=torch.uint8), 16).shape == (3, 16, 64)  # its ends are cut off


def _smooth(width: int, height: int) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    waves = [127 + 100 * np.sin(x / a + y / b) for a, b in ((37, 53), (29, -41), (61, 23))]
    return Image.fromarray(np.stack(waves, 2).astype(np.uint8))


@pytest.mark.parametrize("box", [None, (100, 50, 700, 550)])
@pytest.mark.parametrize("squash", [False, True])
def test_a_photo_is_decoded_no_larger_than_needed(tmp_path: Path, monkeypatch, box, squash) -> None:
    """At twice the size that is wanted: what comes out is what the whole photo would give."""
    picture = _smooth(1000, 800)
    picture.save(tmp_path / "photo.jpg", quality=95)
    drafts = []
    monkeypatch.setattr(
        "PIL.JpegImagePlugin.JpegImageFile.draft",
        lambda self, mode, size, draft=JpegImageFile.draft: drafts.append(size) or draft(self, mode, size),
    )
    found = fitted(tmp_path / "photo.jpg", 100, box, squash=squash)
    assert drafts == [(250, 200) if box is None else (500, 400)]
    whole = fitted(picture, 100, box, squash=squash)
    assert found.shape == whole.shape
    assert (found.float() - whole.float()).abs().mean() < 1.5


def test_a_photo_that_is_hardly_larger_is_decoded_whole(tmp_path: Path) -> None:
    picture = _smooth(300, 300)
    picture.save(tmp_path / "photo.jpg", quality=95)
    assert torch.equal(fitted(tmp_path / "photo.jpg", 100), fitted(Image.open(tmp_path / "photo.jpg"), 100))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize(
    ("shape", "size", "middle"),
    [
        ((300, 400), 256, 224),
        ((60, 90), 32, 28),
        ((41, 20), 32, 32),
        ((32, 45), 32, 21),
        ((700, 500), 64, 63),
        ((2100, 2050), 64, 60),
        ((258, 254), 256, 74),  # nearly a square: squashed, one side is made longer and the other shorter
        ((131, 129), 128, 108),
    ],
)
def test_the_middle_alone_is_what_a_centre_crop_reads(shape, size, middle, squash, compiled, monkeypatch) -> None:
    if not compiled:
        monkeypatch.setenv("NNGK_NO_NATIVE", "1")
    noise = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    whole, part = (fitted(noise, size, squash=squash, middle=wanted) for wanted in (None, middle))
    top, left = ((side - middle) // 2 for side in whole.shape[1:])
    cut = whole[:, top : top + middle, left : left + middle]
    assert torch.equal(part, cut)
    assert torch.equal(fitted(whole, size, squash=squash, middle=middle), cut)
    assert torch.equal(fitted(noise, size, squash=squash, middle=size + 1), whole)  # more than there is


@given(height=st.integers(1, 70), width=st.integers(1, 70), size=st.integers(1, 40), middle=st.integers(1, 40))
def test_the_middle_of_any_shape_is_pillows(height, width, size, middle) -> None:
    noise = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    whole, middle = fitted(noise, size), min(size, middle)
    top, left = ((side - middle) // 2 for side in whole.shape[1:])
    assert torch.equal(fitted(noise, size, middle=middle), whole[:, top : top + middle, left : left + middle])


def test_only_what_is_allowed_is_decoded(monkeypatch) -> None:
    out = {}
    for kind in ("JPEG", "PNG"):
        Image.fromarray(RGB).save(out.setdefault(kind, io.BytesIO()), kind)

    class Refused(Exception):
        pass

    def refuse(image):
        raise Refused(image.size)

    def never(image, *rest):
        raise AssertionError("pixels were decoded")

    png, jpeg = (out[kind].getvalue() for kind in ("PNG", "JPEG"))
    assert load_image(png, Allowed(("PNG",), lambda image: None)).size == (8, 6)
    with pytest.raises(InputError, match="no JPEG"):
        fitted(jpeg, 4, allowed=Allowed(("PNG",), lambda image: None))
    phone = b"\0\0\0\x18ftypheic" + bytes(300)
    monkeypatch.setattr("nngk.data.opening._register_heif", never)
    with pytest.raises(InputError, match="no JPEG"):
        load_image(phone, Allowed(("PNG", "JPEG"), lambda image: None))
    monkeypatch.setattr(JpegImageFile, "load", never)
    with pytest.raises(Refused, match=r"\(8, 6\)"):
        fitted(jpeg, 4, allowed=Allowed(("JPEG",), refuse))
