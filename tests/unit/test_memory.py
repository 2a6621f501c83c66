"""The reader takes the memory of one decoded image, whatever its mode, and refuses what would take more."""

from __future__ import annotations

import io
import random
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from dsnet import decoding
from dsnet.decoding import MAX_PIXELS, TURNS, ImageError, Upright, coefficients, opened
from dsnet.images import ImageFile, check_image, read_image
from support.counted import Counted
from support.peak import measured

MOST = 400  # megabytes that one image takes at most
BOMB = 60  # megabytes that an image takes at most which is refused
linux = pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
Make = Callable[[Image.Image], Image.Image]


def with_alpha(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    image.putalpha(image.getchannel(0))
    return image


def deep(kind: type, factor: float) -> Make:
    return lambda image: Image.fromarray((np.asarray(image.convert("L"), np.float64) * factor).astype(kind))


def keyed(mode: str, key: int | tuple[int, ...]) -> Make:
    """Images of which one colour is transparent."""

    def make(image: Image.Image) -> Image.Image:
        image = image.convert(mode)
        image.info["transparency"] = key
        return image

    return make


MODES: dict[str, Make] = {
    "RGB": lambda image: image,
    "L": lambda image: image.convert("L"),
    "1": lambda image: image.convert("1"),
    "P": lambda image: image.convert("P"),
    "P, transparent": keyed("P", 3),
    "RGB, transparent": keyed("RGB", (0, 0, 0)),
    "RGBA": with_alpha,
    "LA": lambda image: with_alpha(image).convert("LA"),
    "CMYK": lambda image: image.convert("CMYK"),
    "YCbCr": lambda image: image.convert("YCbCr"),
    "I;16": deep(np.uint16, 257),
    "I;16, dark": deep(np.uint16, 1),
    "I": deep(np.int32, 200),
    "F": deep(np.float32, 1),
    "F, shares": deep(np.float32, 1 / 255),
}


def whole(image: Image.Image) -> Image.Image:
    """An image as upright RGB, all of it at once."""
    image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "F", "I;16"):
        values = np.asarray(image).astype(np.float64)
        if image.mode == "F":
            values = values * 255 if values.max() <= 1 else values
        elif values.max() > 255:
            values = values / 257
        image = Image.fromarray(values.clip(0, 255).round().astype(np.uint8))
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


