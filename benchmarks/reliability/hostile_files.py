"""Files that strangers may hand in as pictures: bombs, damage, other types, odd colours and names, and no files at all.

Each kind has a name, a function that writes it, and whether it is to be read or refused.
"""

import importlib.util
import io
import os
import pickle
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms

NOISE = np.random.default_rng(0).integers(0, 256, (48, 64, 4), dtype=np.uint8)
RGB = Image.fromarray(np.ascontiguousarray(NOISE[..., :3]))
RGBA = Image.fromarray(NOISE)
GREY = RGB.convert("L")

Write = Callable[[Path], object]


@dataclass(frozen=True)
class Kind:
    """One kind of hostile file: what it is, under which file name, how it is written, and what must come of it."""

    what: str
    write: Write
    outcome: str  # read, refused
    file: str = "x.jpg"


# -- ways to write a file


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return a picture as the bytes of a file."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def data(content: bytes) -> Write:
    """Return a function that writes these bytes."""
    return lambda path: path.write_bytes(content)


def half(kind: str) -> Write:
    """Return a function that writes a picture which was cut short."""
    content = saved(RGB, kind)
    return data(content[: len(content) // 2])


def chunk(kind: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, colour: int = 6, rows: int | None = None, *more: bytes, depth: int = 8) -> Write:
    """Return a function that writes a black PNG, of which only the first rows may be there."""

    def write(path: Path) -> None:
        line = bytes(1 + width * {0: 1, 2: 3, 6: 4}[colour] * depth // 8)
        squeeze = zlib.compressobj(1)
        pixels = b"".join(squeeze.compress(line) for _ in range(height if rows is None else rows)) + squeeze.flush()
        header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
        chunks = (chunk(b"IHDR", header), *more, chunk(b"IDAT", pixels), chunk(b"IEND", b""))
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))

    return write


def claimed_jpeg(width: int, height: int, **options: Any) -> bytes:
    """Return a JPEG whose header claims another size."""
    content = bytearray(saved(RGB, "JPEG", **options))
    start = next(i for i in range(len(content)) if content[i : i + 2] in (b"\xff\xc0", b"\xff\xc2"))
    content[start + 5 : start + 9] = struct.pack(">HH", height, width)
    return bytes(content)


def many_scans(path: Path) -> None:
    """Write a progressive JPEG whose last scan comes 3,000 times."""
    content = saved(Image.new("RGB", (2000, 2000)), "JPEG", progressive=True)
    last = content.rindex(b"\xff\xda")
    path.write_bytes(content[:last] + content[last:-2] * 3000 + content[-2:])


def with_size(content: bytes, place: int, layout: str, *sizes: int) -> bytes:
    """Return a file whose size was changed in its header."""
    return content[:place] + struct.pack(layout, *sizes) + content[place + struct.calcsize(layout) :]


def huge_tiff() -> bytes:
    """Return a TIFF that claims 60,000×60,000 pixels in one strip."""
    tags = [(256, 4, 60000), (257, 4, 60000), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8), (278, 4, 60000)]
    tags += [(279, 4, 4_000_000_000)]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0)


def rle_bmp(side: int) -> bytes:
    """Return a BMP of runs of one pixel, which Pillow decodes in Python."""
    pixels = (bytes([1, 7]) * side + b"\0\0") * side + b"\0\1"
    palette = b"".join(bytes([i, i, i, 0]) for i in range(256))
    header = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(pixels), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 1078 + len(pixels), 0, 0, 1078) + header + palette + pixels


def sparse(path: Path) -> None:
    """Write a file of 16 GiB that takes no room."""
    with path.open("wb") as file:
        file.write(saved(RGB, "JPEG"))
        file.truncate(1 << 34)


def zipped() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.txt", "no picture")
    return stream.getvalue()


def exif(orientation: int) -> Image.Exif:
    notes = Image.Exif()
    notes[0x0112] = orientation
    return notes


