"""Checkpoints as other repositories save them: each is read as its own code would, or refused with a sentence."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, fx, nn
from torch.nn.utils import prune as torch_prune

from pwoa.data.images import Data, Images
from pwoa.errors import InputError
from pwoa.models.architectures.registry import ARCHITECTURES, architecture_name, build
from pwoa.models.border import Normalised
from pwoa.models.checkpoints.contents import unpack
from pwoa.models.checkpoints.files import load_state, open_checkpoint
from pwoa.models.checkpoints.inspection import Guess, guess_architecture, inspect_checkpoint
from pwoa.models.folding import fold
from pwoa.models.hidden import hidden_points, recording
from pwoa.models.load import load_model

State = dict[str, Tensor]
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
X = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def images(channels: int = 3, classes: int = 10, size: int = 32) -> Data:
    generator = torch.Generator().manual_seed(0)
    split = Images(torch.rand(4, channels, size, size, generator=generator), torch.arange(4) % classes)
    return Data("mine", split, split, classes)


def network(architecture: str = "resnet18@0.05", classes: int = 10, channels: int = 3) -> nn.Module:
    """A network whose every tensor differs from that of any other, statistics included."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = build(architecture, classes, channels)
        for name, value in model.state_dict().items():
            if value.is_floating_point() and value.dim() == 1:
                value.uniform_(0.5, 1.5) if name.endswith(("running_var", "weight")) else value.uniform_(-0.2, 0.2)
            elif not value.is_floating_point():
                value.fill_(7)
        last = [value for value in model.parameters() if value.dim() == 2][-1]
        nn.init.normal_(last)
    return model.eval()


RESNET, WIDE, PREACT = network(), network("wrn-28-4@0.1"), network("preactresnet18@0.05")


def prefixed(prefix: str, state: Mapping[str, Tensor]) -> State:
    return {prefix + key: value for key, value in state.items()}


def numbers(shape: tuple[int, ...], first: str, second: str) -> State:
    return {first: torch.tensor(MEAN).view(shape), second: torch.tensor(STD).view(shape)}


def sub_block(state: Mapping[str, Tensor]) -> State:
    """What TRADES' WideResNet has and never uses: another first block."""
    return {
        "sub_" + key: torch.randn_like(value) if value.is_floating_point() else value
        for key, value in state.items()
        if key.startswith("block1.")
    }


