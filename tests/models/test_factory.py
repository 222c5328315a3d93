from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from pwoa.errors import InputError
from pwoa.models.architectures.registry import architecture_name
from pwoa.models.border import Normalised
from pwoa.models.factory import load_factory
from pwoa.models.load import load_model
from pwoa.recipe.settings import is_factory

NETS = """
from __future__ import annotations
import dataclasses
from torch import nn
from blocks import width

VERSION = 3
READY = nn.Linear(2, 3)

@dataclasses.dataclass
class Size:
    classes: int = 3

class Net(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.fc = nn.Linear(width(), classes)

def make_net():
    return Net(Size().classes)

def late():
    import later_block
    return later_block.block()

def needs(classes):
    return Net(classes)

def pair():
    return Net(), None

def breaks():
    raise RuntimeError("no room\\nfor weights")

def silent():
    raise KeyError

def leaves():
    raise SystemExit(4)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with a user's code in it; what that code imports is forgotten afterwards."""
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "blocks.py").write_text("def width():\n    return 2\n")
    (tmp_path / "later_block.py").write_text("from torch import nn\ndef block():\n    return nn.Linear(2, 3)\n")
    (tmp_path / "empty.py").write_text("import math\n_hidden = print\n")
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "__init__.py").write_text("from zoo.small import Small\n")
    (tmp_path / "zoo" / "small.py").write_text("from torch import nn\nclass Small(nn.Linear):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def refused(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        load_factory(text)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("nets:make", True),
        ("zoo.small:Small", True),
        ("some/folder/my-nets.py:make", True),
        (r"C:\code\nets.py:make", True),
        (r"C:\runs\model.pt", False),
        ("C:model", False),
        ("model.onnx", False),
        ("runs/demo", False),
        ("nets:", False),
        (":make", False),
        ("nets:make()", False),
        ("nets:Net.make", False),
        ("https://host/model.pt", False),
    ],
)
def test_a_factory_is_told_from_a_path(text: str, answer: bool) -> None:
    assert is_factory(text) is answer


@pytest.mark.parametrize("text", ["nets:make_net", "nets:Net", "nets.py:make_net", "./nets.py:Net"])
def test_a_function_or_class_of_the_current_directory_is_called(folder: Path, text: str) -> None:
    model = load_factory(text)
    assert type(model).__name__ == "Net"
    assert model.state_dict()["fc.weight"].shape == (3, 2)
    assert not model.training


def test_a_module_in_a_package_is_found(folder: Path) -> None:
    (folder / "zoo" / "deep.py").write_text("from torch import nn\ndef net():\n    return nn.Flatten()\n")
    assert isinstance(load_factory("zoo.deep:net"), nn.Flatten)


@pytest.mark.parametrize("text", ["nets:late", "nets.py:late"])
def test_what_the_factory_imports_when_called_is_found_too(folder: Path, text: str) -> None:
    assert isinstance(load_factory(text), nn.Linear)


def test_a_file_elsewhere_imports_its_neighbours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert type(load_factory("../nets.py:make_net")).__name__ == "Net"
    assert "No module named 'nets'" in str(refused("nets:make_net"))


def test_a_file_takes_no_other_modules_name_and_is_read_anew(folder: Path) -> None:
    (folder / "json.py").write_text("from torch import nn\ndef net():\n    return nn.Identity()\n")
    before = sys.modules.get("json")
    assert isinstance(load_factory("json.py:net"), nn.Identity)
    assert sys.modules.get("json") is before
    (folder / "json.py").write_text("from torch import nn\ndef net():\n    return nn.Flatten(1)  # another now\n")
    assert isinstance(load_factory("json.py:net"), nn.Flatten)


def test_a_model_of_a_file_is_called_as_the_user_wrote_it(folder: Path) -> None:
    assert architecture_name(load_factory("nets.py:Net")) == "nets.py:Net"


