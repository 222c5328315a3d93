"""The model card: what README.md of a model folder says. Every number is from result.json or counted in the weights."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from pwoa.attacks.registry import attack_label
from pwoa.errors import counted
from pwoa.methods import find_method
from pwoa.models.checkpoints.hub import PREFIX
from pwoa.recipe import to_toml
from pwoa.recipe.sections import Recipe
from pwoa.sparsity.selection import describe_left_out
from pwoa.storage.reading import parse_json
from pwoa.threat import Threat, length_text, norm_label

HERE = 'load_model("."'
_DATASETS = {
    "mnist": "ylecun/mnist",
    "mnist-mini": "ylecun/mnist",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
}
"""What the data sets are called on the hub."""

_METRIC = re.compile(r"accuracy in % of ([\d,]+) images?, (.+)")
"""How `_measured` names an accuracy."""

_CITATION = """## Citation

```bibtex
@inproceedings{jian2022pruning,
  title     = {Pruning Adversarially Robust Neural Networks without Adversarial Examples},
  author    = {Jian, Tong and Wang, Zifeng and Wang, Yanzhi and Dy, Jennifer and Ioannidis, Stratis},
  booktitle = {IEEE International Conference on Data Mining (ICDM)},
  year      = {2022}
}
```"""


def model_card(about: Mapping[str, Any], result: Mapping[str, Any] | None = None, recipe: Recipe | None = None) -> str:
    """Return the card of a model: what config.json says of it and, if it is of a run, the run's result and recipe."""
    recipe = recipe and without_places(recipe)
    title = _title(about, result, recipe)
    blocks = [_front_matter(title, result, recipe), f"# {title}", _use(about)]
    if result is None:
        blocks.append("No measurement comes with this model: nothing is known of its robustness.")
    else:
        blocks.append(_accuracy(about, result))
    if about.get("sparsity"):
        blocks.append(_size(about))
    if result is not None and recipe is not None:
        blocks.append(_making(result, recipe))
    return "\n\n".join([*blocks, _CITATION]) + "\n"


def addressed(card: str, name: str) -> str:
    """Return the card of a folder as it is on the hub: the model is loaded from there."""
    return card.replace(HERE, f"load_model({json.dumps(PREFIX + name)}")


def recorded(card: str) -> tuple[str, dict[str, float]]:
    """Return what a card's front matter says was measured: on how many images, and the accuracy in percent by attack.

    Nothing, if nothing was, or if it is not written as `model_card` does.
    """
    line = re.search(r"^model-index: (.*)$", card, re.MULTILINE)
    try:
        metrics = parse_json(line[1], "the card")[0]["results"][0]["metrics"] if line else []
        named = [(_METRIC.fullmatch(metric["name"]), float(metric["value"])) for metric in metrics]
    except (ValueError, LookupError, TypeError, OverflowError):
        return "", {}
    found = [(name, value) for name, value in named if name]
    return (found[0][0][1] if found else ""), {name[2]: value for name, value in found}


def without_places(recipe: Recipe) -> Recipe:
    """Return the recipe without the folders in which its files were, which are nobody else's business."""
    return recipe.with_settings(
        {
            "data.name": PurePath(recipe.data.name).name,
            "data.folder": "",
            "teacher.checkpoint": _file_name(recipe.teacher.checkpoint),
            "teacher.architecture": without_place(recipe.teacher.architecture),
            **{setting: _file_name(file) for setting, file in find_method(recipe.method).files(recipe).items()},
        }
    )


def without_place(architecture: str) -> str:
    """Return the name of an architecture; of one from a Python file, without the file's folder."""
    source, colon, name = architecture.rpartition(":")
    return PurePath(source).name + colon + name


def _file_name(checkpoint: str) -> str:
    return checkpoint if checkpoint.startswith(PREFIX) else PurePath(checkpoint).name


def _title(about: Mapping[str, Any], result: Mapping[str, Any] | None, recipe: Recipe | None) -> str:
    name = about["architecture"] + ("" if about.get("width", 1) == 1 else f"@{about['width']}")
    if result is None or recipe is None:
        return str(name)
    how = f"pruned {result['rate']:.4g}×" if "pruned" in result else "robustly trained"
    return f"{name} for {recipe.data.name}, {how} by {result['method']}"


