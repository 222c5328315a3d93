from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pwoa.errors import InputError
from pwoa.recipe import RECIPE, load_recipe, presets, recipe_for, recorded_recipe, records_recipe, to_toml
from pwoa.recipe.methods import METHOD_SECTIONS
from pwoa.recipe.sections import Recipe, flat
from pwoa.recipe.settings import number
from pwoa.threat import Threat
from scripts.update_settings import PAGE, page

few = settings(deadline=None, max_examples=50)


def read(folder: Path, text: str | bytes) -> Recipe:
    path = folder / "recipe.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_recipe(path)


# The paper's Table "Parameter Summary"; its λ is a mean over classes too, and is divided by their number.
PAPER: dict[str, dict[str, Any]] = {
    "mnist": {
        "data.name": "mnist",
        "objective.distillation": 10 / 10,
        "objective.hsic_x": 4e-4,
        "objective.hsic_y": 1e-4,
        "search.learning_rate": 0.0005,
        "finetune.epochs": 20,
        "finetune.learning_rate": 0.001,
        "threat.radius": 0.3,
        "training.optimizer": "adam",  # the table says SGD; its rates are those of the released code's Adam
        "training.weight_decay": 0.0,  # which has none
    },
    "cifar10": {
        "data.name": "cifar10",
        "objective.distillation": 10 / 10,
        "objective.hsic_x": 2e-5,
        "objective.hsic_y": 1e-4,
        "search.learning_rate": 0.01,
        "finetune.epochs": 100,
        "finetune.learning_rate": 0.005,
        "threat.radius": 8 / 255,
        "training.optimizer": "sgd",
        "training.weight_decay": 1e-4,
    },
    "cifar100": {
        "data.name": "cifar100",
        "objective.distillation": 1000 / 100,
        "objective.hsic_x": 5e-7,
        "objective.hsic_y": 2.5e-6,
        "search.learning_rate": 0.01,
        "finetune.epochs": 100,
        "finetune.learning_rate": 0.005,
        "threat.radius": 8 / 255,
        "training.optimizer": "sgd",
        "training.weight_decay": 1e-4,
    },
}
EVERYWHERE = {
    "method": "pwoa",
    "threat.norm": "linf",
    "training.batch": 128,
    "objective.temperature": 30.0,
    "objective.classification": 0.0,
    "search.epochs": 50,
    "search.rho": 0.01,
    "search.rho_growth": 1.35,
    "search.rho_limit": 1.0,
    "search.interval": 3,
    "sparsity.pattern": "unstructured",
    "sparsity.allocation": "uniform",
}


@pytest.mark.parametrize("name", PAPER)
def test_the_presets_have_the_papers_numbers(name: str) -> None:
    found = flat(load_recipe(name))
    expected = EVERYWHERE | PAPER[name]
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("method", "epochs", "rates"),
    [
        ("advprune", (50, 100), (0.01, 0.01)),
        ("hydra", (20, 100), (0.1, 0.01)),
        ("harp", (20, 100), (0.1, 0.01)),
        ("apd", (40, 20), (0.01, 0.005)),
    ],
)
def test_the_competing_methods_have_a_preset(method: str, epochs: tuple[int, int], rates: tuple[float, float]) -> None:
    recipe, ours = load_recipe(f"cifar10-{method}"), load_recipe("cifar10")
    assert recipe.method == method
    assert (recipe.search.epochs, recipe.finetune.epochs) == epochs
    assert (recipe.search.learning_rate, recipe.finetune.learning_rate) == rates
    assert recipe.training.mix == 1
    assert (recipe.data, recipe.threat, recipe.teacher) == (ours.data, ours.threat, ours.teacher)


def test_the_presets() -> None:
    assert presets() == sorted(presets())
    assert set(presets()) >= {*PAPER, "demo"}
    assert load_recipe("demo").data.name == "mnist-mini"
    assert load_recipe("demo").threat.radius == 0.3