class Robust(nn.Module):
    """Madry's AttackerModel: the network, its normalisation, and an attacker with both again."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.normalizer, self.model, self.attacker = nn.Module(), model, nn.Module()
        for name, value in numbers((3, 1, 1), "new_mean", "new_std").items():
            self.normalizer.register_buffer(name, value)
        self.attacker.normalize, self.attacker.model = copy.deepcopy(self.normalizer), model


PLAIN: dict[str, tuple[nn.Module, Any]] = {
    "HBaR, PwoA, MART": (RESNET, RESNET.state_dict()),
    "TRADES": (WIDE, dict(WIDE.state_dict()) | sub_block(WIDE.state_dict())),
    "LBGAT": (WIDE, prefixed("module.", dict(WIDE.state_dict()) | sub_block(WIDE.state_dict()))),
    "AWP": (PREACT, {"state_dict": prefixed("module.", PREACT.state_dict()), "epoch": 200, "test_robust_acc": 0.5}),
    "robust overfitting": (PREACT, prefixed("module.", PREACT.state_dict())),
    "HAT without normalisation": (WIDE, {"model_state_dict": prefixed("module.0.", WIDE.state_dict()), "epoch": 3}),
    "Adversarial Pruning Benchmark": (RESNET, {"net": RESNET.state_dict(), "acc": 80.0, "epoch": 3}),
    "RobustBench": (WIDE, {"state_dict": prefixed("module.model.", WIDE.state_dict())}),
    "RobustBench, last and best": (
        PREACT,
        {"best": {key: value * 2 for key, value in PREACT.state_dict().items()}, "last": PREACT.state_dict()},
    ),
    "nested": (RESNET, {"last": {"state_dict": prefixed("module.basic_model.", RESNET.state_dict())}, "epoch": 3}),
    "settings beside it": (RESNET, {"model": {"name": "resnet18"}, "net": RESNET.state_dict()}),
    "MAIR, no normalisation": (
        RESNET,
        {
            "rmodel": prefixed("model.", RESNET.state_dict())
            | {"n_classes": torch.tensor(10), "mean": torch.zeros(3), "std": torch.ones(3)}
        },
    ),
    "torch.compile": (RESNET, prefixed("_orig_mod.module.", RESNET.state_dict())),
    "torch.compile of a part": (
        RESNET,
        {key.replace("layer1.", "layer1._orig_mod."): value for key, value in RESNET.state_dict().items()},
    ),
    "before torch 0.4": (
        RESNET,
        {key: value for key, value in RESNET.state_dict().items() if not key.endswith("num_batches_tracked")},
    ),
    "counters of nothing": (RESNET, dict(RESNET.state_dict()) | {"conv1.num_batches_tracked": torch.tensor(1)}),
}

NORMALISED: dict[str, tuple[nn.Module, Any]] = {
    "HAT, DM-Improves-AT": (
        WIDE,
        {
            "model_state_dict": prefixed("module.1.", WIDE.state_dict())
            | numbers((1, 3, 1, 1), "module.0.mean", "module.0.std")
        },
    ),
    "RobustBench, mu and sigma": (
        PREACT,
        {"last": prefixed("model.", dict(PREACT.state_dict()) | numbers((1, 3, 1, 1), "mu", "sigma"))},
    ),
    "RobustBench, normalize": (
        RESNET,
        prefixed("model.", RESNET.state_dict()) | numbers((1, 3, 1, 1), "normalize.mean", "normalize.std"),
    ),
    "MAIR": (
        RESNET,
        {
            "rmodel": prefixed("model.module.", RESNET.state_dict())
            | numbers((3,), "mean", "std")
            | {"n_classes": torch.tensor(10)}
        },
    ),
    "MAIR, normalisation put in": (
        RESNET,
        {"rmodel": prefixed("model.1.", RESNET.state_dict()) | numbers((3,), "model.0.mean", "model.0.std")},
    ),
    "Madry's robustness, converted": (RESNET, prefixed("module.", Robust(RESNET).state_dict())),
    "pwoa": (RESNET, Normalised(RESNET, MEAN, STD).state_dict()),
}


@pytest.fixture(scope="module")
def data() -> Data:
    return images()


def saved(folder: Path, content: Any, name: str = "a.pt") -> Path:
    torch.save(content, folder / name)
    return folder / name


def logits(model: nn.Module, x: Tensor = X) -> Tensor:
    with torch.no_grad():
        return torch.as_tensor(model(x))


def refused(*arguments: Any, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        load_model(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("form", PLAIN)
def test_every_form_gives_the_logits_of_its_source(tmp_path: Path, data: Data, form: str) -> None:
    model, content = PLAIN[form]
    path = saved(tmp_path, content)
    by_name = load_model(path, data, architecture=architecture_name(model))
    assert type(by_name) is type(model)
    assert torch.equal(logits(by_name), logits(model))
    recognised = load_model(path, data)
    assert architecture_name(recognised) == architecture_name(model)
    assert torch.equal(logits(recognised), logits(model))
    assert not recognised.training


@pytest.mark.parametrize("form", NORMALISED)
def test_normalisation_in_a_file_becomes_a_layer(tmp_path: Path, data: Data, form: str) -> None:
    model, content = NORMALISED[form]
    path = saved(tmp_path, content)
    expected = model((X - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)).detach()
    for architecture in (architecture_name(model), None):
        loaded = load_model(path, data, architecture=architecture)
        assert isinstance(loaded, Normalised)
        assert torch.equal(logits(loaded), expected)
    found = inspect_checkpoint(path).normalisation
    assert found is not None
    assert found.mean == pytest.approx(MEAN)
    assert found.std == pytest.approx(STD)


@pytest.mark.parametrize("form", PLAIN | NORMALISED)
def test_a_missing_layer_is_never_filled_with_chance(tmp_path: Path, data: Data, form: str) -> None:
    model, content = (PLAIN | NORMALISED)[form]

    def without(tree: Any) -> Any:
        if isinstance(tree, Mapping):
            last = ("linear.weight", "fc.weight")
            return {key: without(value) for key, value in tree.items() if not str(key).endswith(last)}
        return tree

    path = saved(tmp_path, without(content))
    said = refused(path, data, architecture=architecture_name(model))
    assert f"does not fit {type(model).__name__}: missing " in said
    near = architecture_name(model).split("@")[0]
    assert f"nearest is {near}" in said
    assert f"nearest is {near}" in refused(path, data)


@pytest.mark.parametrize("form", PLAIN | NORMALISED)
def test_a_tensor_too_many_is_an_error(tmp_path: Path, data: Data, form: str) -> None:
    model, content = (PLAIN | NORMALISED)[form]

    def more(tree: Any) -> Any:
        if any(isinstance(value, Tensor) for value in tree.values()):
            key = next(key for key in tree if key.endswith("conv1.weight") and not key.startswith("sub"))
            return dict(tree) | {key.replace("conv1.weight", "conv1.gate"): torch.ones(3)}
        return {key: more(value) if isinstance(value, Mapping) else value for key, value in tree.items()}

    said = refused(saved(tmp_path, more(content)), data, architecture=architecture_name(model))
    assert "unexpected" in said
    assert "conv1.gate" in said


@pytest.mark.parametrize(
    ("saved_as", "asked", "message"),
    [
        ("wrn-34-10@0.1", "wrn-28-10", "it looks like a wrn-34-10@0.1: try --arch wrn-34-10@0.1"),
        ("resnet18@0.1", "resnet18@0.05", "it looks like a resnet18@0.1: try --arch resnet18@0.1"),
        ("preactresnet18@0.05", "resnet18@0.05", "it looks like a preactresnet18@0.05: try --arch"),
    ],
)
def test_another_architecture_or_width_is_named(
    tmp_path: Path, data: Data, saved_as: str, asked: str, message: str
) -> None:
    assert message in refused(saved(tmp_path, network(saved_as).state_dict()), data, architecture=asked)


def test_other_classes_and_channels_are_named(tmp_path: Path, data: Data) -> None:
    hundred = saved(tmp_path, network(classes=100).state_dict())
    assert "the file has 100 classes, the data has 10" in refused(hundred, data, architecture="resnet18@0.05")
    assert refused(hundred, data).endswith("is a resnet18@0.05, but the file has 100 classes, the data has 10")
    grey = saved(tmp_path, network(channels=1).state_dict())
    assert "the file takes 1-channel images, the data has 3-channel ones" in refused(
        grey, data, architecture="resnet18@0.05"
    )
    assert "the file takes 1-channel images, the data has 3-channel ones" in refused(grey, data)


def test_a_prefix_nobody_knows_is_named(tmp_path: Path, data: Data) -> None:
    path = saved(tmp_path, prefixed("encoder.", RESNET.state_dict()))
    assert "the names in the file have the prefix 'encoder.'" in refused(path, data, architecture="resnet18@0.05")


def test_safetensors_and_half_precision(tmp_path: Path, data: Data) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        lower = {
            key: value.to(dtype) if value.is_floating_point() else value for key, value in RESNET.state_dict().items()
        }
        save_file(prefixed("module.", lower), tmp_path / "a.safetensors")
        loaded = load_model(tmp_path / "a.safetensors", data)
        assert {value.dtype for value in loaded.parameters()} == {torch.float32}
        same = copy.deepcopy(RESNET)
        same.load_state_dict(lower)
        assert torch.equal(logits(loaded), logits(same))
        assert inspect_checkpoint(tmp_path / "a.safetensors").dtype == str(dtype).removeprefix("torch.")


def test_of_last_and_best_the_last_is_taken_and_said(tmp_path: Path) -> None:
    found = inspect_checkpoint(saved(tmp_path, PLAIN["RobustBench, last and best"][1]))
    assert found.container == "last"
    assert found.warnings == ("the file holds 'best' too; 'last' is taken",)


def test_a_cascade_is_refused(tmp_path: Path, data: Data) -> None:
    cascade = {"state_dict": [RESNET.state_dict(), RESNET.state_dict()], "epoch": 3}
    for content in (cascade, cascade["state_dict"]):
        assert "holds 2 networks one after the other (a cascade" in refused(saved(tmp_path, content), data)


def test_settings_saved_as_objects_are_refused_with_the_way_out(tmp_path: Path, data: Data) -> None:
    content = {"state_dict": RESNET.state_dict(), "args": argparse.Namespace(lr=0.1)}
    said = refused(saved(tmp_path, content), data)
    assert "a pickle with code in it, argparse.Namespace" in said
    assert "torch.save(model.state_dict()" in said


def test_a_file_of_dill_names_madrys_robustness(tmp_path: Path, data: Data) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"\x80\x02cdill._dill\n_create_type\n.")
    said = refused(path, data, architecture="resnet18")
    assert "is refused" in said
    assert said.endswith("torch.save(model.state_dict(), …), with the model as Madry's robustness loads it")


# Masks and scores


def hydra_top(weight: Tensor, scores: Tensor, k: float) -> Tensor:
    """HYDRA's own mask, a number at a time: the int((1 - k)·n) lowest |scores| go."""
    ranked = sorted(range(scores.numel()), key=lambda i: float(scores.abs().flatten()[i]))
    mask = torch.ones(scores.numel())
    mask[ranked[: int((1 - k) * scores.numel())]] = 0
    return weight * mask.view_as(weight)