@pytest.mark.parametrize("mode", MODES)
def test_rows_in_turn_give_what_the_whole_image_gives(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, for all orientations, filters, and parts of the image."""
    rng, pixels = random.Random(mode), np.random.default_rng(0)
    for orientation in range(1, 9):
        for filters in (["NEAREST", "BILINEAR"], ["BICUBIC", "LANCZOS"]):
            width, height = rng.randint(1, 70), rng.randint(1, 70)
            monkeypatch.setattr(decoding, "STRIP", rng.choice([1, 300, 10_000]))
            image = MODES[mode](Image.fromarray(pixels.integers(0, 256, (height, width, 3), np.uint8)))
            image.getexif()[ExifTags.Base.Orientation] = orientation
            expected, found = whole(image), Upright(image)
            assert (found.width, found.height) == expected.size
            assert np.array_equal(np.asarray(found.rgb()), np.asarray(expected))
            for name in filters:
                left, top = rng.uniform(0, 0.6) * found.width, rng.uniform(0, 0.6) * found.height
                box = (left, top, rng.uniform(left + 0.3, found.width), rng.uniform(top + 0.3, found.height))
                for part in (box, (0, 0, *expected.size)):
                    size, resample = (rng.randint(1, 40), rng.randint(1, 40)), Image.Resampling[name]
                    right = expected.resize(size, resample, part).tobytes()
                    assert found.resize(size, resample, part).tobytes() == right, (orientation, name, part)


def photo(side: int) -> Image.Image:
    coarse = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.NEAREST)


def interlaced(file: Path, side: int) -> None:
    """A grey PNG in the seven passes of Adam7, with 16 bits."""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    packer, data = zlib.compressobj(1), []
    for left, top, across, down in passes:
        columns = len(range(left, side, across))
        rows = len(range(top, side, down)) if columns else 0
        data += [packer.compress(bytes([0, *([7, 9] * columns)])) for _ in range(rows)]

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", side, side, 16, 0, 0, 0, 1)
    body = b"".join(data) + packer.flush()
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b""))


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    return exif


LEVEL = {"compress_level": 1}
FILES: dict[str, tuple[str, dict[str, object]]] = {
    "rgb.png": ("RGB", LEVEL),
    "turned.png": ("RGB", {**LEVEL, "exif": turned()}),
    "rgba.png": ("RGBA", LEVEL),
    "la.png": ("LA", LEVEL),
    "palette.png": ("P", LEVEL),
    "bits.png": ("1", {}),
    "sixteen.png": ("I;16", LEVEL),
    "plain.jpg": ("RGB", {"subsampling": 0}),
    "turned.jpg": ("RGB", {"exif": turned()}),
    "progressive.jpg": ("RGB", {"progressive": True, "subsampling": 0}),
    "halved.jpg": ("RGB", {"progressive": True, "subsampling": 2}),
    "print.jpg": ("CMYK", {"subsampling": 0}),
    "print-progressive.jpg": ("CMYK", {"progressive": True, "subsampling": 0}),
    "plain.gif": ("P", {}),
    "plain.bmp": ("RGB", {}),
    "plain.ppm": ("RGB", {}),
    "sixteen.pgm": ("I;16", {}),
    "raw.tif": ("RGB", {}),
    "turned.tif": ("RGB", {"tiffinfo": {274: 6}}),
    "lzw.tif": ("RGB", {"compression": "tiff_lzw"}),
    "one-strip.tif": ("RGBA", {"compression": "tiff_lzw", "tiffinfo": {278: 2**16}}),
    "print.tif": ("CMYK", {}),
    "sixteen.tif": ("I;16", {}),
    "integers.tif": ("I", {}),
    "floats.tif": ("F", {}),
    "lossy.webp": ("RGB", {"method": 0, "quality": 50}),
    "lossless.webp": ("RGBA", {"lossless": True, "quality": 0, "method": 0}),
}


def largest(name: str, pixels: int) -> int:
    """The side of the largest square that the reader takes of a kind of file, if it takes `pixels` of a plain one."""
    with io.BytesIO() as buffer:
        mode, options = FILES[name]
        MODES[mode](photo(64)).save(buffer, Image.registered_extensions()[Path(name).suffix], **options)
        image = Image.open(buffer)
        share = image.width * image.height * decoding.PIXEL / decoding.memory(image, buffer)
    return int((0.97 * min(share, 1) * pixels) ** 0.5)


def written(folder: Path, names: list[str], pixels: int) -> list[Path]:
    for name in names:
        mode, options = FILES[name]
        MODES[mode](photo(largest(name, pixels))).save(folder / name, **options)
    return [folder / name for name in names]


@linux
def test_reading_takes_the_memory_of_one_decoded_image(tmp_path: Path) -> None:
    """An estimate by the header, which limits the pixels, is not below what was measured."""
    names = ["turned.png", "sixteen.png", "progressive.jpg", "floats.tif", "lossless.webp"]
    files = written(tmp_path, names, 6_000_000)
    for file, (peak, error) in zip(files, measured("read", 224, *files), strict=True):
        assert not error
        assert peak < 6 * decoding.PIXEL + 16, (file.name, peak)  # and 16 MB for strips and the narrow image


@linux
@pytest.mark.slow
def test_an_image_at_the_limit_takes_less_than_400_megabytes(tmp_path: Path, counted: Counted) -> None:
    def tall(file: Path) -> None:
        Image.new("RGB", (1144, 65_535)).save(file)

    def wide(file: Path) -> None:
        Image.new("RGBA", (65_535, 1144)).save(file)

    makers = {name: lambda file: written(file.parent, [file.name], MAX_PIXELS) for name in FILES}
    makers |= {
        "interlaced.png": lambda file: interlaced(file, int(MAX_PIXELS**0.5)),
        "tall.png": tall,
        "wide.png": wide,
    }
    peaks = {}
    for name, make in makers.items():
        make(tmp_path / name)
        for size in (32, 224):
            ((peaks[name, size], error),) = measured("read", size, tmp_path / name)
            assert not error
        (tmp_path / name).unlink()
    broken = [(*key, peak) for key, peak in peaks.items() if peak >= MOST]
    law = f"The largest image that is read takes less than {MOST} MB, in {len(makers)} formats and modes"
    counted(law, len(peaks), broken, MB_at_most=round(max(peaks.values())))


def bombs(folder: Path, side: int) -> list[Path]:
    """Small files that would be too large: their headers say so."""
    found = []
    for suffix in ("png", "jpg", "gif", "bmp", "tif", "webp", "pgm"):
        buffer = io.BytesIO()
        Image.new("L", (50, 30)).save(buffer, Image.registered_extensions()[f".{suffix}"], **BOMBS[suffix][0])
        content = bytearray(buffer.getvalue())
        for place, layout, *values in BOMBS[suffix][1](bytes(content), side):
            struct.pack_into(layout, content, place, *values)
        found.append(folder / f"bomb.{suffix}")
        found[-1].write_bytes(content)
    Image.new("1", (9_000, 9_000)).save(folder / "real.png")  # in some kilobytes
    Image.new("L", (70_000, 2)).save(folder / "wide.png")
    (folder / "tiles.tif").write_bytes(one_tile(50, 2**16))
    return [*found, folder / "real.png", folder / "wide.png", folder / "tiles.tif"]


def one_tile(side: int, tile: int) -> bytes:
    """A small grey TIFF in one compressed tile that is large."""
    tags = {256: side, 257: side, 258: 8, 259: 8, 262: 1, 277: 1, 322: tile, 323: tile, 324: 8, 325: 100}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<I", 108) + bytes(100) + struct.pack("<H", len(tags)) + entries + bytes(4)


def tiff_sides(content: bytes, side: int) -> list[tuple[object, ...]]:
    """Where a TIFF has its width and height."""
    return [(content.index(struct.pack("<HH", tag, 4)) + 8, "<I", side) for tag in (256, 257)]


BOMBS: dict[str, tuple[dict[str, object], Callable[[bytes, int], list]]] = {
    "png": ({}, lambda content, side: [(16, ">II", side, side), (29, ">I", crc(content, side))]),
    "jpg": ({}, lambda content, side: [(content.index(b"\xff\xc0") + 5, ">HH", side, side)]),
    "gif": ({}, lambda content, side: [(6, "<HH", side, side)]),
    "bmp": ({}, lambda content, side: [(18, "<ii", side, side)]),
    "tif": ({}, tiff_sides),
    "webp": ({"lossless": True}, lambda content, side: [(21, "<I", side | side << 14)]),
    "pgm": ({}, lambda content, side: [(3, "5s", b"%d" % side)]),
}


def crc(content: bytes, side: int) -> int:
    return zlib.crc32(b"IHDR" + struct.pack(">II", side, side) + content[24:29])


def refused(folder: Path, side: int) -> tuple[int, list[object]]:
    """How many bombs were tried, and those that were not refused in little memory."""
    folder.mkdir(exist_ok=True)
    files = bombs(folder, side)
    found = list(zip(files, measured("read", 224, *files), strict=True))
    begin = "{} cannot be read as an image ("
    return len(files), [one for one in found if one[1][0] >= BOMB or not one[1][1].startswith(begin.format(one[0]))]


@linux
def test_a_bomb_is_refused_in_little_memory(tmp_path: Path) -> None:
    assert refused(tmp_path, 12_345) == (10, [])
    for file in tmp_path.iterdir():
        for reader in (check_image, read_image, ImageFile):
            with pytest.raises(ImageError, match="cannot be read as an image"):
                reader(file)


@linux
@pytest.mark.slow
def test_many_bombs_are_refused_in_little_memory(tmp_path: Path, counted: Counted) -> None:
    rng, trials, broken = random.Random(0), 0, []
    for number in range(20):
        tried, wrong = refused(tmp_path / str(number), rng.randint(10_000, 16_383))
        trials, broken = trials + tried, broken + wrong
    counted(f"An image that would be too large is refused in less than {BOMB} MB", trials, broken)


@linux
@pytest.mark.slow
def test_memory_of_a_prediction_does_not_depend_on_the_batch(tmp_path: Path, counted: Counted) -> None:
    """32 photographs of 24 megapixels took 3.5 GB together."""
    image, trials, broken, peaks = photo(4899), 0, [], []
    for name in ("a.jpg", "b.png", "c.tif"):
        image.save(tmp_path / name)
        (one, *others) = [peak for peak, _ in measured("predict", "1,2,4,8,16,32", tmp_path / name)]
        trials, peaks = trials + len(others), [*peaks, one, *others]
        broken += [(name, one, other) for other in others if other > one + 16]
    law = "A batch of 2 to 32 photographs of 24 megapixels takes the memory of one of them, within 16 MB"
    counted(law, trials, broken, MB_at_most=round(max(peaks)))


def test_what_libjpeg_keeps_is_read_from_the_header(tmp_path: Path) -> None:
    def kept(image: Image.Image, change: Callable[[bytes], bytes] = bytes, **options: object) -> float:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", **options)
        return coefficients(io.BytesIO(change(buffer.getvalue())))

    colour = photo(64)
    assert kept(colour) == kept(colour.convert("L")) == 0
    assert kept(colour, progressive=True, subsampling=0) == 6
    assert kept(colour, progressive=True, subsampling=2) == 3
    assert kept(colour.convert("L"), progressive=True) == 2
    assert kept(colour.convert("CMYK"), progressive=True, subsampling=0) == 8
    assert kept(colour, lambda data: data.replace(b"\xff\xda\0\x0c\3", b"\xff\xda\0\x0c\1"), subsampling=0) == 6
    assert kept(colour, lambda data: data[:2] + b"\xff" + data[2:]) == 0  # markers may be filled up
    assert kept(colour, lambda data: data[:2] + b"\0" + data[2:]) == 8  # the most, where nothing is known


def test_a_phones_file_of_several_pictures_is_a_jpeg(tmp_path: Path) -> None:
    photo(640).save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[photo(64)])
    with opened(tmp_path / "a.jpg", MAX_PIXELS) as image:
        assert image.format == "MPO"
    file = ImageFile(tmp_path / "a.jpg")
    assert file.resize((16, 16), Image.Resampling.BILINEAR).size == (16, 16)
    assert file.scale == 8


def test_orientations_are_those_of_exif() -> None:
    assert set(TURNS) == set(range(2, 9))