@pytest.mark.parametrize("name", presets())
def test_every_preset_survives_the_way_through_toml(tmp_path: Path, name: str) -> None:
    recipe = load_recipe(name)
    assert read(tmp_path, to_toml(recipe)) == recipe
    assert recipe != Recipe()


def test_toml_is_complete(tmp_path: Path) -> None:
    text = to_toml(Recipe())
    assert all(f"{key.rpartition('.')[2]} = " in text for key in flat(Recipe()))
    assert all(
        f"\n[{f.name}]\n" in text for f in dataclasses.fields(Recipe) if f.name not in ("method", "own", "given")
    )
    assert read(tmp_path, text) == Recipe()


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@few
@given(
    folder=words,
    points=st.lists(words.map(str.strip).filter(bool), max_size=3),
    number=st.floats(1e-12, 1e12),
)
@example(folder="\x7f", points=[], number=1.0)  # TOML forbids it raw, JSON does not
def test_any_value_survives_the_way_through_toml(
    tmp_path_factory: pytest.TempPathFactory, folder: str, points: list[str], number: float
) -> None:
    recipe = Recipe().with_settings(
        {"data.folder": folder, "objective.points": points, "objective.distillation": number}
    )
    assert recipe.data.folder == folder
    assert recipe.objective.points == tuple(points)
    assert read(tmp_path_factory.getbasetemp(), to_toml(recipe)) == recipe


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    recipe = read(tmp_path, 'method = "pwoa"\n[sparsity]\nrate = 16\n[threat]\nradius = "4/255"\n')
    assert list(recipe.differences(Recipe())) == ["threat.radius", "sparsity.rate"]
    assert recipe.sparsity.rate == 16.0
    assert isinstance(recipe.sparsity.rate, float)
    assert recipe.threat.radius == 4 / 255


def test_nothing_gives_the_defaults_and_a_recipe_itself() -> None:
    recipe = load_recipe("mnist")
    assert load_recipe() == Recipe()
    assert load_recipe(recipe) is recipe


