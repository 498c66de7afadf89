"""The page's second load: from its own cache alone, with no server and no network, and over a change of build.

Real Chromium, the built page, its production server. Nothing here reads a clock: benchmarks/web_loading.py does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request

from benchmarks.web_loading import LoadingSite, loading_site, wait_until_stored


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LoadingSite]:
    """A server of a copy of the built page, which a test may change."""
    with loading_site(tmp_path) as site:
        yield site


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """A profile of its own."""
    context = chromium.new_context(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    yield context
    context.close()


def opened(context: BrowserContext, address: str) -> Page:
    """The page, drawn, with its build stored and its worker in charge."""
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("body[data-phase=uninvited]")
    wait_until_stored(page)
    return page


def test_second_load_asks_the_network_for_nothing_but_a_newer_build(context: BrowserContext, site: LoadingSite) -> None:
    opened(context, site.address).close()
    asked: list[Request] = []
    context.on("request", lambda request: asked.append(request))
    site.forget()
    page = opened(context, site.address)
    assert page.evaluate("navigator.serviceWorker.controller !== null")
    assert asked, "the page made no request at all"
    own = [r for r in asked if r.service_worker is None and urlsplit(r.url).path != "/serviceWorker.js"]
    fetched = [r.url for r in own if (answer := r.response()) is not None and not answer.from_service_worker]
    assert fetched == []
    # What has arrived at the server itself: the one file that says whether there is a newer build.
    assert {path for path in site.asked()} <= {"/serviceWorker.js"}


def test_page_is_whole_without_server_and_network(context: BrowserContext, site: LoadingSite) -> None:
    page = opened(context, site.address)
    page.goto("about:blank")
    page.goto(site.link())
    page.get_by_role("button", name="Join", exact=True).click()
    page.wait_for_selector("body[data-phase=joined]")
    page.close()
    site.stop()
    context.set_offline(True)
    page = context.new_page()
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.goto(site.address)
    page.wait_for_selector("body[data-phase=joined]")
    # Controls answer, and nothing that the page is made of is missing.
    page.get_by_text("Offline", exact=True).first.wait_for()
    page.get_by_role("switch", name="Take part").click()
    page.locator("#view-training .state", has_text="Stopped by you").wait_for()
    for tab in ("Data", "Device", "What leaves"):
        page.get_by_role("link", name=tab, exact=True).click()
        page.locator(f"#view-{_VIEWS[tab]}").wait_for()
    assert [url for url in failed if not url.endswith("/serviceWorker.js")] == []
    assert page.evaluate("async path => (await fetch(path)).ok", site.runtime_path())


def test_new_build_is_there_at_the_next_load_and_the_one_before_last_is_gone(
    context: BrowserContext, site: LoadingSite
) -> None:
    opened(context, site.address).close()
    page = context.new_page()
    page.goto(site.address)
    (first,) = page.evaluate("caches.keys()")
    page.close()
    for number in (1, 2, 3):
        site.change_build(number)
        page = context.new_page()
        page.goto(site.address)
        wait_until_stored(page, f"build{number}")
        page.close()
        page = context.new_page()
        page.goto(site.address)
        page.wait_for_selector("body[data-phase=uninvited]")
        assert page.title() == f"Build {number}"
        kept = page.evaluate("caches.keys()")
        page.close()
    assert first not in kept
    assert [re.sub(".*-", "", name) for name in kept] == ["build2", "build3"]


def test_nothing_of_the_coordinator_is_stored(context: BrowserContext, site: LoadingSite) -> None:
    page = opened(context, site.address)
    page.reload()
    page.wait_for_function("() => navigator.serviceWorker.controller !== null")
    for path in ("/v1/ca.pem", "/v1/ca.pem", f"/v1/{'t' * 16}/{'0' * 64}"):
        page.evaluate("path => fetch(path).then(() => 0, () => 0)", path)
    stored = page.evaluate(
        """async () => {
          const found = [];
          for (const name of await caches.keys())
            for (const request of await (await caches.open(name)).keys()) found.push(new URL(request.url).pathname);
          return found;
        }"""
    )
    assert "/" in stored
    assert [path for path in stored if path.startswith("/v1/")] == []
    assert site.asked().count("/v1/ca.pem") == 2


_VIEWS = {"Data": "data", "Device": "device", "What leaves": "leaving"}
