"""The built book: complete, searchable, and without anything fetched from elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docs.book.site import build

ROOT = Path(__file__).parents[2]
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|object|embed)\b[^>]*?\b(?:src|srcset|data)=["'](?:https?:)?//"""
    r"""|<link\b(?=[^>]*\brel=["'](?:stylesheet|preload|preconnect|icon|modulepreload)["'])[^>]*?\bhref=["'](?:https?:)?//"""
)
_IN_STYLES = re.compile(r"""url\(\s*["']?(?:https?:)?//|@import\s+["'](?:https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("book"))


@pytest.mark.slow
def test_every_page_is_built_and_found_by_search(site: Path) -> None:
    index = json.loads((site / "searchindex.js").read_text(encoding="utf-8").removeprefix("Search.setIndex(")[:-1])
    for page in (ROOT / "docs").rglob("*.md"):
        name = str(page.relative_to(ROOT / "docs"))[:-3]
        assert (site / f"{name}.html").is_file(), name
        assert name in index["docnames"]
    assert {"mosquitto", "zstd"} <= set(index["terms"])


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        found = _FETCHED.search(page.read_text(encoding="utf-8"))
        assert found is None, f"{page.name}: {found and found[0]}"
    for style in site.rglob("*.css"):
        assert not _IN_STYLES.search(style.read_text(encoding="utf-8")), style.name


@pytest.mark.slow
def test_references_are_in_their_pages(site: Path) -> None:
    shown = {name: (site / "reference" / f"{name}.html").read_text(encoding="utf-8") for name in ("configuration",)}
    assert 'id="key-privacy-recovery-share"' in shown["configuration"]
    assert "Federation" in (site / "reference/python.html").read_text(encoding="utf-8")
    assert 'id="command-device-add"' in (site / "reference/commands.html").read_text(encoding="utf-8")
    assert 'id="message-hello"' in (site / "reference/messages.html").read_text(encoding="utf-8")
    assert list(site.rglob("asyncapi.json"))
    assert 'id="store-full"' in (site / "errors.html").read_text(encoding="utf-8")
