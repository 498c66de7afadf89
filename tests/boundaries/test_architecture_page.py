"""The drawing in ``docs/architecture.md`` is that of the import contracts, and every folder is described."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def contracted(package: str) -> list[set[str]]:
    """The layers of a package's folders, the highest first."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (found,) = [c for c in tool["contracts"] if c.get("containers") == [package]]
    assert found["exhaustive"]
    return [{name.strip() for name in layer.split("|")} for layer in found["layers"]]


def drawn(package: str) -> list[set[str]]:
    """The boxes of a package in the drawing, from top to bottom."""
    block = PAGE.partition(f"subgraph {package}\n")[2].partition("\n  end")[0]
    boxes = dict(re.findall(r'(\w+)\["([^"]+)"\]', block))
    arrows = dict(re.findall(r"(\w+)(?:\[[^]]*\])? --> (\w+)", block))
    (name,) = boxes.keys() - arrows.values()
    order = [name]
    while name in arrows:
        order.append(name := arrows[name])
    return [{part.strip() for part in boxes[name].split("·")} for name in order]


def described(package: str) -> set[str]:
    """The folders that the table of a package says something of."""
    table = PAGE.partition(f"| folder of `{package}/` |")[2].partition("\n\n")[0]
    return {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def folders(package: str) -> set[str]:
    return {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}


def test_drawing_is_that_of_the_contracts() -> None:
    for package in ("coordinator", "edge"):
        assert drawn(package) == contracted(package)


def test_every_folder_is_described() -> None:
    for package in ("coordinator", "edge"):
        assert described(package) == folders(package)