def scored(model: nn.Module) -> tuple[State, list[str]]:
    """A state with scores, as HYDRA has them beside every weight of a layer."""
    generator = torch.Generator().manual_seed(3)
    state = dict(model.state_dict())
    layers = [key for key, value in state.items() if value.dim() > 1]
    for key in layers:
        state[key.replace("weight", "popup_scores")] = torch.randn(state[key].shape, generator=generator)
    return state, layers


def kept_by(state: State, layers: list[str], k: float | Mapping[str, float]) -> nn.Module:
    model = copy.deepcopy(RESNET)
    weights = {key: value for key, value in state.items() if key in model.state_dict()}
    for key in layers:
        part = k if isinstance(k, float) else k[key]
        weights[key] = hydra_top(state[key], state[key.replace("weight", "popup_scores")], part)
    model.load_state_dict(weights)
    return model


def hydra_file(state: State, **beside: Any) -> dict[str, Any]:
    return {"epoch": 3, "arch": "resnet18", "state_dict": prefixed("module.", state), "best_prec1": 50.0, **beside}


def test_hydras_scores_keep_the_largest(tmp_path: Path, data: Data) -> None:
    state, layers = scored(RESNET)
    path = saved(tmp_path, hydra_file(state))
    expected = kept_by(state, layers, 0.25)
    assert torch.equal(logits(load_model(path, data, architecture="resnet18@0.05", kept=0.25)), logits(expected))
    assert torch.equal(logits(load_model(path, data, kept=1)), logits(RESNET))
    with_k = saved(tmp_path, hydra_file(state, k=0.25), "b.pt")
    assert torch.equal(logits(load_model(with_k, data)), logits(expected))
    found = inspect_checkpoint(path, kept=0.25)
    assert found.sparsity == pytest.approx(0.75, abs=0.01)
    assert found.dropped == {"scores": "put into the weights (HYDRA, HARP)"}


