"""A phone: a browser context of its own with the page in it, and everything that leaves it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, BrowserContext, CDPSession, Page, WebSocket, expect

SCREEN = {"width": 390, "height": 844}
Tab = Literal["training", "data", "device", "leaving"]


@dataclass
class Left:
    """What left the phone.

    Attributes:
        requests: (method, URL, body) of every request, the service worker's and the worker's included.
        frames: payloads sent over WebSockets, in order.
        sockets: the addresses they went to.
    """

    requests: list[tuple[str, str, bytes]] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)
    sockets: list[str] = field(default_factory=list)


class Phone:
    """One browser profile; its pages come and go, what the browser stores stays.

    Args:
        browser: a new profile is made in it, or the profile itself.
        slower: times the processor's, by the browser's own protocol; it slows a page's main thread.
        megabit_per_s, latency_ms: of its link, by the same; 0: as it is.
    """

    def __init__(
        self,
        browser: Browser | BrowserContext,
        *,
        slower: float = 1.0,
        megabit_per_s: float = 0.0,
        latency_ms: float = 0.0,
    ) -> None:
        self.left = Left()
        self.complaints: list[str] = []
        self._slower, self._megabit_per_s, self._latency_ms = slower, megabit_per_s, latency_ms
        self.context = (
            browser.new_context(viewport=SCREEN, device_scale_factor=2, is_mobile=True, has_touch=True)
            if isinstance(browser, Browser)
            else browser
        )
        self.context.on("request", lambda r: self.left.requests.append((r.method, r.url, r.post_data_buffer or b"")))
        self.page: Page = self._new_page()

    def _new_page(self) -> Page:
        page = self.context.new_page()
        page.on("websocket", self._socket_opened)
        page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        session: CDPSession = self.context.new_cdp_session(page)
        if self._slower != 1.0:
            session.send("Emulation.setCPUThrottlingRate", {"rate": self._slower})
        if self._megabit_per_s:
            rate = self._megabit_per_s * 1e6 / 8
            session.send("Network.enable")
            session.send(
                "Network.emulateNetworkConditions",
                {"offline": False, "latency": self._latency_ms, "downloadThroughput": rate, "uploadThroughput": rate},
            )
        return page

    def _socket_opened(self, socket: WebSocket) -> None:
        self.left.sockets.append(socket.url)
        socket.on(
            "framesent",
            lambda payload: self.left.frames.append(payload if isinstance(payload, bytes) else payload.encode()),
        )

    def open(self, url: str) -> None:
        """Goes to ``url`` and waits until the page has drawn itself."""
        self.page.goto(url)
        self.page.wait_for_selector("body[data-phase]:not([data-phase=starting])")

    def reopen(self, url: str) -> None:
        """The tab is killed, and the page opened in another one."""
        self.page.close()
        self.page = self._new_page()
        self.open(url)

    def join(self, link: str) -> None:
        """Opens an invitation and presses Join."""
        self.open(link)
        self.page.get_by_role("button", name="Join", exact=True).click()
        self.page.wait_for_selector("body[data-phase=joined]", timeout=20_000)

    def tab(self, tab: Tab) -> None:
        """Shows one of the four views."""
        self.page.evaluate("tab => { location.hash = tab }", tab)

    def add_file(self, path: Path, *, examples: int) -> None:
        """Picks an .npz or .csv and waits until its examples are counted."""
        self.tab("data")
        self.page.get_by_role("button", name="Table or NumPy file").click()
        with self.page.expect_file_chooser() as chosen:
            self.page.get_by_text("Choose a file", exact=True).click()
        chosen.value.set_files(path)
        expect(self.page.locator("#view-data")).to_contain_text(f"{examples:,} example", timeout=20_000)

    def add_folder(self, path: Path, *, examples: int) -> None:
        """Picks a folder of images, one folder per class in it, and waits until they are counted."""
        self.tab("data")
        self.page.get_by_role("button", name="Folder of images").click()
        with self.page.expect_file_chooser() as chosen:
            self.page.get_by_text("Choose a folder", exact=True).click()
        chosen.value.set_files(path)
        expect(self.page.locator("#view-data")).to_contain_text(f"{examples:,} example", timeout=20_000)

    def words(self) -> str:
        """What the page shows in words, the view that is open and the problem card."""
        text: str = self.page.locator("#main").inner_text()
        return text

    def wait_for_words(self, text: str, timeout_s: float = 30.0) -> None:
        """Waits until the page says ``text`` in the view that is open."""
        expect(self.page.locator("#main")).to_contain_text(text, timeout=timeout_s * 1000)

    def evaluate(self, script: str, argument: Any = None) -> Any:
        """The value of ``script`` in the page."""
        return self.page.evaluate(script, argument)

    def close(self) -> None:
        """The browser of this phone is gone."""
        self.context.close()


def wait_until(is_so: Any, timeout_s: float, what: str, page: Page | None = None) -> None:
    """Returns when ``is_so()``; with ``page`` the browser's events go on meanwhile."""
    give_up_at = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < give_up_at, f"not within {timeout_s:.0f} s: {what}"
        if page is None:
            time.sleep(0.1)
        else:
            page.wait_for_timeout(100)
