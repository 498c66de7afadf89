"""The drawings in the tree are those that the code draws, and fit into a page."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from docs.book.drawings import DRAWINGS, FOLDER, layers
from docs.book.pages import DOCS, finished


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawings_are_those_of_the_code(name: str) -> None:
    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == DRAWINGS[name](), "run python -m docs.book.drawings"


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawings_are_whole_and_say_what_they_show(name: str) -> None:
    root = ElementTree.fromstring(DRAWINGS[name]())  # of our own making
    spaces = {"svg": "http://www.w3.org/2000/svg"}
    title = root.find("svg:title", spaces)
    assert title is not None
    assert title.text
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for box in root.iterfind("svg:rect", spaces):
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width
        assert float(box.attrib["y"]) + float(box.attrib["height"]) <= height
    assert "\n\n" not in DRAWINGS[name](), "an empty line would end it in a page"


def test_pages_get_drawings_as_parts_of_the_page() -> None:
    page = finished("start/how-it-works", (DOCS / "start/how-it-works.md").read_text(encoding="utf-8"))
    assert page.count("<svg") == 3


def test_the_layers_of_the_architecture_page_are_drawn() -> None:
    page = finished("architecture", (DOCS / "architecture.md").read_text(encoding="utf-8"))
    assert "mermaid" not in page
    for folder in ("forecast · loadtest", "audit_log", "contracts"):
        assert folder in page
    two = layers('  subgraph a\n    x["b"] --> y["c"]\n  end\n  a --> d')
    assert two.count("<rect") == 2
