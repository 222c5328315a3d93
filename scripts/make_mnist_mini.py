"""Write the embedded subset of MNIST, src/pwoa/data/embedded/.

    python scripts/make_mnist_mini.py FOLDER

FOLDER holds the official MNIST files. The subset has the first 1,000 training and the first 200 test images
of each class, in official order. Prints the digests that the catalog of data sets must have.
"""

from __future__ import annotations

import lzma
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pwoa.data.catalog import IDX_TEST, IDX_TRAIN
from pwoa.data.formats import Split
from pwoa.data.images import Images
from pwoa.data.load import load_data
from pwoa.data.store import digest

TARGET = Path(__file__).parents[1] / "src" / "pwoa" / "data" / "embedded"
LICENCE = """\
The files *-ubyte.xz in this folder are a subset of the MNIST database of handwritten digits
by Yann LeCun, Corinna Cortes and Christopher J. C. Burges (http://yann.lecun.com/exdb/mnist/),
made available under the Creative Commons Attribution-ShareAlike 3.0 licence
(https://creativecommons.org/licenses/by-sa/3.0/). The subset is under the same licence.

What was changed: of the 60,000 training images the first 1,000 of each class were kept, of the 10,000 test
images the first 200 of each class, in their original order; images and labels themselves are unchanged.
The files are in MNIST's idx format, compressed with xz. Made by scripts/make_mnist_mini.py.
"""


def first_of_each_class(images: Images, count: int) -> Split:
    labels = images.labels.numpy()
    keep = np.sort(np.concatenate([np.flatnonzero(labels == y)[:count] for y in np.unique(labels)]))
    return Split(images.pixels.numpy()[keep], labels[keep])


def idx(array: NDArray[np.integer[Any]]) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write(split: Split, names: tuple[str, ...]) -> None:
    for name, content in zip(names, (idx(split.pixels[:, 0]), idx(split.labels)), strict=True):
        (TARGET / f"{name}.xz").write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(split.labels)} images, digest {digest(split)}")


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    mnist = load_data("mnist", data_folder=sys.argv[1])
    TARGET.mkdir(exist_ok=True)
    write(first_of_each_class(mnist.train, 1000), IDX_TRAIN)
    write(first_of_each_class(mnist.test, 200), IDX_TEST)
    (TARGET / "LICENSE-MNIST").write_text(LICENCE)


if __name__ == "__main__":
    main()
