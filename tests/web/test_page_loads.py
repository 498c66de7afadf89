"""The built page, from the coordinator's own server, in a browser: it loads, alone, and says nothing wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request

from coordinator.fleet.claim_handler import ClaimHandler
from coordinator.identity.authority import Authority
from coordinator.web.app import web_application
from coordinator.web.headers import security_headers
from coordinator.web.pages import Pages
from coordinator.web.server import WebServer

PHONE = {"width": 390, "height": 844}
SOCKET = "ws://127.0.0.1:9/mqtt"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the page is."""
    identity: Path = tmp_path_factory.mktemp("site") / "identity"
    Authority.create(identity).close()
    app = web_application(Pages(), ClaimHandler(identity, federation="fed", web_socket=SOCKET), web_socket=SOCKET)
    with WebServer("http://127.0.0.1:0", app) as server:
        yield server.address


def opened(chromium: Browser, url: str) -> tuple[Page, list[str], list[str]]:
    """The page on a phone's screen, what it complained of, and what it asked for."""
    complaints: list[str] = []
    asked: list[str] = []
    page = chromium.new_context(viewport=PHONE, is_mobile=True, has_touch=True).new_page()
    page.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    note: Callable[[Request], None] = lambda request: asked.append(request.url)  # noqa: E731
    page.context.on("request", note)
    page.goto(url, wait_until="networkidle")
    return page, complaints, asked


@pytest.mark.parametrize("path", ["/", "/join"])
def test_page_loads_alone_without_a_complaint(
    chromium: Browser, address: str, path: str, record_property: Callable[[str, object], None]
) -> None:
    page, complaints, asked = opened(chromium, address + path)
    assert page.inner_text("body").strip()
    assert complaints == []
    origin = urlsplit(address).netloc
    assert {urlsplit(url).netloc for url in asked if not url.startswith(("data:", "blob:"))} == {origin}
    load_ms = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    record_property("first_load_ms", round(load_ms))
    page.context.close()


def test_page_is_isolated_and_has_the_strict_headers(chromium: Browser, address: str) -> None:
    page = chromium.new_context().new_page()
    response = page.goto(address)
    assert response is not None
    got = response.all_headers()
    expected = {name.lower(): value for name, value in security_headers(SOCKET).items()}
    assert {name: got.get(name) for name in expected} == expected
    assert page.evaluate("[isSecureContext, crossOriginIsolated]") == [True, True]
    page.context.close()


def test_page_may_not_reach_anybody_else(chromium: Browser, address: str) -> None:
    page = chromium.new_context().new_page()
    page.goto(address)
    tried = "url => fetch(url).then(() => 'reached', error => String(error))"
    assert "Failed to fetch" in page.evaluate(tried, address.replace("127.0.0.1", "localhost"))
    assert page.evaluate(tried, f"{address}/healthz") == "reached"
    inline = "() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
    assert page.evaluate(inline + "document.head.append(s); return window.ran === undefined }")
    page.context.close()
