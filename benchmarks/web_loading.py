"""How long the page takes to load: the first time, from its own cache, and without server and network.

    python -m benchmarks.web_loading [--repeats 5] [--json]

Loaded means: the page shows its state and a control answers (the first time, before it has joined: the button
that joins is there); ready: the training runtime is loaded and the first hello leaves. All of it is on
this machine's loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Receive, Scope, Send

from benchmarks.web_browser import browser_program
from coordinator.brokers.mosquitto import WebSocketListener
from coordinator.brokers.process import BrokerProcess
from coordinator.fleet.claim_handler import ClaimHandler
from coordinator.identity.authority import Authority
from coordinator.identity.claims import create_token
from coordinator.web.app import web_application
from coordinator.web.pages import Pages, built_folder
from coordinator.web.server import WebServer
from edge.contracts.claims import ClaimLink

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

SOCKET = "ws://127.0.0.1:9"
"""Where nobody answers."""

_STORED = """async version => {
  const registration = await navigator.serviceWorker.getRegistration();
  const names = await caches.keys();
  return registration?.active?.state === "activated" && !registration.installing && !registration.waiting &&
    names.some(name => name.endsWith(version));
}"""

_DEVICE = "phone"
_PATIENCE_MS = 60_000


class LoadingSite:
    """The page's production server on a copy of the build; what it is asked for is kept.

    Args:
        has_broker: whether there is a broker behind it, too.

    Attributes:
        address: of the page.
    """

    def __init__(self, folder: Path, *, has_broker: bool = False) -> None:
        self.build = folder / "build"
        shutil.copytree(built_folder(), self.build)
        self._identity = folder / "identity"
        Authority.create(self._identity).close()
        self._running, self._socket = contextlib.ExitStack(), SOCKET
        told: Callable[[str], None] | None = None
        if has_broker:
            broker = self._running.enter_context(
                BrokerProcess("embedded", folder / "broker", identity=self._identity, web_socket=WebSocketListener())
            )
            self._socket, told = broker.address.web_socket, lambda device: broker.reload()
        self._handler = ClaimHandler(self._identity, federation="loading", web_socket=self._socket, on_claimed=told)
        self._asked: list[str] = []
        self._app = self._application()
        server = self._running.enter_context(WebServer("http://127.0.0.1:0", self))
        self.address = server.address

    def link(self) -> str:
        """An invitation."""
        with Authority(self._identity) as authority:
            token = create_token(authority, _DEVICE, 600)
        return ClaimLink(self.address, token, "0" * 64, _DEVICE).to_text()

    def stop(self) -> None:
        """Nobody answers from now on."""
        self._running.close()

    def asked(self) -> list[str]:
        """Paths of all requests since the last :meth:`forget`."""
        return list(self._asked)

    def forget(self) -> None:
        """What was asked for until now counts no more."""
        self._asked.clear()

    def runtime_path(self) -> str:
        """Of the training runtime's code, the largest file of all."""
        (path,) = self.build.glob("assets/*.wasm")
        return f"/assets/{path.name}"

    def change_build(self, number: int) -> None:
        """Another build: the page's title and the version say which."""
        worker, index = self.build / "serviceWorker.js", self.build / "index.html"
        text = worker.read_text(encoding="utf-8")
        worker.write_text(re.sub('"version":"[^"]*"', f'"version":"build{number}"', text, count=1), encoding="utf-8")
        text = index.read_text(encoding="utf-8")
        index.write_text(re.sub("<title>[^<]*", f"<title>Build {number}", text, count=1), encoding="utf-8")
        for path in (worker, index):
            for suffix in (".br", ".gz"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
        self._app = self._application()

    def _application(self) -> ASGIApp:
        return web_application(Pages(self.build), self._handler, web_socket=self._socket)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers as the production server does."""
        if scope["type"] == "http":
            self._asked.append(scope["path"])
        await self._app(scope, receive, send)


def wait_until_stored(page: Page, version: str = "") -> None:
    """Returns when the build of that version is stored for a load without a network, and its worker is at work."""
    give_up_at = time.monotonic() + _PATIENCE_MS / 1000
    while not page.evaluate(_STORED, version):
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"build {version} was not stored: {page.evaluate('caches.keys()')}")
        page.wait_for_timeout(20)


@contextlib.contextmanager
def loading_site(folder: Path, *, has_broker: bool = False) -> Iterator[LoadingSite]:
    """Running, for as long as the context is open."""
    site = LoadingSite(folder, has_broker=has_broker)
    try:
        yield site
    finally:
        site.stop()


class Stopwatch:
    """Times of one load of a fresh tab, milliseconds since the address was entered."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.page.set_default_timeout(_PATIENCE_MS)
        self._has_spoken = False
        self._began = 0.0
        self.page.on("websocket", lambda socket: socket.on("framesent", self._sent))

    def open(self, address: str) -> None:
        """Enters ``address``."""
        self._began = time.perf_counter()
        self.page.goto(address, wait_until="commit")

    def passed(self) -> float:
        """Milliseconds."""
        return (time.perf_counter() - self._began) * 1000

    def loaded(self) -> float:
        """Until the state is shown and a view that is asked for opens."""
        self.page.wait_for_selector("body[data-phase=joined]")
        self.page.locator("#view-training .state").wait_for()
        self.page.get_by_role("link", name="Data", exact=True).click()
        self.page.locator("#view-data").wait_for()
        return self.passed()

    def ready(self) -> float:
        """Until its hello leaves, which it says when the training runtime is loaded and the broker reached."""
        while not self._has_spoken:
            self.page.wait_for_timeout(5)
            if self.passed() > _PATIENCE_MS:
                raise TimeoutError(f"no hello within {_PATIENCE_MS / 1000:.0f} s")
        return self.passed()

    def _sent(self, frame: bytes | str) -> None:
        self._has_spoken = self._has_spoken or b"hello" in (frame if isinstance(frame, bytes) else frame.encode())


def measure(browser: Browser, folder: Path) -> dict[str, float]:
    """One phone's first load, its second, and one with neither server nor network; milliseconds."""
    with loading_site(folder, has_broker=True) as site:
        context = browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
        first = Stopwatch(context)
        first.open(site.link())
        join = first.page.get_by_role("button", name="Join", exact=True)
        join.wait_for()
        found = {"first_loaded": first.passed()}
        join.click()
        found["first_ready"] = first.ready()
        wait_until_stored(first.page)
        first.page.close()
        second = Stopwatch(context)
        second.open(site.address)
        found["second_loaded"] = second.loaded()
        found["second_ready"] = second.ready()
        second.page.close()
        site.stop()
        context.set_offline(True)
        offline = Stopwatch(context)
        offline.open(site.address)
        found["offline_loaded"] = offline.loaded()
        context.close()
    return found


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="web_loading", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout at the end")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    runs: list[dict[str, float]] = []
    with sync_playwright() as playwright, tempfile.TemporaryDirectory(prefix="apportion-loading-") as folder:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=browser_program(), args=flags)
        for number in range(arguments.repeats):
            place = Path(folder) / str(number)
            place.mkdir()
            runs.append(measure(browser, place))
        result: dict[str, Any] = {"browser": browser.version, "load_average": round(os.getloadavg()[0], 1)}
        browser.close()
    for name in runs[0]:
        values = sorted(run[name] for run in runs)
        result[name] = {"median_ms": round(statistics.median(values)), "all_ms": [round(value) for value in values]}
        print(f"{name:16} {result[name]['median_ms']:6} ms   of {result[name]['all_ms']}")
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
