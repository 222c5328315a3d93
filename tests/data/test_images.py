from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pwoa.data.images import Data, Images
from pwoa.errors import InputError


def make(count: int, dtype: torch.dtype = torch.uint8) -> Images:
    pixels = torch.arange(count * 12).reshape(count, 3, 2, 2) % 256
    return Images(pixels.to(dtype), torch.arange(count) % 10)


def test_bytes_become_floats_in_the_unit_interval() -> None:
    images, labels = make(30).batch(torch.tensor([25, 3]))
    assert images.dtype == torch.float32
    assert torch.equal(images, make(30).pixels[[25, 3]] / 255)
    assert images.max() <= 1
    assert labels.tolist() == [5, 3]


def test_floats_are_left_alone() -> None:
    pixels = torch.rand(4, 1, 3, 3)
    images, _ = Images(pixels, torch.zeros(4, dtype=torch.int64)).batch(torch.tensor([2]))
    assert torch.equal(images, pixels[[2]])


def test_first_takes_the_first_and_no_more_than_there_are() -> None:
    assert len(make(5)) == 5
    assert torch.equal(make(5).first(2).pixels, make(5).pixels[:2])
    assert len(make(5).first(9)) == 5
    with pytest.raises(InputError, match="first 0 images"):
        make(5).first(0)


def test_to_moves_both_splits() -> None:
    data = Data("d", make(3), make(2), 10).to("meta")
    assert {t.device.type for s in (data.train, data.test) for t in (s.pixels, s.labels)} == {"meta"}


@given(total=st.integers(1, 60), share=st.floats(0, 1, exclude_max=True), seed=st.integers(0, 2**32))
def test_split_is_disjoint_complete_and_seeded(total: int, share: float, seed: int) -> None:
    data = Data("d", make(total), make(1), 10)
    validation = int(total * share)
    train, held = data.split(validation, seed)
    assert len(held) == validation
    assert sorted(train.tolist() + held.tolist()) == list(range(total))
    assert torch.equal(held, data.split(validation, seed)[1])


def test_a_part_of_the_training_images_is_seeded_and_balanced() -> None:
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 4)
    images = Images(torch.zeros(84, 1, 2, 2), labels)
    data = Data("d", images, images, 3)
    train, held = data.split(5, 0, 30)
    chosen = torch.cat([train, held])
    assert len(held) == 5
    assert len(chosen.unique()) == 30
    assert labels[chosen].bincount().tolist() == [13, 13, 4]
    assert torch.equal(train, data.split(5, 0, 30)[0])
    assert not torch.equal(train, data.split(5, 1, 30)[0])
    assert all(map(torch.equal, data.split(5, 0, 84), data.split(5, 0)))
    with pytest.raises(InputError, match=r"d has 84 training images: set data.images to at most that, or to 0 for all"):
        data.split(5, 0, 85)
    with pytest.raises(InputError, match="cannot hold out 30 of the 30 training images"):
        data.split(30, 0, 30)


def test_another_seed_holds_out_others() -> None:
    data = Data("d", make(100), make(1), 10)
    assert not torch.equal(data.split(50, 0)[1], data.split(50, 1)[1])


@pytest.mark.parametrize("validation", [-1, 5, 6])
def test_split_must_leave_training_data(validation: int) -> None:
    with pytest.raises(InputError, match=f"hold out {validation} of the 5 .* set data.validation to fewer, such as 1"):
        Data("d", make(5), make(1), 10).split(validation, 0)


def test_the_fingerprint_is_of_all_images_and_labels_and_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data, same = Data("d", make(3), make(2), 10), Data("e", make(3), make(2), 10)
    fingerprint = data.fingerprint()
    assert fingerprint == same.fingerprint() == data.to("cpu").fingerprint()
    assert fingerprint != Data("d", make(2), make(3), 10).fingerprint()
    assert fingerprint != Data("d", make(3, torch.float32), make(2), 10).fingerprint()
    monkeypatch.setattr("hashlib.sha256", None)
    assert data.fingerprint() == fingerprint
