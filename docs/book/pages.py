"""What becomes of a page on its way into the book: parts from the code are put in, links out of docs/ are turned."""

from __future__ import annotations

import importlib
import re
from html import escape
from pathlib import Path

from docs.book import messages
from docs.book.drawings import DRAWINGS, layers

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_GENERATED = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
_PATTERN = re.compile(r"^([\w/.-]+\*)\n", re.MULTILINE)
"""A pattern of the tree of contents; one without a page waits for it."""
_MERMAID = re.compile(r"^```mermaid\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_DRAWING = re.compile(r"^!\[([^\]]+)\]\([./]*drawings/(\w+)\.svg\)$", re.MULTILINE)
_LINK = re.compile(r"\]\(((?:\.\./)+)([\w./-]+)(#[\w-]+)?\)")
_IN_THE_BOOK = {
    "CHANGELOG.md": "about/changelog.md",
    "CONTRIBUTING.md": "about/contributing.md",
    "README.md": "index.md",
}
"""Files beside docs/ that the book has as pages."""


def finished(page: str, text: str) -> str:
    """The text of ``page`` (its path below docs/ without ``.md``) as the book has it."""
    text = _GENERATED.sub(lambda match: importlib.import_module(f"docs.book.{match[1]}").markdown(), text)
    text = _DRAWING.sub(_inlined, text)
    if page == "index":
        text = _PATTERN.sub(lambda match: match[0] if any(DOCS.glob(f"{match[1]}.md")) else "", text)
    depth = page.count("/")
    return _LINK.sub(lambda match: _link(match, depth), _MERMAID.sub(lambda match: layers(match[1]), text))


def _inlined(match: re.Match[str]) -> str:
    """A drawing as a part of the page, whose colours follow the reader's choice; a picture cannot."""
    return f'<figure role="img" aria-label="{escape(match[1])}">\n{DRAWINGS[match[2]]()}</figure>\n'


def _link(match: re.Match[str], depth: int) -> str:
    """A link that leaves docs/: to a page of the book where there is one; to a folder, which no book can show, none."""
    up, path, anchor = match[1], match[2], match[3] or ""
    if up.count("../") <= depth:
        return match[0]
    if path in _IN_THE_BOOK:
        return f"]({'../' * depth}{_IN_THE_BOOK[path]})"
    if (ROOT / path).is_dir():
        return "]{.folder}"
    return f"]({up}{path}{anchor})"


def write_files(folder: Path) -> None:
    """Writes the files that pages hand out for download."""
    messages.write(folder)
