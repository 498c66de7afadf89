"""Lines that a user writes: code and settings, without blank lines, comments and docstrings."""

from __future__ import annotations

import ast
from pathlib import Path


def code_lines(text: str) -> int:
    """Lines of Python that hold code; a docstring is none."""
    tree = ast.parse(text)
    strings: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                strings |= set(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    return sum(number not in strings for number in _written(text))


def settings_lines(text: str) -> int:
    """Lines of TOML or YAML that hold a value or open a table."""
    return len(_written(text))


def _written(text: str) -> list[int]:
    lines = enumerate(text.splitlines(), 1)
    return [number for number, line in lines if line.strip() and not line.lstrip().startswith("#")]


def of_folder(folder: Path) -> dict[str, int]:
    """``code`` and ``settings`` of every file below."""
    counts = {"code": 0, "settings": 0}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".py":
            counts["code"] += code_lines(path.read_text())
        elif path.suffix in (".toml", ".yaml"):
            counts["settings"] += settings_lines(path.read_text())
    return counts
