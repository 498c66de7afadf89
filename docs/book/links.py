"""The links of the pages: those within the project lead somewhere, addresses of other sites are well formed.

``python -m docs.book.links`` lists the latter, one a line with the page that names it; nothing is fetched.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

from docs.book.pages import ROOT, finished

_TARGET = re.compile(r"^\(([\w-]+)\)=$", re.MULTILINE)
_OF_OTHERS = ("http", "https", "mailto")


@dataclass(frozen=True)
class Link:
    """A link of a page: the page's path from the root, the line, and what it leads to."""

    page: str
    line: int
    target: str

    @property
    def is_external(self) -> bool:
        """Whether it leads to another site."""
        return urlsplit(self.target).scheme in _OF_OTHERS


def pages() -> list[Path]:
    """README and every page below docs/."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def links(page: Path) -> Iterator[Link]:
    """The links and pictures of ``page``, as it is in the tree."""
    name = str(page.relative_to(ROOT))
    for token in _tokens(page.read_text(encoding="utf-8")):
        for part in token.children or ():
            target = part.attrs.get("href") or part.attrs.get("src")
            if target and part.type in ("link_open", "image"):
                yield Link(name, (token.map or [0])[0] + 1, str(target))


def _tokens(text: str) -> list[Token]:
    return [token for token in MarkdownIt("commonmark").enable("table").parse(text) if token.type == "inline"]


def problems() -> list[str]:
    """What is wrong with the links, each with its page and line."""
    found = []
    for page in pages():
        for link in links(page):
            problem = _address_problem(link.target) if link.is_external else _dead(page, link.target)
            if problem:
                found.append(f"{link.page}:{link.line}: {link.target}: {problem}")
    return found


def _address_problem(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme == "mailto":
        return "" if "@" in parts.path else "no address of a person"
    if parts.scheme != "https":
        return "give the https:// address"
    return "" if re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc) else "no name of a host"


def _dead(page: Path, target: str) -> str:
    path, _, anchor = target.partition("#")
    where = (page.parent / path).resolve() if path else page
    if not where.exists():
        return f"{where.relative_to(ROOT) if where.is_relative_to(ROOT) else where} is not there"
    if anchor and where.suffix == ".md" and anchor not in anchors(where):
        return f"{where.name} has no heading '#{anchor}'"
    return ""


@cache
def anchors(page: Path) -> frozenset[str]:
    """Names of the headings of ``page`` as GitHub and the book make them, and targets that it sets itself."""
    text = finished(str(page.relative_to(ROOT / "docs"))[:-3], page.read_text("utf-8")) if _is_in_book(page) else ""
    text = text or page.read_text(encoding="utf-8")
    names = set(_TARGET.findall(text))
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for before, token in pairwise(tokens):
        if before.type == "heading_open":
            slug = _slug("".join(part.content for part in token.children or ()))
            count = 0
            while (name := f"{slug}-{count}" if count else slug) in names:
                count += 1
            names.add(name)
    return frozenset(names)


def _is_in_book(page: Path) -> bool:
    return page.is_relative_to(ROOT / "docs")


def _slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def main() -> int:
    """Print every address of another site, then what is wrong with any link; 1 where something is."""
    found = sorted((link.target, link.page, link.line) for page in pages() for link in links(page) if link.is_external)
    for target, page, line in found:
        print(f"{target}\t{page}:{line}")
    wrong = problems()
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
