"""Renew docs/commands.md and docs/python.md, the references of the command line and of Python, from the code itself.

python -m scripts.update_reference
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pwoa
from pwoa.cli.options import VERBS, load_verb
from pwoa.report.page import report

DOCS = Path(__file__).resolve().parents[1] / "docs"
COMMANDS_HEAD = """# Command line

Every verb with its options, as `--help` shows them. `-h` is short for `--help`. The script `scripts.update_reference`
writes this page.
"""
PYTHON_HEAD = """# Python

All that `import pwoa` offers. The script `scripts.update_reference` writes this page from the code.

"""
RETURNED = {
    "Result": "pwoa.runs.folder",
    "Scores": "pwoa.evaluation.scores",
    "Comparison": "pwoa.evaluation.comparison",
    "Data": "pwoa.data.images",
}
"""What the functions return, by the module where it is."""

VALUES: dict[type, str] = {float: "NUMBER", int: "NUMBER", Path: "PATH", str: "TEXT"}
"""How the values of options are called."""


def commands_page() -> str:
    """Return the text of the page on the command line."""
    parts = [COMMANDS_HEAD]
    for name in VERBS:
        verb = load_verb(name)
        below = getattr(verb, "commands", {})
        parts += [f"\n## pwoa {name}\n"] if below else [_verb(f"pwoa {name}", verb, "##")]
        if below:
            parts += [f"\n{_marked(verb.help or '')}\n"]
            parts += [_verb(f"pwoa {name} {each}", sub, "###") for each, sub in below.items()]
    return "".join(parts)


def _verb(name: str, verb: Any, heading: str) -> str:
    kinds = get_type_hints(verb.callback)
    given = {each.name.upper(): each for each in verb.params if each.param_type_name == "argument"}
    options = [each for each in verb.params if each.param_type_name == "option"]
    words = [name, *(key if each.required else f"[{key}]" for key, each in given.items()), "[OPTIONS]"]
    rows = [(f"`{key}`", each.help or "") for key, each in given.items()]
    rows += [(_option(each, kinds[each.name]), each.help or "") for each in options]
    table = "".join(f"| {option} | {_cell(means)} |\n" for option, means in rows)
    text = f"\n{heading} {name}\n\n{_marked(verb.help or '')}\n\nUsage: `{' '.join(words)}`\n"
    return text + (f"\n| argument or option | means |\n| --- | --- |\n{table}" if rows else "")


def _option(option: Any, kind: Any) -> str:
    """Write an option, and what kind of value it takes if it takes one."""
    value = next((name for each, name in VALUES.items() if each in (kind, *get_args(kind))), "")
    value = option.metavar or value
    return ", ".join(f"`{name} {value}`" if value else f"`{name}`" for name in (*option.opts, *option.secondary_opts))


def _marked(text: str) -> str:
    """Turn the bold of a help text into code."""
    return re.sub(r"\[bold\](.*?)\[/bold\]", r"`\1`", inspect.cleandoc(text)).replace("\\[", "[")


def _cell(text: str) -> str:
    return " ".join(_marked(text).split()).replace("|", "\\|").replace("<", "&lt;")


def python_page() -> str:
    """Return the text of the page on Python."""
    offered = {name: getattr(pwoa, name) for name in sorted(pwoa.__all__, key=str.lower) if name != "__version__"}
    offered["report"] = report  # the room of that name is called as this is
    functions = {name: value for name, value in offered.items() if inspect.isfunction(value)}
    classes = {name: value for name, value in offered.items() if inspect.isclass(value)}
    returned = {name: getattr(import_module(module), name) for name, module in RETURNED.items()}
    parts = [PYTHON_HEAD, ", ".join(f"[{name}](#pwoa{name.lower()})" for name in offered), "\n"]
    parts += [_function(f"pwoa.{name}", value) for name, value in functions.items()]
    parts += [_class(f"pwoa.{name}", value) for name, value in classes.items()]
    parts += ["\nThe functions return these:\n"]
    parts += [_class(name, value) for name, value in returned.items()]
    return "".join(parts)


def _function(name: str, function: Callable[..., Any]) -> str:
    """Write a function: what it does, then a table of its parameters with what its text says of each."""
    text, said = _split(inspect.getdoc(function) or "", set(inspect.signature(function).parameters))
    called, parameters = name.rpartition(".")[2], list(_parameters(function))
    head = f"\n## {name}\n\n`{called}({', '.join(each for each, _, _ in parameters)})`{_returned(function)}\n\n{text}\n"
    rows = [f"| `{each}` | {kind} | {value} | {_cell(said.get(each, ''))} |\n" for each, kind, value in parameters]
    return head + "\n| parameter | type | default | means |\n| --- | --- | --- | --- |\n" + "".join(rows)


def _method(name: str, method: Callable[..., Any]) -> str:
    """Write a method: how it is called, and what it does."""
    called, parameters = name.rpartition(".")[2], list(_parameters(method))
    call = f"`{called}({', '.join(each for each, _, _ in parameters)})`{_returned(method)}"
    return f"\n### {name}\n\n{call}\n\n{inspect.getdoc(method)}\n"


def _tree(function: Callable[..., Any]) -> ast.FunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


def _returned(function: Callable[..., Any]) -> str:
    returned = _tree(function).returns
    return f" → {_type(returned)}" if returned and ast.unparse(returned) != "None" else ""


def _parameters(function: Callable[..., Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, type and default of each parameter; types as they are written in the code."""
    given = _tree(function).args
    every = (*given.posonlyargs, *given.args, *([given.vararg] if given.vararg else []), *given.kwonlyargs)
    written = {each.arg: each.annotation for each in every}
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in ("self", "cls"):
            default = "" if parameter.default is inspect.Parameter.empty else f"`{parameter.default!r}`"
            yield name, _type(written[name]), default


