"""Robustness of any model on any data."""

from pwoa.evaluation.comparison import Comparison, compare
from pwoa.evaluation.measure import check_teacher, evaluate
from pwoa.evaluation.robustness import STANDARD, parse_attacks, robustness, work
from pwoa.evaluation.scores import Scores

__all__ = [
    "STANDARD",
    "Comparison",
    "Scores",
    "check_teacher",
    "compare",
    "evaluate",
    "parse_attacks",
    "robustness",
    "work",
]
