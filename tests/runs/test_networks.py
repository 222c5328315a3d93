"""Networks of other kinds than convolutions and linear layers: pruned to the exact count, or refused in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pwoa
from pwoa.data.images import Data
from pwoa.errors import InputError
from pwoa.progress import Progress
from pwoa.recipe.sections import Recipe

Make = Callable[..., Recipe]


class Attention(nn.Module):
    """A small vision transformer by nn.MultiheadAttention, with a class token and positions."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, stride=2)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.randn(1, 10, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, 3)

    def tokens(self, x: Tensor) -> Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        return torch.cat([self.cls_token.expand(len(x), -1, -1), patches], 1) + self.pos_embed

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x)
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        logits: Tensor = self.head((x + self.mlp(x))[:, 0])
        return logits


class Encoder(Attention):
    """The same by nn.TransformerEncoder, which reads its weights directly when it is not trained."""

    def __init__(self, width: int = 16) -> None:
        super().__init__(width)
        del self.attention, self.mlp, self.norm
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(self.tokens(x))[:, 0])
        return logits


class Cross(Attention):
    """Queries and keys of different widths: three matrices instead of one."""

    def __init__(self, width: int = 16) -> None:
        super().__init__(width)
        self.attention = nn.MultiheadAttention(width, 2, kdim=4, vdim=4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x)
        x = x + self.attention(x, x[..., :4], x[..., :4], need_weights=False)[0]
        logits: Tensor = self.head((x + self.mlp(x))[:, 0])
        return logits


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.pointwise = nn.Conv2d(16, 64, 1)
        self.norm = nn.BatchNorm2d(64)
        self.head = nn.Linear(64 * 9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(torch.relu(self.stem(x)))
        x = torch.relu(self.norm(self.pointwise(x)))
        logits: Tensor = self.head(nn.functional.avg_pool2d(x, 2).flatten(1))
        return logits


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.head = nn.Linear(6 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.up(torch.relu(self.down(x)))).flatten(1))
        return logits


class Tied(nn.Module):
    """One Parameter in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.again = nn.Linear(36, 24), nn.Linear(24, 24), nn.Linear(24, 24)
        self.again.weight = self.inner.weight
        self.head = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.inner(torch.relu(self.first(x.flatten(1)))))
        logits: Tensor = self.head(torch.relu(self.again(x)))
        return logits


class Raw(nn.Module):
    """A matrix that no layer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(36, 40) / 6)
        self.scale = nn.Parameter(torch.ones(1, 40))
        self.middle, self.head = nn.Linear(40, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(x.flatten(1) @ self.matrix) * self.scale
        logits: Tensor = self.head(torch.relu(self.middle(x)))
        return logits


class Normed(nn.Module):
    """Weights that are computed from a length and a direction."""

    def __init__(self, norm: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.body, self.head = norm(nn.Linear(36, 24)), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.body(x.flatten(1))))
        return logits


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LazyLinear(24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.body(x.flatten(1))))
        return logits


PRUNED: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "attention": (Attention, {"cls_token", "pos_embed"}),
    "encoder": (Encoder, {"cls_token", "pos_embed"}),
    "cross": (Cross, {"cls_token", "pos_embed"}),
    "depthwise": (Depthwise, set()),
    "transposed": (Transposed, set()),
    "tied": (Tied, set()),
    "raw": (Raw, {"scale"}),
}
"""Networks that are pruned, with the parameters of two or more dimensions that are not."""


def trained(make: Callable[[], nn.Module], data: Data, steps: int = 40) -> nn.Module:
    torch.manual_seed(0)
    model = make()
    x, y = data.train.batch(torch.arange(96))
    model(x[:2])
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


def matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in model.named_parameters() if weight.dim() > 1}


@pytest.mark.parametrize("method", ["pwoa", "hydra", "harp", "apd"])
@pytest.mark.parametrize("name", PRUNED)
def test_every_weight_is_pruned_to_the_exact_count(
    tmp_path: Path, tiny_data: Data, quick: Make, name: str, method: str
) -> None:
    make, left_out = PRUNED[name]
    teacher = trained(make, tiny_data)
    recipe = quick(method=method, search__epochs=2, finetune__epochs=1, training__optimizer="adam")
    recipe = recipe.with_settings({"search.learning_rate": 0.01, "finetune.learning_rate": 0.01})
    result = pwoa.prune(teacher, tiny_data, rate=4, recipe=recipe, folder=tmp_path / "run", force=True)
    pruned = {key: weight for key, weight in matrices(result.model).items() if key not in left_out}
    total = sum(weight.numel() for weight in pruned.values())
    kept = sum(int(weight.count_nonzero()) for weight in pruned.values())
    assert kept == math.floor(total / 4)
    for key in left_out:
        assert matrices(result.model)[key].count_nonzero() == matrices(result.model)[key].numel()
    summary = result.summary
    assert (summary["sparsity"][-1]["total"], summary["sparsity"][-1]["kept"]) == (total, kept)
    assert set(summary["left_out"]) == left_out
    everything = sum(parameter.numel() for parameter in teacher.parameters())
    nonzero = sum(int(parameter.count_nonzero()) for parameter in result.model.parameters())
    assert (summary["parameters"], summary["nonzero"]) == (everything, nonzero)
    assert summary["rate"] == total / kept
    assert summary["overall_rate"] == everything / nonzero
    x, _ = tiny_data.test.batch(torch.arange(48))
    again = pwoa.load_model(result.folder, architecture=make())
    with torch.no_grad():
        assert torch.equal(again(x), result.model.eval()(x))
    scores = pwoa.evaluate(again, tiny_data, attacks="natural", threat=recipe.threat)
    assert scores["natural"] == summary["pruned"]["natural"]


