"""Reads the numbers of the paper's tables out of its LaTeX source."""

from __future__ import annotations

import re
from typing import Any

ATTACKS = ("natural", "fgsm", "pgd10", "pgd20", "cw", "autoattack")
LABELS = {
    "tab:overall-mnist": "ablation-mnist",
    "tab:overall-cifar10": "ablation-cifar10",
    "tab:overall-cifar100": "ablation-cifar100",
    "tab:ce-loss-cifar100": "classification",
    "tab:compare-cifar10": "comparison-cifar10",
    "tab:compare-cifar100": "comparison-cifar100",
    "tab:compare-cifar100-mix0": "comparison-cifar100-mix0",
    "tab:pretrained": "pretrained",
}
TEACHERS = {
    "ablation-mnist": "lenet-mnist-pgd-at",
    "ablation-cifar10": "wrn-34-10-cifar10-lbgat",
    "comparison-cifar10": "wrn-34-10-cifar10-lbgat",
}
CIFAR100 = "wrn-34-10-cifar100-lbgat"
DENSE = {
    "LeNet PGD": "lenet-mnist-pgd-at",
    "ResNet-18 TRADES": "resnet18-cifar10-trades",
    "WRN34-10 TRADES": "wrn-34-10-cifar10-trades",
}


def numbers_of(source: str) -> list[dict[str, Any]]:
    """Return a flat row for each line of numbers in the tables of the source that are known."""
    rows: list[dict[str, Any]] = []
    for block in re.findall(r"\\begin\{table\*?\}(.*?)\\end\{table\*?\}", source, re.DOTALL):
        label = re.search(r"\\label\{(tab:[\w-]+)\}", block)
        table = LABELS.get(label[1]) if label else None
        if table is not None and "FGSM" in block:  # the short form of a table has fewer columns
            rows += _rows(table, block)
    return rows


def _rows(table: str, block: str) -> list[dict[str, Any]]:
    rows, rate, data = [], 1, ""
    for line in block.split("\\\\"):
        if found := re.search(r"\\multirow\{\d\}\{\*\}\{(\d+)\$\\times\$\}", line):
            rate = int(found[1])
        if found := re.search(r"\\multirow\{\d\}\{\*\}\{(MNIST|CIFAR-\d+)\}", line):
            data = found[1]
        line = re.sub(r"\\multirow\{\d\}\{\*\}\{[^}]*\}|\\hline|\\cline\{[^}]*\}|\\cite\{[^}]*\}", "", line)
        cells = [re.sub(r"\\textbf\{([^}]*)\}", r"\1", cell).strip() for cell in line.split("&")]
        values = [float(cell) for cell in cells if re.fullmatch(r"\d+(\.\d+)?", cell)]
        if len(values) < 6:
            continue
        row: dict[str, Any] = {"table": table, "teacher": TEACHERS.get(table, CIFAR100), "method": "pwoa"}
        row |= {"objective": None, "rate": rate, "mix": 0.2 if table in LABELS_MIXED else 0.0, "hours": None}
        if table == "pretrained":
            name = " ".join(cell for cell in cells[1:3])
            row |= {"teacher": DENSE.get(name, f"wrn-34-10-{data.lower().replace('-', '')}-lbgat")}
            row |= {"method": "teacher", "rate": 1}
        elif table.startswith("comparison"):
            row["method"] = {"AdvPrune": "advprune", "HYDRA": "hydra"}.get(cells[1], "pwoa")
            row["objective"] = "distillation + HSIC" if row["method"] == "pwoa" else None
            row["hours"] = values.pop()
        else:
            ce, kd, hsic = ("checkmark" in cell for cell in cells[1:4])
            weight = f"{values.pop(0):g} " if table == "classification" else ""
            terms = [*(["distillation"] if kd else ["CE"]), *(["HSIC"] if hsic else [])]
            row["objective"] = " + ".join([*terms, *([f"{weight}CE"] if ce and kd else [])])
        rows.append(row | dict(zip(ATTACKS, values, strict=True)))
    return rows


LABELS_MIXED = ("comparison-cifar10", "comparison-cifar100")