def test_a_model_of_a_function_is_called_by_that_not_by_a_class_that_may_need_arguments(folder: Path) -> None:
    code = "from torch import nn\nfrom pwoa.models.architectures.registry import build\n"
    code += "def net():\n    return nn.Sequential(nn.Flatten())\ndef known():\n    return build('lenet@0.1', 3, 1)\n"
    (folder / "made.py").write_text(code)
    model = load_factory("made.py:net")
    assert architecture_name(copy.deepcopy(model)) == "made.py:net"
    assert architecture_name(Normalised(model, [0.5], [0.5])) == "made.py:net"
    assert architecture_name(load_factory("made.py:known")) == "lenet@0.1"


@pytest.mark.parametrize("text", ["nets:make_net", "nets.py:breaks", "nets:missing", "absent:make"])
def test_the_search_path_is_left_as_it_was(folder: Path, text: str) -> None:
    before = list(sys.path)
    with suppress(InputError):
        load_factory(text)
    assert sys.path == before


def test_a_checkpoint_fills_the_network(folder: Path) -> None:
    state = {"fc.weight": torch.arange(6.0).view(3, 2), "fc.bias": torch.ones(3)}
    torch.save({"state_dict": state}, folder / "net.pt")
    model = load_model("nets:make_net", checkpoint=folder / "net.pt")
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"fc.weight": torch.zeros(3, 2)}, r"does not fit Net: missing fc\.bias"),
        ({"fc.weight": torch.zeros(3, 5), "fc.bias": torch.zeros(3)}, "fc.weight is 3×5, the model wants 3×2"),
    ],
)
def test_a_checkpoint_must_fit_in_every_key(folder: Path, state: dict[str, torch.Tensor], message: str) -> None:
    torch.save(state, folder / "net.pt")
    with pytest.raises(InputError, match=message):
        load_model("nets:make_net", checkpoint=folder / "net.pt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nets", "'nets' names no Python factory; give MODULE:FUNCTION or FILE.py:FUNCTION"),
        ("absent.py:make", "absent.py:make: absent.py does not exist"),
        ("nets:make_ned", "nets has no 'make_ned' (did you mean 'make_net'?)"),
        ("nets.py:net", "nets.py has no 'net' (did you mean 'Net'?)"),
        ("zoo:small_", "zoo has no 'small_' (did you mean 'Small'?)"),
        ("empty:make", "empty has no 'make' (it defines no function or class)"),
        ("nets:VERSION", "nets:VERSION is a int, not a function or class that makes a network"),
        ("nets:READY", "nets:READY is a Linear, not a function or class that makes a network"),
        ("nets:pair", "nets:pair() returned a tuple; let it return a torch.nn.Module"),
        ("nets:silent", "nets:silent() failed: KeyError"),
        ("nets:leaves", "nets:leaves() failed: SystemExit: 4"),
    ],
)
def test_a_factory_that_is_none_is_refused_in_one_line(folder: Path, text: str, message: str) -> None:
    assert str(refused(text)) == message


@pytest.mark.parametrize("text", ["nets:breaks", "nets.py:breaks"])
def test_what_the_users_code_raises_is_named_and_kept(folder: Path, text: str) -> None:
    error = refused(text)
    assert str(error) == f"{text}() failed: RuntimeError: no room"
    assert isinstance(error.__cause__, RuntimeError)


def test_a_factory_with_arguments_is_refused(folder: Path) -> None:
    assert "nets:needs() failed: TypeError: needs() missing 1 required" in str(refused("nets:needs"))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def make(:\n", "SyntaxError: invalid syntax (broken.py, line 1)"),
        ("import no_such_library\n", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit('usage: broken.py DATA')\n", "SystemExit: usage: broken.py DATA"),
    ],
)
@pytest.mark.parametrize("text", ["broken:make", "broken.py:make"])
def test_code_that_cannot_be_imported_is_said(folder: Path, text: str, code: str, message: str) -> None:
    (folder / "broken.py").write_text(code)
    assert str(refused(text)) == f"{text} cannot be imported: {message}"
    assert "broken.py" not in sys.modules