def wrong_crc(content: bytes, kind: bytes) -> bytes:
    place = content.index(kind)
    length = struct.unpack(">I", content[place - 4 : place])[0]
    end = place + 4 + length
    return content[:end] + b"\0\0\0\0" + content[end + 4 :]


def flipped(content: bytes, count: int) -> bytes:
    rng, changed = np.random.default_rng(0), bytearray(content)
    for place in rng.integers(200, len(changed), count):
        changed[place] ^= 0xFF
    return bytes(changed)


def plug(path: Path) -> None:
    """Make a socket."""
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket must be short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def deep(values: Any, kind: str = "TIFF") -> Write:
    return data(saved(Image.fromarray(np.asarray(values)), kind))


def black(width: int, height: int, mode: str = "RGB", **options: Any) -> Write:
    """Return a function that saves a black picture in the format of its name."""
    return lambda path: Image.new(mode, (width, height)).save(path, **options)


def animated(kind: str) -> Write:
    """Return a function that writes three pictures in one file."""
    frames = [Image.new("RGB", (64, 48), colour) for colour in ("red", "green", "blue")]
    return data(saved(frames[0], kind, save_all=True, append_images=frames[1:]))


def squeezed(kind: bytes) -> bytes:
    """Return a chunk of a PNG that is 80 MB when it is unpacked."""
    return chunk(kind, b"a\0\0" + zlib.compress(bytes(80 << 20)))


# -- the kinds

RAMP = np.linspace(0, 1, 48 * 64, dtype=np.float32).reshape(48, 64)
PHOTO = saved(RGB, "JPEG")
LOSSLESS = saved(RGBA, "WEBP", lossless=True)
LEVELS = bytes(range(256))
PALETTE = RGB.convert("P")
VIDEO = b"\0\0\0\x20ftypisom\0\0\2\0isomiso2avc1mp41" + bytes(500)
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
LONG_NOTES = b"Exif\0\0MM\0*\0\0\0\x08" + NOISE.tobytes() * 5
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 48\n%%EndComments\n{} loop\nshowpage\n%%EOF\n"

BOMBS = [
    Kind("PNG of 13,000² with alpha", png(13_000, 13_000), "refused", "x.png"),
    Kind("PNG of 60,000², its first rows", png(60_000, 60_000, 2, 9), "refused", "x.png"),
    Kind("PNG of 2,147,483,647²", png(2**31 - 1, 2**31 - 1, 0, 0), "refused", "x.png"),
    Kind("largest PNG with alpha that is read", png(5_000, 5_000), "read", "x.png"),
    Kind("largest PNG of 16-bit grey that is read", png(5_000, 5_000, 0, depth=16), "read", "x.png"),
    Kind("PNG with 80 MB of compressed text", png(64, 48, 2, None, squeezed(b"zTXt")), "refused", "x.png"),
    Kind("PNG with 80 MB of compressed profile", png(64, 48, 2, None, squeezed(b"iCCP")), "refused", "x.png"),
    Kind("JPEG of 256 megapixels", black(16_000, 16_000, "L"), "read"),
    Kind("JPEG that claims 65,000²", data(claimed_jpeg(65_000, 65_000)), "refused"),
    Kind("JPEG that claims 5,000² and ends early", data(claimed_jpeg(5_000, 5_000)), "read"),
    Kind("progressive JPEG of 25 megapixels", black(5_000, 5_000, progressive=True), "read"),
    Kind("progressive JPEG of 36 megapixels", black(6_000, 6_000, "L", progressive=True), "refused"),
    Kind("progressive JPEG of 3,000 scans", many_scans, "refused"),
    Kind("GIF that claims 65,535²", data(with_size(saved(GREY, "GIF"), 6, "<HH", 65535, 65535)), "refused", "x.gif"),
    Kind("BMP that claims 30,000²", data(with_size(saved(RGB, "BMP"), 18, "<ii", 30000, 30000)), "refused", "x.bmp"),
    Kind("TIFF that claims 60,000²", data(huge_tiff()), "refused", "x.tif"),
    Kind("WebP of 16,383²", data(with_size(LOSSLESS, 21, "<I", 0x0FFFFFFF)), "refused", "x.webp"),
    Kind("WebP of 12 megapixels with alpha", black(4_000, 3_000, "RGBA", method=0), "read", "x.webp"),
    Kind("AVIF of 20 megapixels", black(5_000, 4_000, speed=10), "read", "x.avif"),
    Kind("JPEG 2000 of 9 megapixels", black(3_000, 3_000, "L"), "read", "x.jp2"),
    Kind("PPM that claims 100,000²", data(b"P6 100000 100000 255\n" + bytes(999)), "refused", "x.ppm"),
    Kind("PPM in words, a megapixel", data(b"P3 1000 1000 255\n" + b"9 " * 3_000_000), "refused", "x.ppm"),
    Kind("PPM of 100 levels, a megapixel", data(b"P6 1000 1000 100\n" + bytes(3_000_000)), "refused", "x.ppm"),
    Kind("BMP of runs of one pixel, a megapixel", data(rle_bmp(1000)), "refused", "x.bmp"),
    Kind("TGA that claims 30,000²", data(with_size(saved(RGB, "TGA"), 12, "<HH", 30000, 30000)), "refused", "x.tga"),
    Kind("JPEG in a file of 16 GiB", sparse, "refused"),
]  # fmt: skip