def test_scores_that_say_nothing_are_refused(tmp_path: Path, data: Data) -> None:
    path = saved(tmp_path, hydra_file(scored(RESNET)[0]))
    said = refused(path, data)
    assert "has the scores of HYDRA, and does not say what part of the weights they keep" in said
    assert "kept=1 for a dense network" in said
    found = inspect_checkpoint(path)
    assert found.architecture == "resnet18@0.05"
    assert found.warnings == (said,)
    for kept in (0, -1, 1.5, math.nan):
        assert "must be above 0 and up to 1" in refused(path, data, kept=kept)


@pytest.mark.parametrize("scores", [torch.tensor([True]), torch.tensor([math.nan]), torch.tensor([1j])])
@pytest.mark.parametrize("kept", [None, 0.5, 1])
def test_scores_that_are_no_numbers_are_refused(tmp_path: Path, scores: Tensor, kept: float | None) -> None:
    state = {"conv.weight": torch.ones(4), "conv.popup_scores": scores.expand(4).clone()}
    with pytest.raises(InputError, match=r"conv\.popup_scores is not made of finite numbers"):
        unpack(open_checkpoint(saved(tmp_path, state)), "a.pt", kept)


def test_numbers_that_no_float_holds_are_passed_over(tmp_path: Path) -> None:
    content = {"state_dict": {"a": torch.ones(2)}, "epoch": 10**400, "seed": 3, "done": True}
    assert open_checkpoint(saved(tmp_path, content)).numbers == {"seed": 3.0}


