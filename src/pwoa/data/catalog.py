"""The data sets known by name: their shapes, their files, their checksums, and where they are published."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pwoa.data.cifar import read_cifar10_binary, read_cifar10_python, read_cifar100_binary, read_cifar100_python
from pwoa.data.formats import Blob, Shape, Split, read_idx_split

Reader = Callable[[Sequence[Blob], Shape, int], Split]


@dataclass(frozen=True)
class Layout:
    """One form a data set comes in: the files of each split, the official folder, the reader."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    folder: str
    read: Reader
    suffixes: tuple[str, ...] = ("",)
    archive: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """Return the names of all files."""
        return self.train + self.test


@dataclass(frozen=True)
class Dataset:
    """What there is to know about a data set before having it.

    `sizes` and `digests` are those of (train, test); a digest is the SHA-256 of the pixels [N, C, H, W]
    followed by the labels, one byte each. `remotes` are the MD5 of the files at `url`, by name. Without digests,
    `contents` are the MD5 of the files when they are decompressed, however they were compressed.
    """

    name: str
    shape: Shape
    sizes: tuple[int, int]
    classes: int
    layouts: tuple[Layout, ...]
    digests: tuple[str, str] | None = None
    url: str = ""
    remotes: Mapping[str, str] = field(default_factory=dict)
    contents: Mapping[str, str] = field(default_factory=dict)
    embedded: bool = False


IDX_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
IDX_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx_layout(folder: str) -> Layout:
    """Describe idx files, which come compressed or not."""
    return Layout(IDX_TRAIN, IDX_TEST, folder, read_idx_split, suffixes=(".gz", "", ".xz"))


CIFAR10_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
CIFAR10_PYTHON = Layout(
    CIFAR10_BATCHES, ("test_batch",), "cifar-10-batches-py", read_cifar10_python, archive="cifar-10-python.tar.gz"
)
CIFAR10_BINARY = Layout(
    tuple(f"{name}.bin" for name in CIFAR10_BATCHES),
    ("test_batch.bin",),
    "cifar-10-batches-bin",
    read_cifar10_binary,
    archive="cifar-10-binary.tar.gz",
)
CIFAR100_PYTHON = Layout(
    ("train",), ("test",), "cifar-100-python", read_cifar100_python, archive="cifar-100-python.tar.gz"
)
CIFAR100_BINARY = Layout(
    ("train.bin",), ("test.bin",), "cifar-100-binary", read_cifar100_binary, archive="cifar-100-binary.tar.gz"
)

_grey = partial(Dataset, shape=(1, 28, 28), classes=10)
_cifar = partial(Dataset, shape=(3, 32, 32), sizes=(50000, 10000), url="https://www.cs.toronto.edu/~kriz/")
_KNOWN = (
    _grey(
        "mnist",
        sizes=(60000, 10000),
        layouts=(idx_layout("MNIST/raw"),),
        digests=(
            "edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b",
            "c3f9adf9c66efb572b1f9326c3a511b45910c7173b97be66ceceeeeaef6b802b",
        ),
        url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        remotes={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    _grey(
        "fashion-mnist",
        sizes=(60000, 10000),
        layouts=(idx_layout("FashionMNIST/raw"),),
        url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        remotes={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        contents={
            "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
    ),
    _cifar(
        "cifar10",
        classes=10,
        layouts=(CIFAR10_BINARY, CIFAR10_PYTHON),
        digests=(
            "1e91790dbaf241617ca1f29a9aba08eb9a62df84cc90676b47edd05ad2ab3c94",
            "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a",
        ),
        remotes={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    ),
    _cifar(
        "cifar100",
        classes=100,
        layouts=(CIFAR100_BINARY, CIFAR100_PYTHON),
        digests=(
            "4e50520a1125d045fade68001374cf6c74e360819dc08b7ecffe4e6c79e9b419",
            "dc66669533e5da36cbeb472b8e2af54edcb17f1d9736fdbd5fede79d08f46b2f",
        ),
        remotes={"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
    ),
    _grey(
        "mnist-mini",
        sizes=(10000, 2000),
        layouts=(idx_layout("mnist-mini"),),
        digests=(
            "1952f3ce518e1e602a0ddc59b86b62219cb612823e1094d70e88725c2abaf07b",
            "1362cd7c923db5b269e5d9b1292359b04f6a7fc1f08ac30f5d6b266f02c48a8c",
        ),
        embedded=True,
    ),
)
DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in _KNOWN}


def fitting_name(channels: int, classes: int) -> str | None:
    """Name the first data set with so many channels and classes; None if there is none."""
    return next((each.name for each in _KNOWN if (each.shape[0], each.classes) == (channels, classes)), None)
