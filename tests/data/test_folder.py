from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pwoa.data.load import load_data
from pwoa.errors import InputError


def save(path: Path, value: int = 0, mode: str = "RGB", size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((size[1], size[0]), value, np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        for value, name in enumerate(["dog", "cat", "ant"]):
            for i in (1, 0):
                save(tmp_path / "pets" / split / name / f"{i}.png", value=10 * value + i)
    return tmp_path / "pets"


def test_sorted_class_names_are_the_labels(root: Path) -> None:
    (root / "train" / "cat" / "notes.txt").write_text("not an image")
    (root / "train" / ".hidden").mkdir()
    data = load_data(str(root))
    assert (data.name, data.classes) == ("pets", 3)
    assert data.train.pixels.shape == (6, 3, 4, 6)
    assert data.train.pixels.dtype == torch.uint8
    found = list(zip(data.train.labels.tolist(), data.train.pixels[:, 0, 0, 0].tolist(), strict=True))
    assert sorted(found) == [(0, 20), (0, 21), (1, 10), (1, 11), (2, 0), (2, 1)]
    assert found != sorted(found), "images come mixed, so that the first ones are not all of one class"
    assert torch.equal(load_data(str(root)).train.pixels, data.train.pixels)


def test_grey_stays_grey_until_one_image_has_colour(tmp_path: Path) -> None:
    for split in ("train", "test"):
        save(tmp_path / split / "a" / "0.png", value=9, mode="L")
    assert load_data(tmp_path).train.pixels.shape == (1, 1, 4, 6)
    save(tmp_path / "test" / "a" / "1.JPG", value=9)
    data = load_data(tmp_path)
    assert data.train.pixels.shape == (1, 3, 4, 6)
    assert len(data.test) == 2


def test_a_test_split_may_lack_a_class(root: Path) -> None:
    for file in (root / "test" / "ant").iterdir():
        file.unlink()
    (root / "test" / "ant").rmdir()
    assert load_data(root).test.labels.tolist() == [1, 1, 2, 2]


def other_size(root: Path) -> None:
    save(root / "test" / "cat" / "9.png", size=(5, 4))


def sixteen_bits(root: Path) -> None:
    Image.fromarray(np.zeros((4, 6), np.uint16)).save(root / "train" / "cat" / "9.png")


def not_an_image(root: Path) -> None:
    (root / "train" / "cat" / "9.png").write_text("<html>")


def cut_short(root: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    Image.fromarray(noise).save(root / "train" / "cat" / "9.png")
    content = (root / "train" / "cat" / "9.png").read_bytes()
    (root / "train" / "cat" / "9.png").write_bytes(content[:-40])


def too_large(root: Path) -> None:
    Image.new("1", (20_000, 20_000)).save(root / "train" / "cat" / "9.png")


def claims_pixels(root: Path) -> None:
    Image.new("1", (5_000, 5_000)).save(root / "train" / "cat" / "9.png")


def other_format(root: Path) -> None:
    (root / "train" / "cat" / "9.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 4\n%%EndComments\n")


def bitmap(root: Path) -> None:
    Image.new("RGB", (6, 4)).save(root / "train" / "cat" / "9.png", format="BMP")


def pipe(root: Path) -> None:
    os.mkfifo(root / "train" / "cat" / "9.png")


def empty_class(root: Path) -> None:
    (root / "train" / "bee").mkdir()


def new_class(root: Path) -> None:
    save(root / "test" / "bee" / "0.png")


def no_test(root: Path) -> None:
    (root / "test").rename(root / "validation")


def no_classes(root: Path) -> None:
    (root / "train").rename(root / "old")
    (root / "train").mkdir()


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (other_size, r"9.png has size \(5, 4\), .*0.png has \(6, 4\)"),
        (sixteen_bits, "9.png has pixels of mode I;16"),
        (not_an_image, "9.png is not a readable image"),
        (cut_short, "9.png cannot be decoded"),
        (too_large, "9.png is not a readable image: .* exceeds limit"),
        (claims_pixels, r"9.png has size \(5000, 5000\): make it of at most 16,777,216 pixels"),
        (other_format, "9.png is not a readable image: no PNG or JPEG"),
        (bitmap, "9.png is not a readable image: no PNG or JPEG"),
        (pipe, "9.png: it is not a plain file"),
        (empty_class, "bee holds no image"),
        (new_class, "bee is a class that train does not have: it has ant, cat, dog"),
        (no_test, "pets has no folder test: .* give its name and data_folder="),
        (no_classes, "train has no class folders"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(root: Path, break_it: object, message: str) -> None:
    assert callable(break_it)
    break_it(root)
    with pytest.raises(InputError, match=message):
        load_data(root)


def test_missing_pillow_names_the_extra(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"pip install 'pwoa\[images\]'"):
        load_data(root)


def test_paths_that_are_no_folder(root: Path) -> None:
    with pytest.raises(InputError, match=r"0.png is a file: give a folder"):
        load_data(root / "test" / "cat" / "0.png")
    with pytest.raises(InputError, match="there is no data set and no folder"):
        load_data(root / "nowhere")
    with pytest.raises(InputError, match="'~nobody-of-that-name' is not the path of a folder"):
        load_data("mnist", data_folder="~nobody-of-that-name")
    with pytest.raises(InputError, match="'3' is not the path of a folder"):
        load_data("mnist", data_folder=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="mnist is not a folder: to load the data set of that name"):
        load_data(Path("mnist"))