@pytest.mark.parametrize("dtype", ["bits8", "float4_e2m1fn_x2"])
def test_numbers_that_torch_cannot_compute_with_are_refused(tmp_path: Path, dtype: str) -> None:
    content = {"a": torch.zeros(4, dtype=torch.uint8).view(getattr(torch, dtype))}
    with pytest.raises(InputError, match=r"sparse, quantised or empty tensors \(a\)"):
        open_checkpoint(saved(tmp_path, content))


def test_weights_already_multiplied_stay_as_they_are(tmp_path: Path, data: Data) -> None:
    state, layers = scored(RESNET)
    done = kept_by(state, layers, 0.25)
    path = saved(tmp_path, hydra_file(state | dict(done.state_dict())))
    assert torch.equal(logits(load_model(path, data)), logits(done))
    assert inspect_checkpoint(path).warnings == (
        "the weights are 0 already where the scores are lowest: taken as they are",
    )
    state["linear.weight"][0, 0] = 0  # a zero with any score shows nothing
    assert "does not say what part" in refused(saved(tmp_path, hydra_file(state)), data)


def harp(state: State, layers: list[str], kept: float) -> dict[str, float]:
    """HARP's scores of the rates, put into the state: half of the layers keep twice as much as the others."""
    floor = 0.1 * kept
    sizes = {key: state[key].numel() for key in layers}
    shares = {key: 1.0 + (i % 2) for i, key in enumerate(layers)}
    scale = kept * sum(sizes.values()) / sum(shares[key] * sizes[key] for key in layers)
    parts = {key: scale * shares[key] for key in layers}
    for key, part in parts.items():
        inner = (part - floor) / (1 - floor)
        state[key.replace("weight", "k_score")] = torch.tensor(math.log(inner / (1 - inner)))
    found = {key: torch.sigmoid(state[key.replace("weight", "k_score")]) * (1 - floor) + floor for key in layers}
    return {key: float(part) for key, part in found.items()}


def test_harps_rates_are_those_of_its_code(tmp_path: Path, data: Data) -> None:
    state, layers = scored(RESNET)
    parts = harp(state, layers, 0.1)
    path = saved(tmp_path, hydra_file(state))
    expected = kept_by(state, layers, parts)
    assert torch.equal(logits(load_model(path, data, kept=0.1)), logits(expected))
    assert torch.equal(logits(load_model(path, data, kept=1)), logits(RESNET))
    assert "has the scores of HARP" in refused(path, data)
    assert "HARP's k_score keeps 0.1" in refused(path, data, kept=0.5)


