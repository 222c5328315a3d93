"""The short form of the bad inputs: every third of the table, in this process."""

from pathlib import Path

from tests.torture.inputs import command_lines, damaged_files, python_calls, torture


def test_a_bad_input_is_one_line_and_exit_code_2() -> None:
    part = torture(short=True)
    assert part.tried > 150
    assert part.violations == []


def test_the_table_has_three_hundred_bad_inputs(tmp_path: Path) -> None:
    assert (
        sum(len([*table]) for table in (command_lines(tmp_path), damaged_files(tmp_path), python_calls(tmp_path)))
        >= 300
    )