@pytest.mark.parametrize(
    ("data", "preset"),
    [("cifar10", "cifar10"), ("mnist-mini", "demo"), ("fashion-mnist", "mnist"), ("mine", None)],
)
def test_the_recipe_for_a_data_set(data: str, preset: str | None) -> None:
    assert recipe_for(data) == load_recipe(preset)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[sparsity]\nrat = 4", r"unknown key 'sparsity\.rat' \(did you mean 'sparsity\.rate'\?\)"),
        ("[objective]\ntemprature = 4", r"\(did you mean 'objective\.temperature'\?\)"),
        (
            "[finetune]\nzzz = 4",
            r"unknown key 'finetune\.zzz' \(known: finetune\.epochs, finetune\.learning_rate\)",
        ),
        ("[sparsty]\nrate = 4", r"unknown key 'sparsty' \(did you mean 'sparsity'\?\)"),
        ("[qqq]\nrate = 4", r"unknown key 'qqq' \(known: method, data, teacher, threat"),
        ("rate = 4", r"unknown key 'rate' \(did you mean 'sparsity\.rate'\?\)"),
        ("epochs = 4", r"did you mean 'search\.epochs', 'finetune\.epochs' or 'pretrain\.epochs'\?"),
        ("recipe = 'mnist'\n[grid]\nmethod = ['pwoa']", "this is a grid of a sweep; use pwoa sweep"),
        ("set.search.epochs = 3", "this is a grid of a sweep; use pwoa sweep"),
        ("sparsity = 4", r"'sparsity' is a section; give sparsity\.KEY a value"),
        ("[sparsity]\nrate = [4]", r"sparsity\.rate = \[4\] is not a number"),
        ("[sparsity]\nrate = true", r"sparsity\.rate = True is not a number"),
        ("[sparsity]\nrate = 'four'", r"sparsity\.rate = 'four' is not a number"),
        ("[threat]\nradius = '8/0'", r"threat\.radius = '8/0' is not a number"),
        ("[threat]\nradius = '8/'", r"threat\.radius = '8/' is not a number"),
        ("[search]\nepochs = 2.5", r"search\.epochs = 2\.5 is not a whole number"),
        ("[search]\nepochs = '50'", r"search\.epochs = '50' is not a whole number"),
        ("[search]\nepochs = true", r"search\.epochs = True is not a whole number"),
        ("[data]\nname = 10", r"data\.name = 10 is not a word"),
        ("[method]\nname = 10", r"method = \{'name': 10\} is not a word"),
        ("[evaluation]\nattacks = 20", r"evaluation\.attacks = 20 is not a list of words"),
        ("[evaluation]\nattacks = ['cw', 20]", r"attacks = \['cw', 20\] is not a list of words"),
        ("[sparsity]\nrate = 0.5", r"sparsity\.rate = 0\.5; allowed: at least 1"),
        ("[sparsity]\nrate = nan", r"sparsity\.rate = nan; allowed: at least 1"),
        ("[threat]\nradius = 8", r"threat\.radius = 8\.0; allowed: from 0 to 1"),
        ("[threat]\nradius = -0.1", r"threat\.radius = -0\.1; allowed: from 0 to 1"),
        ("[search]\nepochs = 0", r"search\.epochs = 0; allowed: at least 1"),
        ("[training]\nbatch = 1", r"training\.batch = 1; allowed: at least 2"),
        ("[teacher]\nminimum = 101", r"teacher\.minimum = 101\.0; allowed: from 0 to 100"),
        ("[threat]\nnorm = 'l1'", r"threat\.norm = 'l1'; allowed: linf, l2"),
        ("[sparsity]\nrate = 1" + 400 * "0", r"sparsity\.rate is too large; allowed: whole numbers up to 9"),
        ("[training]\nseed = 9223372036854775808", r"training\.seed is too large"),
        ("[objective]\nhsic = 'normal'", r"objective\.hsic = 'normal'; allowed: normalised, plain"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'recipe.toml'}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sparsity.rate", float("inf")),
        ("search.learning_rate", "inf"),
        ("objective.distillation", "nan"),
        ("objective.hsic_x", "1e400"),
    ],
)
def test_numbers_must_be_finite(key: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{key} = "):
        Recipe().with_settings({key: value})


@pytest.mark.parametrize(
    "text", ["[sparsity\nrate = 4", "rate: 4", "[a]\n[a]", b"\xff\xfe\x00r", b"name = '\xe9'", b"a = " + b"9" * 5000]
)
def test_a_broken_file_is_named(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(InputError, match=r"recipe\.toml(: it)? is not (valid TOML|text in UTF-8)"):
        read(tmp_path, text)


@pytest.mark.parametrize("given", [("l3", 0.1, 0.1), ("linf", "0.1", 0.1), ("linf", 0.1, None), ("l2", -1, 0.1)])
def test_a_threat_is_checked_wherever_it_is_made(given: Any) -> None:
    with pytest.raises(InputError, match=r"threat\.\w+ = .*; allowed: "):
        Threat(*given)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar-10", r"no recipe 'cifar-10': neither a file nor a preset \(did you mean 'cifar10"),
        (
            "svhn",
            r"neither a file nor a preset \(known: cifar10, .*cifar100, .*demo, mnist, .*teacher-cifar10, teacher",
        ),
        (".", r"no recipe '\.'"),
    ],
)
def test_an_unknown_preset(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_recipe(name)


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("sparsity.rate=8", "sparsity.rate", 8.0),
        ("sparsity.rate = 2.5", "sparsity.rate", 2.5),
        ("threat.radius=8/255", "threat.radius", 8 / 255),
        ("threat.radius=4e-2", "threat.radius", 0.04),
        ("search.epochs=7", "search.epochs", 7),
        ("method=pwoa", "method", "pwoa"),
        ("teacher.checkpoint=my models/a=b.pt", "teacher.checkpoint", "my models/a=b.pt"),
        ('data.folder="some folder"', "data.folder", "some folder"),
        ("data.folder=", "data.folder", ""),
        ("evaluation.attacks=natural,pgd50", "evaluation.attacks", ("natural", "pgd50")),
        ('evaluation.attacks=["cw"]', "evaluation.attacks", ("cw",)),
        ("objective.points=relu1", "objective.points", ("relu1",)),
        ("objective.points=", "objective.points", ()),
        ("objective.hsic=plain", "objective.hsic", "plain"),
    ],
)
def test_settings_as_typed_in_a_shell(setting: str, key: str, value: Any) -> None:
    found = flat(Recipe().with_settings([setting]))[key]
    assert found == value
    assert type(found) is type(value)