def test_the_fast_path_of_the_encoder_computes_with_the_pruned_weights(
    tmp_path: Path, tiny_data: Data, quick: Make
) -> None:
    teacher = trained(Encoder, tiny_data)
    recipe = quick(search__epochs=1, finetune__epochs=1)
    model = pwoa.prune(teacher, tiny_data, rate=4, recipe=recipe, folder=tmp_path / "run", force=True).model
    x, _ = tiny_data.test.batch(torch.arange(48))
    with torch.no_grad():
        fast = model.eval()(x)
        slow = model.train()(x)  # without dropout the same, by the layers one after the other
    assert torch.allclose(fast, slow, atol=1e-5)


def test_a_tied_weight_stays_tied(tmp_path: Path, tiny_data: Data, quick: Make) -> None:
    teacher = trained(Tied, tiny_data)
    recipe = quick(search__epochs=1, finetune__epochs=1)
    result = pwoa.prune(teacher, tiny_data, rate=4, recipe=recipe, folder=tmp_path / "run", force=True)
    model = result.model
    assert isinstance(model, Tied)
    assert model.again.weight is model.inner.weight
    assert [row["layer"] for row in result.summary["sparsity"]] == [
        *("first.weight", "inner.weight", "head.weight", "total")
    ]


@pytest.mark.parametrize("name", ["attention", "encoder", "depthwise", "tied", "raw"])
@pytest.mark.parametrize("method", ["pwoa", "harp"])
def test_a_run_that_was_killed_ends_with_the_same_bits(
    tmp_path: Path, tiny_data: Data, quick: Make, killed: Callable[[int], Progress], name: str, method: str
) -> None:
    teacher = trained(PRUNED[name][0], tiny_data)
    recipe = quick(method=method, search__epochs=2, finetune__epochs=2)
    recipe = recipe.with_settings({"search.learning_rate": 0.01, "finetune.learning_rate": 0.01})
    given: dict[str, Any] = {"rate": 4, "recipe": recipe, "force": True}
    whole = pwoa.prune(teacher, tiny_data, folder=tmp_path / "whole", **given).model.state_dict()
    with pytest.raises(KeyboardInterrupt):
        pwoa.prune(teacher, tiny_data, folder=tmp_path / "cut", progress=killed(14), **given)
    resumed = pwoa.prune(teacher, tiny_data, folder=tmp_path / "cut", **given).model.state_dict()
    assert all(torch.equal(value, resumed[key]) for key, value in whole.items())


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("method", ["pwoa", "hydra", "harp"])
@pytest.mark.parametrize(
    ("norm", "called"),
    [
        (nn.utils.parametrizations.weight_norm, "body.parametrizations.weight.original1"),
        (nn.utils.parametrizations.orthogonal, "body.parametrizations.weight.original"),
        (nn.utils.weight_norm, "body.weight_g"),
    ],
)
def test_a_computed_weight_is_refused_in_one_line_and_can_be_left_out(
    tmp_path: Path, tiny_data: Data, quick: Make, norm: Callable[[nn.Module], nn.Module], called: str, method: str
) -> None:
    teacher = trained(lambda: Normed(norm), tiny_data)
    given: dict[str, Any] = {"folder": tmp_path / "run", "force": True, "method": method}
    with pytest.raises(
        InputError, match=rf"^{called} cannot be pruned, the layer computes its weight from it"
    ) as error:
        pwoa.prune(teacher, tiny_data, recipe=quick(), **given)
    assert "\n" not in str(error.value)
    with torch.no_grad():
        teacher(torch.zeros(1, 1, 6, 6))  # the old weight_norm leaves a weight with a graph, which cannot be copied
    recipe = quick(sparsity__exclude=["body.*"], search__epochs=1, finetune__epochs=1)
    result = pwoa.prune(teacher, tiny_data, recipe=recipe, **given)
    assert result.summary["left_out"][called] == "excluded"
    assert [row["layer"] for row in result.summary["sparsity"]] == ["head.weight", "total"]


