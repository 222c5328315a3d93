"""Run the notebook in examples from its first cell to its last, and keep what its cells print and draw.

python -m scripts.run_notebook

Its cells are plain Python, so that no Jupyter is needed. As there, the value of a last expression is shown: a figure as
a picture, anything else as text.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "story.ipynb"
DOTS = 64
"""Of a picture, on an inch: enough for a screen, and small."""


def run(notebook: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Run all code cells in one namespace, with what is `given` in place of the first cell's values; keep the outputs.

    Return the namespace. An error of a cell is raised.
    """
    names: dict[str, Any] = {"__name__": "notebook"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        printed = io.StringIO()
        with redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of defence checks, which the text speaks of
            value = _execute("".join(cell["source"]), f"cell {number}", names)
        if number == 1:
            names |= given
        cell["execution_count"], cell["outputs"] = number, _outputs(printed.getvalue(), value, number)
    return names


def _execute(source: str, name: str, names: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last line if that is an expression."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    return eval(compile(ast.Expression(last.value), name, "eval"), names) if isinstance(last, ast.Expr) else None


def _outputs(printed: str, value: Any, number: int) -> list[dict[str, Any]]:
    outputs: list[dict[str, Any]] = []
    if printed:
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
    if value is not None:
        data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
        if isinstance(value, Figure):
            picture = io.BytesIO()
            value.savefig(picture, dpi=DOTS, format="png", metadata={"Software": None})
            data = {"image/png": base64.b64encode(picture.getvalue()).decode(), "text/plain": ["<Figure>"]}
        outputs.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs


if __name__ == "__main__":
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    run(notebook, {})
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