def test_settings_as_a_dict() -> None:
    recipe = Recipe().with_settings({"sparsity.rate": 16, "threat.radius": "2/255", "objective.points": ["a", "b"]})
    assert (recipe.sparsity.rate, recipe.threat.radius, recipe.objective.points) == (
        16.0,
        2 / 255,
        ("a", "b"),
    )
    section = {"seed": 1}
    both = Recipe().with_settings({"training": section, "training.batch": 4, "sparsity.rate": 2, "sparsity": {}})
    assert (both.training.seed, both.training.batch, both.sparsity.rate) == (1, 4, 2.0)
    assert section == {"seed": 1}
    assert Recipe().with_settings({}) == Recipe()
    assert Recipe().with_settings(["sparsity.rate=2", "sparsity.rate=3"]).sparsity.rate == 3.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["sparsity.rate"], r"setting 'sparsity\.rate' is not of the form section\.key=value"),
        (["=4"], "setting '=4' is not of the form"),
        (["sparsity.rte=4"], r"settings: unknown key 'sparsity\.rte' \(did you mean 'sparsity\.rate'\?\)"),
        (["sparsity.rate.x=4"], r"unknown key 'sparsity\.rate\.x'"),
        (["sparsity.rate=fast"], r"sparsity\.rate = 'fast' is not a number"),
        (["sparsity=4"], "'sparsity' is a section"),
        (["sparsity=4", "sparsity.rate=4"], "'sparsity' is a section"),
        ({"training.device": 0}, r"training\.device = 0 is not a word"),
        ({"sparsity.rate": None}, r"sparsity\.rate = None is not a number"),
    ],
)
def test_wrong_settings(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Recipe().with_settings(given)


def test_the_original_is_not_changed() -> None:
    recipe = Recipe()
    recipe.with_settings({"sparsity.rate": 16})
    assert recipe == Recipe()
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.sparsity.rate = 3  # type: ignore[misc]


def test_differences() -> None:
    recipe = Recipe()
    other = recipe.with_settings({"sparsity.rate": 16, "data.name": "cifar10", "objective.points": ["a"]})
    assert recipe.differences(recipe) == {}
    assert recipe.differences(other) == {
        "data.name": ("mnist-mini", "cifar10"),
        "sparsity.rate": (4.0, 16.0),
        "objective.points": ((), ("a",)),
    }
    assert list(other.differences(recipe)) == list(recipe.differences(other))


@pytest.mark.parametrize(
    ("preset", "images", "held_out"),
    [
        ("mnist", 60_000, 5000),
        ("cifar10-hydra", 50_000, 5000),
        ("teacher-mnist", 10_000, 1000),
        ("demo", 10_000, 1000),
        ("teacher-cifar10", 50_000, 1024),
        ("mnist", 3, 1),
    ],
)
def test_a_preset_holds_out_a_tenth_of_less_data_than_it_was_made_for(preset: str, images: int, held_out: int) -> None:
    recipe = load_recipe(preset).for_images(images)
    assert recipe.data.validation == held_out
    assert load_recipe(preset).with_settings({"data.validation": 7}).for_images(images).data.validation == 7
    assert recipe.differences(load_recipe(preset)) == {}


def test_it_does_not_need_torch() -> None:
    program = (
        "import sys, pwoa.recipe as r; [r.to_toml(r.load_recipe(name)) for name in r.presets()]; "
        "print(sorted({'torch', 'numpy', 'safetensors', 'rich', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_a_run_chose_is_no_difference_to_auto_and_where_things_lie_is_none() -> None:
    recorded = Recipe().with_settings({"training.mode": "exact", "teacher.architecture": "resnet18"})
    asked = Recipe().with_settings(
        {
            "training.mode": "auto",
            "teacher.architecture": "auto",
            "data.folder": "elsewhere",
            "teacher.checkpoint": "elsewhere.pt",
            "training.device": "cpu",
        }
    )
    assert recorded.differences(asked) == {}
    assert list(recorded.differences(asked.with_settings({"training.mode": "fast"}))) == ["training.mode"]
    assert list(recorded.differences(asked.with_settings({"objective.balance": "auto"}))) == ["objective.balance"]


def test_a_warm_up_leaves_epochs_after_it() -> None:
    recipe = load_recipe("teacher-cifar10")
    assert recipe.with_settings({"pretrain.epochs": 6}).pretrain.warmup == 5
    with pytest.raises(InputError, match=r"pretrain.warmup = 5; allowed: fewer than pretrain.epochs, 5"):
        recipe.with_settings({"pretrain.epochs": 5})


def test_the_preset_for_a_folder_is_that_for_its_name() -> None:
    assert recipe_for("some/where/mnist") == recipe_for("mnist") == load_recipe("mnist")
    assert recipe_for("some/where/else") == Recipe()


@dataclasses.dataclass(frozen=True)
class Own:
    """The settings of a method of one's own."""

    weight: float = number(0.5, low=0, high=1)
    file: str = ""


def test_the_section_of_the_method_is_its_own(tmp_path: Path) -> None:
    recipe = Recipe().with_settings(["method=mine", "mine.weight=0.25"])
    assert recipe.own == (("weight", 0.25),)
    assert recipe.own_settings(Own) == Own(weight=0.25)
    complete = recipe.with_own(recipe.own_settings(Own))
    assert complete.own == (("file", ""), ("weight", 0.25))
    assert '\n[mine]\nfile = ""\nweight = 0.25\n' in to_toml(complete)
    assert read(tmp_path, to_toml(complete)).own_settings(Own) == Own(weight=0.25)
    assert read(tmp_path, to_toml(complete)) == complete
    assert complete.with_settings({"mine.file": "a.pt"}).own_settings(Own) == Own(0.25, "a.pt")
    other = complete.with_settings({"mine.weight": 1})
    assert complete.differences(other) == {"mine.weight": (0.25, 1)}
    assert complete.with_settings({"method": "another"}).own == ()  # it is not the section of that one
    assert complete.with_tree({"sparsity": {"rate": 2}}, "here").own == complete.own


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mine.weigt": 1}, r"unknown key 'mine\.weigt' \(did you mean 'mine\.weight'\?\)"),
        ({"mine.weight": 2}, r"mine\.weight = 2\.0; allowed: from 0 to 1"),
        ({"mine.weight": "much"}, r"mine\.weight = 'much' is not a number"),
    ],
)
def test_what_is_wrong_with_the_section_of_the_method_is_said_where_it_is_used(
    given: dict[str, Any], message: str
) -> None:
    recipe = Recipe().with_settings({"method": "mine", **given})
    with pytest.raises(InputError, match=message):
        recipe.own_settings(Own)


