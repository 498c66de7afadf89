"""The table of attacks in the threat model: every test it names exists, asserts something, and is not switched off."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[a-z0-9_/]+\.py)(?:::(test_[a-z0-9_]+))?`", PAGE)))
LIMITS = re.findall(r"^\| [^|]+ \| [^|]+ \| (`[^|]+`) \|$", PAGE, re.MULTILINE)


def test_table_is_there() -> None:
    assert len(NAMED) > 40
    assert len(LIMITS) > 8


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_named_test_exists_and_checks_something(file: str, name: str) -> None:
    path = ROOT / file
    assert path.is_file()
    if not name or file == "tests/attacks/test_attack_table.py":
        return
    functions = {n.name: n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)}
    assert name in functions, f"{file} has no {name}"
    function = functions[name]
    marks = [ast.unparse(decorator) for decorator in function.decorator_list]
    assert not [mark for mark in marks if mark.startswith("pytest.mark.skip(") or "xfail" in mark]
    text = ast.unparse(function)
    assert "assert " in text or "pytest.raises" in text


@pytest.mark.parametrize("cell", LIMITS)
def test_file_of_a_limit_exists(cell: str) -> None:
    for file in re.findall(r"`([a-z_/]+\.py)`", cell):
        assert (ROOT / file).is_file(), file
