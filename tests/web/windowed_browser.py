"""A browser whose tabs hide each other: Playwright has every page believe that it is in front, this one does not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext

from tests.web.conftest import chromium_path
from tests.web.phone import wait_until


@contextlib.contextmanager
def windowed_browser(chromium: Browser) -> Iterator[BrowserContext]:
    """The one profile of a Chromium that runs beside ``chromium``; its pages' visibility is the real one."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, _chromium(Path(folder)) as address:
        browser = chromium.browser_type.connect_over_cdp(address, no_defaults=True)
        try:
            yield browser.contexts[0]
        finally:
            browser.close()


@contextlib.contextmanager
def _chromium(profile: Path) -> Iterator[str]:
    program = chromium_path()
    assert program is not None
    words = [program, "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={profile}", "--no-first-run"]
    if os.geteuid() == 0:
        words.append("--no-sandbox")
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([*map(str, words), "about:blank"], stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        port = profile / "DevToolsActivePort"
        wait_until(lambda: port.exists() and "\n" in port.read_text(), 20, "a port of Chromium")
        yield f"http://127.0.0.1:{port.read_text().split()[0]}"
    finally:
        process.terminate()
        process.wait(10)