DAMAGED = [
    *(
        Kind(f"{kind} cut in half", half(kind), "refused", f"x.{end}")
        for kind, end in (
            ("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp"), ("GIF", "gif"), ("TIFF", "tif"), ("BMP", "bmp"),
            ("AVIF", "avif"), ("JPEG2000", "jp2"), ("PPM", "ppm"), ("TGA", "tga"),
        )
    ),
    Kind("JPEG without its last two bytes", data(PHOTO[:-2]), "refused"),
    Kind("JPEG without pixels", data(PHOTO[: PHOTO.index(b"\xff\xda")]), "refused"),
    Kind("JPEG with flipped bytes", data(flipped(PHOTO, 20)), "read"),
    Kind("JPEG of 0×0", data(claimed_jpeg(0, 0)), "refused"),
    Kind("JPEG with 5 MB behind it", data(PHOTO + bytes(5_000_000)), "read"),
    Kind("JPEG behind one byte", data(b"x" + PHOTO), "refused"),
    Kind("PNG with a wrong checksum of its header", data(wrong_crc(saved(RGB, "PNG"), b"IHDR")), "refused", "x.png"),
    Kind("PNG with a wrong checksum of its pixels", data(wrong_crc(saved(RGB, "PNG"), b"IDAT")), "read", "x.png"),
    Kind("PNG without pixels", png(64, 48, 2, 0), "refused", "x.png"),
    Kind("PNG of 0×0", png(0, 0, 2), "refused", "x.png"),
    Kind("empty file", data(b""), "refused"),
    Kind("one byte", data(b"\xff"), "refused"),
]  # fmt: skip