def _type(annotation: ast.expr | None) -> str:
    """Write a type with `or`, for a bar would end the cell of a table."""
    names = ast.unparse(annotation).strip("'\"") if annotation else ""
    parts = re.split(r" \| (?![^\[]*\])", names)
    return " or ".join(f"`{part}`" for part in parts if part).replace("|", "or")


def _split(text: str, known: set[str]) -> tuple[str, dict[str, str]]:
    """Split the text of a function into what it says of parameters, as `a, b: words`, and the rest."""
    rest: list[str] = []
    said: dict[str, str] = {}
    blocks = re.split(r"\n\s*\n|(?<=\.)\n(?=[A-Z])", text)
    for block in blocks:
        joined = " ".join(block.split())
        about = re.finditer(r"(?:^|(?<=\. ))(\w+(?:, \w+)*): ", joined)
        found = [match for match in about if set(match[1].split(", ")) <= known]
        ends = [*(match.start() for match in found[1:]), len(joined)]
        rest.append(joined[: found[0].start()] if found else joined)
        for match, end in zip(found, ends, strict=True) if found else ():
            first, *others = match[1].split(", ")
            said |= {first: joined[match.end() : end].strip(), **dict.fromkeys(others, f"see `{first}`")}
    return "\n\n".join(filter(None, rest)), said


def _class(name: str, kind: type) -> str:
    """Write a class: what it is, its fields, and its own methods and properties."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    types = {
        each.target.id: each.annotation
        for each in tree.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    fields = [field for field in dataclasses.fields(kind) if field.repr] if dataclasses.is_dataclass(kind) else []
    text, said = _split(inspect.getdoc(kind) or "", {field.name for field in fields})
    parts = [f"\n## {name}\n\n{text}\n"]
    if fields:
        words = {field.name: said.get(field.name) or field.metadata.get("about", "") for field in fields}
        rows = [f"| `{each.name}` | {_type(types[each.name])} | {_cell(words[each.name])} |\n" for each in fields]
        parts += ["\n| field | type | means |\n| --- | --- | --- |\n", *rows]
    for key, member in vars(kind).items():
        member = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if not key.startswith("_") and inspect.isfunction(member):
            parts += [_method(f"{name}.{key}", member)]
        elif not key.startswith("_") and isinstance(member, (property, cached_property)):
            parts += [f"\n### {name}.{key}\n\n{inspect.getdoc(member)}\n"]
    return "".join(parts)


PAGES = {"commands.md": commands_page, "python.md": python_page}

if __name__ == "__main__":
    for file, page in PAGES.items():
        (DOCS / file).write_text(page(), encoding="utf-8")