@pytest.mark.parametrize("given", [{"method": "harp", "apd.weight": 0.5}, {"harp.gamma": 0.5}])
def test_a_setting_of_another_method_is_unknown(given: dict[str, Any]) -> None:
    with pytest.raises(
        InputError,
        match=r"'(apd|harp)' is a section of the method (apd|harp), and the method here is (pwoa|harp); leave",
    ):
        Recipe().with_settings(given)


def test_an_evaluation_has_the_seed_of_training_unless_it_has_one() -> None:
    recipe = Recipe().with_settings({"training.seed": 7, "evaluation.radii": "0,2/255", "evaluation.checks": False})
    assert recipe.evaluation.seed == -1
    assert recipe.seeded_evaluation() == dataclasses.replace(recipe.evaluation, seed=7)
    assert recipe.with_settings({"evaluation.seed": 0}).seeded_evaluation().seed == 0
    assert recipe.seeded_evaluation().radii == (0.0, 2 / 255)
    assert Recipe().evaluation.checks


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"evaluation.precision": "half"}, r"evaluation\.precision = 'half'; allowed: auto, float32"),
        ({"evaluation.seed": -2}, r"evaluation\.seed = -2; allowed: at least -1"),
        ({"evaluation.checks": 1}, r"evaluation\.checks = 1 is not true or false"),
        ({"evaluation.radii": "near,far"}, r"evaluation\.radii = 'near' is not a number"),
    ],
)
def test_what_is_wrong_with_an_evaluation_is_said(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Recipe().with_settings(given)


def test_the_recipe_of_a_run_is_read_back_whole(tmp_path: Path) -> None:
    recipe = load_recipe("mnist").with_settings({"evaluation.radii": [0.1, 0.2]})
    assert not records_recipe(tmp_path)
    (tmp_path / RECIPE).write_text(to_toml(recipe))
    assert records_recipe(tmp_path)
    assert recorded_recipe(tmp_path) == recipe
    (tmp_path / RECIPE).write_text(to_toml(recipe).replace("[threat]", "[thread]"))
    with pytest.raises(
        InputError, match=r"recipe\.toml is damaged: it has no section threat; a run's recipe has every"
    ):
        recorded_recipe(tmp_path)


@pytest.mark.parametrize(
    ("threat", "text"),
    [
        (Threat(), "l∞ 8/255"),
        (Threat("linf", 0.05, 0.01), "l∞ 0.05"),
        (Threat("l2", 128 / 255, 0.1), "l2 0.502"),
        (Threat("linf", 0.0, 0.0), "l∞ 0"),
    ],
)
def test_a_threat_is_written_as_in_papers(threat: Threat, text: str) -> None:
    assert str(threat) == text


def test_an_explained_recipe_has_every_setting_of_its_method_with_words_and_can_be_given_back(tmp_path: Path) -> None:
    for name in presets():
        text = to_toml(load_recipe(name), explained=True)
        (tmp_path / "explained.toml").write_text(text, encoding="utf-8")
        own = METHOD_SECTIONS.get(load_recipe(name).method)
        whole = load_recipe(name) if own is None else load_recipe(name).with_own(load_recipe(name).own_settings(own))
        assert load_recipe(tmp_path / "explained.toml") == whole
        settings = [line for line in text.splitlines() if line and not line.startswith("[")]
        assert len(settings) == len(flat(whole))
        assert all(re.search(r"  # \S", line) for line in settings), name


@pytest.mark.parametrize("changes", [{"harp.gamma": 1}, {"method": "pwoa", "harp": {"gamma": 1}}])
def test_the_section_of_another_method_is_named_as_such(changes: dict[str, Any]) -> None:
    words = "settings: 'harp' is a section of the method harp, and the method here is pwoa; leave it out, or set method"
    with pytest.raises(InputError, match=words):
        Recipe().with_settings(changes)
    assert Recipe().with_settings({"harp.gamma": 1, "method": "harp"}).own == (("gamma", 1),)


def test_the_page_of_settings_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()  # else: python -m scripts.update_settings
    for setting in flat(Recipe()):
        assert f"| `{setting}` | " in page()
    assert "| `sparsity.rate` | `4.0` | at least 1 | unpruned size over pruned size" in page()