OTHER_TYPES = [
    Kind("text", data(b"this is no picture\n" * 50), "refused"),
    Kind("web page", data(b"<!DOCTYPE html><html><body>404</body></html>"), "refused"),
    Kind("ZIP archive", data(zipped()), "refused", "x.png"),
    Kind("EPS with an endless loop", data(EPS), "refused"),
    Kind("PDF", data(b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\n%%EOF\n"), "refused"),
    Kind("SVG", data(b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'), "refused", "x.png"),
    Kind("icon", data(saved(RGB, "ICO")), "refused", "x.png"),
    Kind("pickle", data(pickle.dumps({"a": 1})), "refused", "x.png"),
    Kind("video under the name of AVIF", data(VIDEO), "refused", "x.avif"),
    Kind("random bytes", data(NOISE.tobytes()), "refused"),
    Kind("random bytes as TGA", data(NOISE.tobytes()), "refused", "x.tga"),
    Kind("PNG under the name of JPEG", data(saved(RGB, "PNG")), "read"),
]  # fmt: skip

COLOURS = [
    Kind("animated GIF", animated("GIF"), "read", "x.gif"),
    Kind("animated PNG", animated("PNG"), "read", "x.png"),
    Kind("animated WebP", animated("WEBP"), "read", "x.webp"),
    Kind("TIFF of three pages", animated("TIFF"), "read", "x.tif"),
    Kind("JPEG of several pictures", animated("MPO"), "read"),
    Kind("16-bit grey PNG", deep((RAMP * 65535).astype(np.uint16), "PNG"), "read", "x.png"),
    Kind("16-bit colour PNG", png(64, 48, 2, depth=16), "read", "x.png"),
    Kind("CMYK JPEG", data(saved(RGB.convert("CMYK"), "JPEG")), "read"),
    Kind("CMYK TIFF", data(saved(RGB.convert("CMYK"), "TIFF")), "read", "x.tif"),
    Kind("LAB TIFF", data(saved(RGB.convert("LAB"), "TIFF")), "read", "x.tif"),
    Kind("palette PNG", data(saved(PALETTE, "PNG")), "read", "x.png"),
    Kind("palette PNG with a transparent colour", data(saved(PALETTE, "PNG", transparency=3)), "read", "x.png"),
    Kind("palette PNG with many levels of alpha", data(saved(PALETTE, "PNG", transparency=LEVELS)), "read", "x.png"),
    Kind("1-bit PNG", data(saved(RGB.convert("1"), "PNG")), "read", "x.png"),
    Kind("grey PNG with alpha", data(saved(RGBA.convert("LA"), "PNG")), "read", "x.png"),
    Kind("PNG with alpha", data(saved(RGBA, "PNG")), "read", "x.png"),
    Kind("interlaced PNG", data(saved(RGB, "PNG", interlace=1)), "read", "x.png"),
    Kind("float TIFF", deep(RAMP), "read", "x.tif"),
    Kind("float TIFF with NaN", deep(np.where(RAMP > 0.5, np.nan, RAMP).astype(np.float32)), "refused", "x.tif"),
    Kind("float TIFF of 1e38", deep((RAMP * 3e38).astype(np.float32)), "read", "x.tif"),
    Kind("32-bit grey TIFF", deep((RAMP * 1e9).astype(np.int32)), "read", "x.tif"),
    Kind("AVIF", data(saved(RGB, "AVIF")), "read", "x.avif"),
    Kind("JPEG 2000", data(saved(RGBA, "JPEG2000")), "read", "x.jp2"),
    Kind("grey PGM of 16 bits", data(b"P5 64 48 65535\n" + NOISE.tobytes()[: 64 * 48 * 2]), "read", "x.pgm"),
]  # fmt: skip

NOTES = [
    *(Kind(f"JPEG turned by EXIF {turn}", data(saved(RGB, "JPEG", exif=exif(turn))), "read") for turn in (3, 5, 6, 8)),
    Kind("JPEG with orientation 99", data(saved(RGB, "JPEG", exif=exif(99))), "read"),
    Kind("JPEG with damaged EXIF", data(saved(RGB, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")), "read"),
    Kind("JPEG with 64 KB of noise for EXIF", data(saved(RGB, "JPEG", exif=LONG_NOTES)), "read"),
    Kind("JPEG with a profile of 10 MB", data(saved(RGB, "JPEG", icc_profile=PROFILE + bytes(10_000_000))), "read"),
    Kind("JPEG with a damaged profile", data(saved(RGB, "JPEG", icc_profile=b"no profile")), "read"),
    Kind("one pixel", data(saved(RGB.crop((0, 0, 1, 1)), "PNG")), "read", "x.png"),
    Kind("1×20,000", data(saved(Image.new("RGB", (1, 20_000)), "PNG")), "read", "x.png"),
    Kind("20,000×1", data(saved(Image.new("RGB", (20_000, 1)), "PNG")), "read", "x.png"),
]  # fmt: skip

NAMES = [
    Kind("name in Chinese", data(PHOTO), "read", "猫的照片.jpg"),
    Kind("name in Arabic with a change of direction", data(PHOTO), "read", "قطة\u202egpj.jpg"),
    Kind("name with a line break and terminal escapes", data(PHOTO), "read", "a\nError: none\x1b[2J\x07.jpg"),
    Kind("broken picture of such a name", data(b"no"), "refused", "b\nError: none\x1b[2J\x07.jpg"),
    Kind("name that is no text", data(PHOTO), "read", os.fsdecode(b"caf\xe9\xff\x9b.jpg")),
    Kind("broken picture of such a name that is no text", data(b"no"), "refused", os.fsdecode(b"caf\xe9\xff\x9b2.jpg")),
    Kind("name of 255 bytes", data(PHOTO), "read", "n" * 251 + ".jpg"),
    Kind("name like an option", data(PHOTO), "read", "--help.jpg"),
    Kind("name like a command", data(PHOTO), "read", "$(touch x);'\"`ls` |.jpg"),
    Kind("name like a format", data(PHOTO), "read", "%s{0}{x!r}\\n%n[red].jpg"),
    Kind("name of emoji and joiners", data(PHOTO), "read", "👩\u200d🌾\u200b\ufe0f.jpg"),
    Kind("name of an ending alone", data(PHOTO), "read", "JPG.JPG"),
    Kind("name without an ending", data(PHOTO), "read", "photo"),
]


def phone(width: int, height: int) -> bytes:
    """Return a black photo as phones write it."""
    heif = importlib.import_module("pillow_heif")
    picture = heif.from_pillow(Image.new("RGB", (width, height)))
    stream = io.BytesIO()
    picture.save(stream, quality=10, enc_params={"preset": "ultrafast"})
    return stream.getvalue()


def claimed_phone(width: int, height: int) -> bytes:
    """Return a small photo of a phone whose header says another size."""
    content = phone(64, 48)
    return with_size(content, content.index(b"ispe") + 8, ">II", width, height)


PHONES = [
    Kind("HEIC", lambda path: path.write_bytes(phone(64, 48)), "read", "x.heic"),
    Kind("HEIC under the name of JPEG", lambda path: path.write_bytes(phone(64, 48)), "read"),
    Kind("HEIC of 25 megapixels", lambda path: path.write_bytes(phone(5_000, 5_000)), "read", "x.heic"),
    Kind("HEIC of 26 megapixels", lambda path: path.write_bytes(phone(5_200, 5_000)), "refused", "x.heic"),
    Kind("HEIC that claims 60,000²", lambda path: path.write_bytes(claimed_phone(60_000, 60_000)), "refused", "x.heic"),
    Kind("HEIC of 0×0", lambda path: path.write_bytes(claimed_phone(0, 0)), "refused", "x.heic"),
    Kind("HEIC that claims 5,000²", lambda path: path.write_bytes(claimed_phone(5_000, 5_000)), "refused", "x.heic"),
    Kind("HEIC cut in half", lambda path: path.write_bytes(phone(64, 48)[:300]), "refused", "x.heic"),
    Kind("HEIC with flipped bytes", lambda path: path.write_bytes(flipped(phone(64, 48), 20)), "refused", "x.heic"),
]  # fmt: skip

NO_FILES = [
    Kind("named pipe", os.mkfifo, "refused"),
    Kind("socket", plug, "refused"),
    Kind("link to an endless device", lambda path: path.symlink_to("/dev/zero"), "refused"),
    Kind("link to nothing", lambda path: path.symlink_to("nowhere"), "refused"),
    Kind("link to itself", lambda path: path.symlink_to(path.name), "refused"),
    Kind("folder", lambda path: path.mkdir(), "refused"),
]

GROUPS = {
    "bombs": BOMBS,
    "damaged": DAMAGED,
    "types": OTHER_TYPES,
    "colours": COLOURS,
    "notes": NOTES,
    "names": NAMES,
    "none": NO_FILES,
}
if importlib.util.find_spec("pillow_heif") is not None:
    GROUPS["phones"] = PHONES
QUICK = ("PNG of 60,000², its first rows", "text", "CMYK JPEG", "named pipe", "broken picture of such a name")
