"""A headless Chromium on the page ``edge/web/bench``, and the server it needs: one origin, isolated, on loopback.

with open_bench(artifacts) as bench:
    with bench.page() as page:
        page.evaluate("bench.open('artifact/resnet20/', 1)")
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WEB = Path(__file__).parent.parent / "edge" / "web"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

_TYPES = {".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm"}
_HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; "
    "connect-src 'self'",
}


@dataclass
class Bench:
    """What is served, and what pages have sent.

    Attributes:
        artifacts: name -> folder, served as ``artifact/<name>/``.
        received: bytes that pages put, by name.
    """

    built: Path
    artifacts: dict[str, Path]
    browser: Browser
    address: str = ""
    received: dict[str, bytes] = field(default_factory=dict)

    @contextlib.contextmanager
    def page(self, slowdown: float = 1.0) -> Iterator[Page]:
        """A fresh page with nothing loaded; its errors end the script.

        Args:
            slowdown: of the processor, by the browser's own throttling.
        """
        context = self.browser.new_context()
        page = context.new_page()
        page.set_default_timeout(300_000)
        page.goto(self.address)
        page.wait_for_function("globalThis.bench !== undefined")
        if slowdown != 1.0:
            context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": slowdown})
        yield page
        context.close()


@contextlib.contextmanager
def open_bench(artifacts: dict[str, Path]) -> Iterator[Bench]:
    """Build the page, serve it with ``artifacts`` and start a browser."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(prefix="apportion-bench-") as folder, sync_playwright() as playwright:
        build = ["npx", "vite", "build", "--config", "bench/vite.config.ts", "--outDir", folder, "--emptyOutDir"]
        subprocess.run(build, cwd=WEB, check=True, capture_output=True)
        browser = playwright.chromium.launch(executable_path=browser_program(), args=["--no-sandbox"])
        bench = Bench(Path(folder), artifacts, browser)
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(bench))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        bench.address = f"http://127.0.0.1:{server.server_address[1]}/"
        try:
            yield bench
        finally:
            browser.close()
            server.shutdown()
            server.server_close()


def browser_program() -> str:
    """The first of :data:`BROWSERS` on PATH."""
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    raise SystemExit(f"none of {', '.join(BROWSERS)} is installed; apt install chromium")


def _handler(bench: Bench) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = _file(bench, unquote(urlsplit(self.path).path).lstrip("/"))
            self._answer(path)

        def do_PUT(self) -> None:
            bench.received[self.path.rpartition("/")[2]] = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(None, 204)

        def _answer(self, path: Path | None, status: int = 0) -> None:
            data = path.read_bytes() if path is not None else b""
            self.send_response(status or (404 if path is None else 200))
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", _TYPES.get(path.suffix if path else "", "application/octet-stream"))
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Nothing: the script prints its own."""

    return Handler


def _file(bench: Bench, path: str) -> Path | None:
    if path.startswith("artifact/"):
        _, name, file = path.split("/", 2)
        found = bench.artifacts[name] / file
    else:
        found = bench.built / (path or "index.html")
    return found if found.is_file() and ".." not in path else None
