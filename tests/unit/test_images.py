"""Every kind of image file has one defined result, every bad one a clear error."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dsnet.data import augment
from dsnet.errors import DataError
from dsnet.images import centre_crop, normalise, prepare, random_crop, read_image, squeeze, to_array


def colour(file: Path) -> tuple[int, int, int]:
    return read_image(file).getpixel((0, 0))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("image", "name", "expected"),
    [
        (Image.new("L", (4, 4), 77), "grey.png", (77, 77, 77)),
        (Image.new("1", (4, 4), 1), "bits.png", (255, 255, 255)),
        (Image.new("LA", (4, 4), (0, 0)), "clear.png", (255, 255, 255)),
        (Image.new("RGBA", (4, 4), (255, 0, 0, 255)), "opaque.png", (255, 0, 0)),
        (Image.new("RGBA", (4, 4), (0, 0, 0, 0)), "transparent.png", (255, 255, 255)),
        (Image.new("P", (4, 4), 0), "palette.png", (0, 0, 0)),
        (Image.new("CMYK", (4, 4), (0, 0, 0, 0)), "print.jpg", (255, 255, 255)),
        (Image.fromarray(np.full((4, 4), 65535, np.uint16)), "deep.png", (255, 255, 255)),
        (Image.fromarray(np.full((4, 4), 257 * 7, np.uint16)), "deep7.tif", (7, 7, 7)),
        (Image.fromarray(np.full((4, 4), 0.5, np.float32)), "share.tif", (128, 128, 128)),
        (Image.fromarray(np.full((4, 4), 200.0, np.float32)), "float.tif", (200, 200, 200)),
        (Image.fromarray(np.full((4, 4), np.nan, np.float32)), "nan.tif", (0, 0, 0)),
    ],
)
def test_modes(image: Image.Image, name: str, expected: tuple[int, ...], tmp_path: Path) -> None:
    image.save(tmp_path / name)
    assert colour(tmp_path / name) == expected


def test_exif_orientation_is_honoured(tmp_path: Path) -> None:
    image = Image.new("RGB", (20, 10), "black")
    exif = Image.Exif()
    exif[0x0112] = 6  # turn right
    image.save(tmp_path / "turned.jpg", exif=exif)
    assert read_image(tmp_path / "turned.jpg").size == (10, 20)


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    file = tmp_path / "large.png"
    Image.new("1", (3000, 3000)).save(file)
    with pytest.raises(
        DataError, match=r"large.png .*3000 x 3000 pixels, more than the limit of 1,000,000\); shrink it$"
    ):
        read_image(file, max_pixels=1_000_000)


@pytest.mark.parametrize("content", [b"", b"not an image", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\xff\xd8\xff\xe0"])
def test_other_files_are_refused_by_name(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "bad.jpg"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"bad.jpg cannot be read as an image.*replace or remove it$"):
        read_image(file)


def test_a_truncated_image_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cut.jpg"
    Image.effect_noise((200, 200), 50).convert("RGB").save(file)
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"cut.jpg cannot be read"):
        read_image(file)


def test_crops() -> None:
    ramp = np.zeros((60, 100, 3), np.uint8)
    ramp[:, :, 0] = np.arange(100)
    image = Image.fromarray(ramp)
    middle = to_array(centre_crop(image, 30, crop=0.5, interpolation="bilinear"), 3)
    assert middle.shape == (3, 30, 30)
    assert abs(float(middle[0].mean()) - 49.5) < 1
    assert (int(middle[0].min()), int(middle[0].max())) == (35, 64)
    rng = random.Random(0)
    crops = [random_crop(image, 16, scale=(0.1, 1.0), interpolation="bilinear", rng=rng) for _ in range(20)]
    assert {crop.size for crop in crops} == {(16, 16)}
    assert len({crop.tobytes() for crop in crops}) == 20


@pytest.mark.parametrize("channels", [1, 3])
def test_numpy_and_torch_normalise_alike(channels: int) -> None:
    """Predictions without torch and training see the same numbers, bit for bit."""
    rng = np.random.default_rng(channels)
    every = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16).repeat(channels, 1)
    for pixels in (every, rng.integers(0, 256, (5, channels, 33, 21), np.uint8)):
        for _ in range(20):
            mean, std = tuple(rng.uniform(0, 1, channels).tolist()), tuple(rng.uniform(0.05, 1, channels).tolist())
            expected = augment.normalise(augment.to_float(torch.from_numpy(pixels)), mean, std).numpy()
            found = normalise(pixels, mean, std)
            assert found.dtype == np.float32
            assert np.array_equal(found, expected)
            assert np.array_equal(normalise(pixels[0], mean, std), expected[0])


def test_arrays_have_the_channels_that_are_asked_for() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 9, 3), np.uint8)
    image = Image.fromarray(pixels)
    assert np.array_equal(to_array(image, 3), pixels.transpose(2, 0, 1))
    assert np.array_equal(to_array(image, 1), np.asarray(image.convert("L"))[None])
    assert np.array_equal(to_array(image.convert("L"), 3)[0], to_array(image, 1)[0])
    assert to_array(image, 3).flags.c_contiguous
    with pytest.raises(DataError, match="takes 4 channels; only grey and colour images can be read"):
        to_array(image, 4)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_cropped_or_squeezed(channels: int) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 70, 3), np.uint8))
    mean, std = (0.4,) * channels, (0.2,) * channels
    how = {"size": 24, "channels": channels, "crop": 0.9, "interpolation": "bicubic", "mean": mean, "std": std}
    cropped, squeezed = prepare(image, fit="crop", **how), prepare(image, fit="squeeze", **how)
    assert cropped.shape == squeezed.shape == (channels, 24, 24)
    square = centre_crop(image, 24, crop=0.9, interpolation="bicubic")
    assert np.array_equal(cropped, normalise(to_array(square, channels), mean, std))
    assert np.array_equal(squeezed, normalise(to_array(squeeze(image, 24, "bicubic"), channels), mean, std))
    with pytest.raises(ValueError, match="fit 'pad' is unknown; choose crop or squeeze"):
        prepare(image, fit="pad", **how)