def test_a_lazy_network_is_refused_until_its_shapes_are_known(tmp_path: Path, tiny_data: Data, quick: Make) -> None:
    recipe = quick(search__epochs=1, finetune__epochs=1)
    given: dict[str, Any] = {"rate": 4, "recipe": recipe, "folder": tmp_path / "run", "force": True}
    with pytest.raises(InputError, match=r"^the model's body\.weight has no shape yet \(a lazy layer\): pass a batch"):
        pwoa.prune(Lazy(), tiny_data, **given)
    with pytest.raises(InputError, match=r"^the model's body\.weight has no shape yet"):
        pwoa.evaluate(Lazy(), tiny_data, attacks="natural")
    result = pwoa.prune(trained(Lazy, tiny_data), tiny_data, **given)
    assert result.summary["sparsity"][-1]["kept"] == (36 * 24 + 24 * 3) // 4
    again = pwoa.load_model(result.folder, architecture=Lazy())
    x, _ = tiny_data.test.batch(torch.arange(48))
    assert torch.equal(again(x), result.model.eval()(x))


class TestSelection:
    def run(self, tmp_path: Path, data: Data, recipe: Recipe, **given: Any) -> dict[str, Any]:
        teacher = trained(Attention, data)
        settings = {"search.epochs": 1, "finetune.epochs": 1}
        done = pwoa.prune(teacher, data, recipe=recipe, settings=settings, folder=tmp_path / "run", force=True, **given)
        return done.summary

    def test_what_is_excluded_stays_dense_and_what_is_included_does_not(
        self, tmp_path: Path, tiny_data: Data, quick: Make, told: Any
    ) -> None:
        recipe = quick(sparsity__exclude=["head.weight", "mlp.*"], sparsity__include=["pos_embed"])
        summary = self.run(tmp_path, tiny_data, recipe, rate=4, progress=told)
        assert summary["left_out"] == {
            "cls_token": "a vector",
            "mlp.0.weight": "excluded",
            "mlp.2.weight": "excluded",
            "head.weight": "excluded",
        }
        layers = ["pos_embed", "patch.weight", "attention.in_proj_weight", "attention.out_proj.weight", "total"]
        assert [row["layer"] for row in summary["sparsity"]] == layers
        assert summary["sparsity"][-1]["kept"] == (64 + 160 + 4 * 256) // 4
        announced = "\n".join(told.said)
        assert (
            "note: not pruned: cls_token (a vector), mlp.0.weight (excluded), mlp.2.weight (excluded) and 1 more"
            in announced
        )
        assert json.loads((tmp_path / "run" / "model.json").read_text())["left_out"] == summary["left_out"]

    @pytest.mark.parametrize(
        ("setting", "given", "near"),
        [
            ("exclude", "heads.weight", "head.weight"),
            ("exclude", "attn.*", "patch.weight"),
            ("include", "pos_embedding", "pos_embed"),
            ("exclude", "*.bias", None),
        ],
    )
    def test_a_glob_that_matches_nothing_is_refused(
        self, tmp_path: Path, tiny_data: Data, quick: Make, setting: str, given: str, near: str | None
    ) -> None:
        recipe = quick(**{f"sparsity__{setting}": [given]})
        with pytest.raises(InputError) as error:
            self.run(tmp_path, tiny_data, recipe)
        message = str(error.value)
        assert message.startswith(f"sparsity.{setting}: {given!r} matches no weight of two or more dimensions; did you")
        assert near is None or repr(near) in message
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["pwoa", "harp"])
def test_a_depthwise_layer_is_kept_dense_and_thin_layers_are_warned_of(
    tmp_path: Path, tiny_data: Data, quick: Make, told: Any, method: str
) -> None:
    teacher = trained(Depthwise, tiny_data)
    recipe = quick(method=method, search__epochs=1, finetune__epochs=1)
    recipe = recipe.with_settings({"search.learning_rate": 0.01, "finetune.learning_rate": 0.01})
    given: dict[str, Any] = {"rate": 4, "recipe": recipe, "force": True, "progress": told}
    summary = pwoa.prune(teacher, tiny_data, folder=tmp_path / "run", **given).summary
    rows = {row["layer"]: row for row in summary["sparsity"]}
    for name in ("stem.weight", "depthwise.weight"):
        assert rows[name]["kept"] == rows[name]["total"] == 16 * 9
    assert rows["total"]["kept"] == rows["total"]["total"] // 4
    assert [warning["check"] for warning in summary["warnings"]] == ["thin layers"]
    assert "weights an output (" in summary["warnings"][0]["message"]
    announced = "\n".join(told.said)
    if method == "pwoa":  # the other learns how many weights each layer keeps
        assert "note: stem.weight and 1 more kept denser, as outputs have few inputs there" in announced
        assert "warning: 1 layer keeps fewer than 5 weights an output (pointwise.weight keeps 2.8)" in announced