def test_scores_of_channels_are_refused(tmp_path: Path, data: Data) -> None:
    state, _ = scored(RESNET)
    state["conv1.popup_scores"] = state["conv1.popup_scores"][:, :, :1, :1]
    said = refused(saved(tmp_path, state), data, kept=0.5)
    assert "conv1.popup_scores scores whole channels" in said


def test_pruning_of_torch_is_applied(tmp_path: Path, data: Data) -> None:
    model = copy.deepcopy(RESNET)
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            torch_prune.l1_unstructured(module, "weight", 0.5)
    path = saved(tmp_path, {"state_dict": prefixed("module.", model.state_dict())})
    loaded = load_model(path, data)
    assert torch.equal(logits(loaded), logits(model))
    found = inspect_checkpoint(path)
    assert found.sparsity == pytest.approx(0.5, abs=0.01)
    assert found.dropped == {"masks": "put into the weights"}


@pytest.mark.parametrize("name", ["mask", "weight_mask"])
def test_masks_beside_the_weights_are_applied(tmp_path: Path, data: Data, name: str) -> None:
    state = dict(RESNET.state_dict())
    mask = (torch.rand(state["conv1.weight"].shape, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    expected = copy.deepcopy(RESNET)
    expected.load_state_dict(state | {"conv1.weight": state["conv1.weight"] * mask})
    path = saved(tmp_path, state | {f"conv1.{name}": mask})
    assert torch.equal(logits(load_model(path, data)), logits(expected))
    turned = state | {"conv1.weight": state["conv1.weight"] * mask, f"conv1.{name}": 1 - mask}
    assert "is 1 where conv1.weight is pruned" in refused(saved(tmp_path, turned), data)
    soft = state | {f"conv1.{name}": mask / 2}
    assert f"unexpected conv1.{name}" in refused(saved(tmp_path, soft), data, architecture="resnet18@0.05")


# Normalisation


def test_normalisation_that_is_given(tmp_path: Path, data: Data) -> None:
    path = saved(tmp_path, RESNET.state_dict())
    loaded = load_model(path, data, mean=MEAN, std=STD)
    assert torch.equal(logits(loaded), logits(Normalised(RESNET, MEAN, STD)))
    plain = load_model(path, data, mean=(0, 0, 0), std=(1, 1, 1))
    assert not isinstance(plain, Normalised)
    both = load_model(saved(tmp_path, NORMALISED["MAIR"][1]), data, mean=MEAN, std=STD)
    assert torch.equal(logits(both), logits(loaded))


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.5,), (0.2,), "the mean has length 1; give one number a channel, 3 in all"),
        (MEAN, (0.2,), "the std has length 1; give one number a channel, 3 in all"),
        (MEAN, None, "the std is missing"),
        (None, STD, "the mean is missing"),
        (MEAN, (0.2, 0, 0.2), "the std must be above 0"),
        ((0.5, math.inf, 0.5), STD, "the mean must be finite numbers"),
    ],
)
def test_a_normalisation_that_is_none(tmp_path: Path, data: Data, mean: Any, std: Any, message: str) -> None:
    assert message in refused(saved(tmp_path, RESNET.state_dict()), data, mean=mean, std=std)