def _front_matter(title: str, result: Mapping[str, Any] | None, recipe: Recipe | None) -> str:
    """Write YAML, each value as JSON, which is YAML too."""
    about: dict[str, Any] = {
        "library_name": "pwoa",
        "pipeline_tag": "image-classification",
        "tags": ["adversarial-robustness", "pruning", "pwoa"],
    }
    if recipe is not None and recipe.data.name in _DATASETS:
        about["datasets"] = [_DATASETS[recipe.data.name]]
    if recipe is not None and recipe.teacher.checkpoint.startswith(PREFIX):
        about["base_model"] = recipe.teacher.checkpoint.removeprefix(PREFIX).partition("@")[0]
    if result is not None and recipe is not None:
        about["model-index"] = [{"name": title, "results": [_measured(result, recipe)]}]
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in about.items()]
    return "\n".join(["---", *lines, "---"])


def _measured(result: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    data, images, fewer = recipe.data.name, result["images"], result.get("fewer", {})
    return {
        "task": {"type": "image-classification"},
        "dataset": {"type": _DATASETS.get(data, data), "name": data, "split": "test"},
        "metrics": [
            {
                "type": "accuracy",
                "name": f"accuracy in % of {counted(fewer.get(attack, images), 'image')}, {attack_label(attack)}",
                "value": value,
            }
            for attack, value in _own_accuracy(result).items()
        ],
    }


def _own_accuracy(result: Mapping[str, Any]) -> Mapping[str, float]:
    own: Mapping[str, float] = result.get("pruned") or result["accuracy"]
    return own


def _use(about: Mapping[str, Any]) -> str:
    fresh = ", architecture=net" if ":" in about["architecture"] else ""
    made = f"net = …  # a fresh {about['architecture'].rpartition(':')[2]}, from its own code\n" if fresh else ""
    return (
        "Takes images in [0, 1], gives logits. To load it (`pwoa[hub]`; for a folder on disk `pwoa` will do):\n\n"
        f"```python\nimport pwoa\n\n{made}model = pwoa.{HERE}{fresh})\n```"
    )


def _accuracy(about: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    own, fewer = _own_accuracy(result), result.get("fewer", {})
    labels = [attack_label(key) + (f", first {fewer[key]:,}" if key in fewer else "") for key in own]
    rows = {"teacher (dense)": result["teacher"]} if "teacher" in result else {}
    rows[f"pruned {result['rate']:.4g}×" if "pruned" in result else "this model"] = own
    cells = [[name, *(f"{row[key]:.2f}" if key in row else "" for key in own)] for name, row in rows.items()]
    return (
        f"## Accuracy\n\nIn percent, on {counted(result['images'], 'test image')}; under an attack an image counts "
        f"if it is right both naturally and attacked.{_threat(about.get('threat'))}\n\n"
        + _table(["model", *labels], cells)
    )


def _threat(given: Mapping[str, Any] | None) -> str:
    if not given:
        return ""
    threat = Threat(**given)
    step = length_text(threat.step, threat.norm)
    return f" Threat: {norm_label(threat.norm)}, radius {threat.radius_text}, step {step}."


def _size(about: Mapping[str, Any]) -> str:
    *layers, total = about["sparsity"]
    overall = ""
    if {"parameters", "nonzero"} <= about.keys():
        rate = _rate({"total": about["parameters"], "kept": about["nonzero"]})
        overall = f" Of all {about['parameters']:,} parameters {about['nonzero']:,} are not zero: rate {rate}."
    dense = f" Not pruned: {describe_left_out(about['left_out'])}." if about.get("left_out") else ""
    lines = [[f"`{row['layer']}`", f"{row['total']:,}", f"{row['kept']:,}", _rate(row)] for row in layers]
    return (
        f"## Size\n\nOf {total['total']:,} prunable weights {total['kept']:,} are not zero: rate {_rate(total)}."
        f"{overall}{dense}\n\n"
        "<details><summary>By layer</summary>\n\n"
        + _table(["layer", "weights", "kept", "rate"], lines)
        + "\n\n</details>"
    )


def _rate(row: Mapping[str, Any]) -> str:
    return f"{row['total'] / row['kept']:.4g}" if row["kept"] else "all pruned"


def _making(result: Mapping[str, Any], recipe: Recipe) -> str:
    free = (
        "**Example-free**: in training and in model selection, no forward pass on an input that was moved along a "
        "gradient of a loss."
        if result["example_free"]
        else "**Not example-free**: adversarial examples were used in training."
    )
    return (
        f"## How it was made\n\n{free} Method `{result['method']}`, seed {result['seed']}, on {result['device']}.\n\n"
        f"<details><summary>Recipe</summary>\n\n```toml\n{to_toml(recipe).strip()}\n```\n\n</details>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))
