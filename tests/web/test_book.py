"""The book in a browser, from a folder: its search finds pages, nothing is fetched, no page is wider than a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from docs.book.site import build

PAGES = ("index", "start/how-it-works", "tutorials/own-model", "reference/configuration", "reference/commands")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("book"))


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 390, "height": 844})
    yield context.new_page()
    context.close()


def test_search_works_from_a_folder(site: Path, page: Page) -> None:
    page.goto(f"{(site / 'search.html').as_uri()}?q=quarantine")
    expect(page.locator("#search-results")).to_contain_text("quarantine-factor")


@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_a_phone_and_fetch_nothing(name: str, site: Path, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / f"{name}.html").as_uri())
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"}
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_drawings_follow_the_colours_that_a_reader_chooses(site: Path, page: Page) -> None:
    page.goto((site / "start/how-it-works.html").as_uri())
    colours = []
    for theme in ("light", "dark"):
        page.evaluate(f"document.body.dataset.theme = '{theme}'")
        colours.append(page.locator("svg.drawing text").first.evaluate("text => getComputedStyle(text).fill"))
    assert colours == ["rgb(31, 35, 40)", "rgb(230, 237, 243)"]