def test_two_normalisations_contradict(tmp_path: Path, data: Data) -> None:
    said = refused(saved(tmp_path, NORMALISED["MAIR"][1]), data, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    assert "normalises by mean 0.4914, 0.4822, 0.4465; std 0.2471, 0.2435, 0.2616, not by mean 0.5" in said
    two = NORMALISED["MAIR, normalisation put in"][1]["rmodel"] | {"mean": torch.ones(3), "std": torch.ones(3)}
    assert "holds two normalisations" in refused(saved(tmp_path, two), data)
    bad = dict(RESNET.state_dict()) | {"mean": torch.zeros(3), "std": torch.zeros(3)}
    assert "are no normalisation" in refused(saved(tmp_path, bad), data)
    grey = dict(RESNET.state_dict()) | {"mean": torch.full((4,), 0.5), "std": torch.ones(4)}
    assert "the normalisation has 4 channels, the images have 3" in refused(saved(tmp_path, grey), data)


def test_a_layer_before_the_network_that_left_nothing_must_be_told(tmp_path: Path, data: Data) -> None:
    """HAT's normalisation is not in files of its networks if it was made of plain numbers."""
    path = saved(tmp_path, {"model_state_dict": prefixed("module.1.", WIDE.state_dict())})
    assert "the network stood behind another layer (module.1.…)" in refused(path, data, architecture="wrn-28-4@0.1")
    assert "left nothing in the file" in inspect_checkpoint(path).warnings[0]
    loaded = load_model(path, data, mean=MEAN, std=STD)
    assert torch.equal(logits(loaded), logits(Normalised(WIDE, MEAN, STD)))
    assert torch.equal(logits(load_model(path, data, mean=(0, 0, 0), std=(1, 1, 1))), logits(WIDE))


class Own(nn.Module):
    """A network of a user's own that normalises its images itself."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1))
        self.features = nn.Conv2d(3, 4, 3)
        self.linear = nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.features((x - self.mean) / self.std).mean((2, 3)))
        return out


def test_a_network_of_ones_own_keeps_what_is_its_own(tmp_path: Path, data: Data) -> None:
    model = Own()
    path = saved(tmp_path, {"state_dict": prefixed("module.", model.state_dict())})
    loaded = load_model(path, data, architecture=Own())
    assert isinstance(loaded, Own)
    assert torch.equal(logits(loaded), logits(model))
    assert "normalises its images itself" in refused(path, data, architecture=Own(), mean=MEAN, std=STD)
    tail = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
    path = saved(tmp_path, tail.state_dict())
    assert torch.equal(logits(load_model(path, data, architecture=copy.deepcopy(tail))), logits(tail))


def test_a_factory_by_name(tmp_path: Path, data: Data) -> None:
    source = tmp_path / "nets.py"
    source.write_text(
        "from pwoa.models.architectures.registry import build\ndef net():\n    return build('resnet18@0.05', 10, 3)\n"
    )
    path = saved(tmp_path, NORMALISED["HAT, DM-Improves-AT"][1] | {"model_state_dict": NORMALISED["pwoa"][1]})
    loaded = load_model(path, data, architecture=f"{source}:net")
    assert torch.equal(logits(loaded), logits(Normalised(RESNET, MEAN, STD)))


def test_a_normalised_model_is_like_its_network(data: Data) -> None:
    model = Normalised(RESNET, MEAN, STD)
    assert architecture_name(model) == "resnet18@0.05"
    points = hidden_points(model, X)
    assert points == tuple(f"model.{name}" for name in hidden_points(RESNET, X))
    with recording(model, points) as found:
        logits(model)
    assert list(found) == list(points)
    assert hidden_points(
        Normalised(nn.Sequential(nn.Flatten(), nn.Linear(3072, 4), nn.Linear(4, 2)), MEAN, STD), X
    ) == ("model.1",)
    assert isinstance(fold(model), fx.GraphModule)
    assert torch.allclose(logits(fold(model)), logits(model), atol=1e-4)
    half = Normalised(copy.deepcopy(RESNET).to(torch.float64), MEAN, STD)
    assert half.mean.dtype == torch.float64


def test_a_normalised_model_comes_back_from_its_run(tmp_path: Path, data: Data, write_run: Callable[..., Path]) -> None:
    model = Normalised(RESNET, MEAN, STD)
    run = write_run(tmp_path / "run", model, 10, 3)
    loaded = load_model(run)
    assert isinstance(loaded, Normalised)
    assert torch.equal(logits(loaded), logits(model))
    for fresh in (network(), Normalised(network(), (0, 0, 0), (1, 1, 1))):
        assert torch.equal(logits(load_model(run, data, architecture=fresh)), logits(model))
    again = load_model(run / "model.safetensors", data)
    assert torch.equal(logits(again), logits(model))


# What a file is


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_registered_architecture_is_recognised(name: str) -> None:
    channels = 1 if name in ("lenet", "smallcnn") else 3
    with torch.device("meta"):
        for full, classes in ((name, 10), (f"{name}@0.1", 7)):
            assert guess_architecture(build(full, classes, channels).state_dict()) == Guess(full, classes, channels)


@pytest.mark.parametrize("width", [0.05, 0.33, 0.7071, 2])
def test_a_width_is_one_that_gives_the_same_network(width: float) -> None:
    with torch.device("meta"):
        state = build("resnet50", 10, 3, width).state_dict()
        found = guess_architecture(state)
        assert found is not None
        same = build(found.architecture, 10, 3).state_dict()
    assert {key: value.shape for key, value in same.items()} == {key: value.shape for key, value in state.items()}


def test_what_is_nothing_known_is_not_guessed() -> None:
    assert guess_architecture(nn.Linear(2, 3).state_dict()) is None
    state = dict(RESNET.state_dict())
    assert guess_architecture(state | {"linear.weight": torch.zeros(10, 99)}) is None
    assert guess_architecture(state | {"conv1.weight": torch.zeros(3)}) is None
    assert guess_architecture({key: value for key, value in state.items() if key != "linear.bias"}) is None


def test_an_inspection_says_all(tmp_path: Path) -> None:
    path = saved(tmp_path, {"state_dict": prefixed("module.", dict(WIDE.state_dict()) | sub_block(WIDE.state_dict()))})
    found = inspect_checkpoint(path)
    network = {key: value.float() for key, value in WIDE.state_dict().items() if value.is_floating_point()}
    shapes = {name: shape for name, shape, dtype in found.layout if dtype == "float32"}
    assert shapes == {key: tuple(value.shape) for key, value in network.items()}
    assert "class Net(nn.Module):" in found.skeleton
    assert asdict(dataclasses.replace(found, layout=(), skeleton="")) == {
        "path": str(path),
        "container": "state_dict",
        "prefix": "module.",
        "architecture": "wrn-28-4@0.1",
        "classes": 10,
        "channels": 3,
        "normalisation": None,
        "dropped": {"sub_block1.*": "never used by the network (TRADES, LBGAT)"},
        "tensors": len(WIDE.state_dict()) + len(sub_block(WIDE.state_dict())),
        "parameters": sum(value.numel() for value in WIDE.parameters()),
        "nonzero": sum(int(value.count_nonzero()) for value in WIDE.parameters()),
        "dtype": "float32",
        "sparsity": 0.0,
        "warnings": (),
        "layout": (),
        "skeleton": "",
    }
    own = inspect_checkpoint(saved(tmp_path, Own().state_dict()))
    assert own.architecture is None
    assert own.warnings == ("no registered architecture: to prune or evaluate it give --arch FILE.py:CLASS",)
    broken = dict(RESNET.state_dict()) | {"linear.bias": torch.full((10,), math.nan)}
    assert inspect_checkpoint(saved(tmp_path, broken)).warnings == ("NaN or infinite weights in linear.bias",)


def test_attackers_tensors_that_are_others_are_not_dropped(tmp_path: Path, data: Data) -> None:
    state = dict(Robust(RESNET).state_dict())
    state["attacker.model.conv1.weight"] = state["attacker.model.conv1.weight"] + 1
    assert "does not fit ResNet18" in refused(saved(tmp_path, state), data, architecture="resnet18@0.05")


def test_nothing_but_numbers_is_no_network(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no weights"):
        unpack(open_checkpoint(saved(tmp_path, numbers((3,), "mean", "std"))), "a.pt")


def test_a_checkpoints_own_state_fits_strictly(tmp_path: Path) -> None:
    model = network("preactresnet18@0.05")
    found = unpack(open_checkpoint(saved(tmp_path, PLAIN["AWP"][1])), "a.pt")
    load_state(model, found.state, "a.pt")
    assert list(found.state) == list(model.state_dict())
    assert found.container == "state_dict"
    assert found.prefix == "module."
