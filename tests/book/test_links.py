"""No link of a page is dead: files and headings are there, addresses of other sites are well formed."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.book import links


def test_no_page_has_a_dead_link() -> None:
    assert links.problems() == []


def test_links_are_found_at_all() -> None:
    found = [link for page in links.pages() for link in links.links(page)]
    assert len(found) > 300
    assert any(link.is_external for link in found)
    assert any("#" in link.target for link in found)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](b.md)", ""),
        ("[a](b.md#two-words)", ""),
        ("[a](c.md)", "c.md is not there"),
        ("[a](b.md#three)", "has no heading '#three'"),
        ("[a](#gone)", "has no heading '#gone'"),
        ("![a](c.svg)", "c.svg is not there"),
        ("[a](http://example.org)", "give the https:// address"),
        ("[a](https://example)", "no name of a host"),
        ("`[a](c.md)`", ""),
    ],
)
def test_dead_links_are_named(text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "ROOT", tmp_path)
    (tmp_path / "b.md").write_text("# Two `words`\n", encoding="utf-8")
    page = tmp_path / "a.md"
    page.write_text(f"# A\n\n{text}\n", encoding="utf-8")
    monkeypatch.setattr(links, "pages", lambda: [page])
    found = links.problems()
    assert (found == []) if not problem else (len(found) == 1 and problem in found[0]), found
