"""From found files to a data set one can trust: read, then check the content, then use."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from pwoa.data.catalog import DATASETS, Dataset, Layout
from pwoa.data.formats import Blob, Split
from pwoa.data.images import Data, Images
from pwoa.errors import InputError


def read_verified(spec: Dataset, layout: Layout, blobs: Mapping[str, Blob], where: str) -> Data:
    """The data set out of the files of a layout, given by official name; `where` is for messages."""
    if spec.digests is None:
        check_remote_md5(spec, blobs)
    train, test = (
        layout.read([blobs[name] for name in names], spec.shape, count)
        for names, count in zip((layout.train, layout.test), spec.sizes, strict=True)
    )
    for index, split in enumerate((train, test)):
        check_labels(spec, split, where)
        check_digest(spec, index, split, where)
    return Data(spec.name, _images(train), _images(test), spec.classes)


def digest(split: Split) -> str:
    """SHA-256 of the pixels, then the labels, one byte each."""
    content = hashlib.sha256(np.ascontiguousarray(split.pixels).data)
    content.update(split.labels.astype(np.uint8).data)
    return content.hexdigest()


def check_labels(spec: Dataset, split: Split, where: str) -> None:
    low, high = int(split.labels.min()), int(split.labels.max())
    if low < 0 or high >= spec.classes:
        raise InputError(f"{where} has labels from {low} to {high}; {spec.name} has 0 to {spec.classes - 1}")


def check_digest(spec: Dataset, index: int, split: Split, where: str) -> None:
    found, which = digest(split), ("train", "test")[index]
    for other in DATASETS.values():
        if other.digests and other.name != spec.name and other.digests[index] == found:
            raise InputError(f"{where} holds {other.name}, not {spec.name}: load it as {other.name!r}")
    if spec.digests and spec.digests[index] != found:
        raise InputError(
            f"{where} is not {spec.name} as published: the {which} split has SHA-256 {found}, "
            f"expected {spec.digests[index]}; fetch it again with `pwoa data get {spec.name}`"
        )


def check_remote_md5(spec: Dataset, blobs: Mapping[str, Blob]) -> None:
    """Files that bear the name of a published one must be that one."""
    expected = {remote.name: remote.md5 for remote in spec.remotes}
    for blob in blobs.values():
        md5 = expected.get(Path(blob.name).name)
        found = hashlib.md5(blob.content, usedforsecurity=False).hexdigest()
        if md5 not in (None, found):
            raise InputError(
                f"{blob.name} has the wrong checksum: MD5 {found}, expected {md5}; "
                f"fetch it again with `pwoa data get {spec.name}`"
            )


def _images(split: Split) -> Images:
    return Images(torch.from_numpy(split.pixels), torch.from_numpy(split.labels))
