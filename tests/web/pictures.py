"""The dashboard's pictures in ``docs/dashboard``: ``python -m tests.web.pictures [FOLDER]``.

The runs are made by a script (:mod:`tests.web.made_run`): what is shown is how the page looks, not what was measured.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright

from coordinator.cli.watch import served
from tests.web.conftest import chromium_path
from tests.web.made_run import make_run

DESKTOP, PHONE = (1280, 860), (390, 844)
SMALL, LARGE = 8, 2000
PICTURES: Sequence[tuple[str, int, str, str, tuple[int, int]]] = (
    ("fleet-8-light", SMALL, "fleet", "light", DESKTOP),
    ("fleet-2000-light", LARGE, "fleet", "light", DESKTOP),
    ("fleet-2000-dark", LARGE, "fleet", "dark", DESKTOP),
    ("fleet-2000-phone", LARGE, "fleet", "light", PHONE),
    ("fleet-8-phone-dark", SMALL, "fleet", "dark", PHONE),
    ("round-8-light", SMALL, "rounds", "light", DESKTOP),
    ("memory-2000-light", LARGE, "memory", "light", DESKTOP),
    ("model-2000-light", LARGE, "model", "light", DESKTOP),
    ("results-8-dark", SMALL, "results", "dark", DESKTOP),
    ("device-8-light", SMALL, "device/pi-0001", "light", DESKTOP),
)
"""Name, devices, view, scheme and size of each."""


def take(browser: Browser, links: dict[int, str], out: Path) -> None:
    """Writes every picture to ``out``."""
    for name, devices, view, scheme, (width, height) in PICTURES:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        page = context.new_page()
        page.goto(links[devices])
        expect(page.locator("#name")).to_have_text(f"digits-{devices}", timeout=20_000)
        page.evaluate("view => { location.hash = view }", view)
        page.wait_for_timeout(4000 if view == "model" else 1500)
        page.screenshot(path=out / f"{name}.png")
        context.close()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Take the dashboard's pictures.")
    parser.add_argument("out", nargs="?", default="docs/dashboard", help="folder to write to")
    out = Path(parser.parse_args().out)
    out.mkdir(parents=True, exist_ok=True)
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder:
        runs = {SMALL: Path(folder) / "small", LARGE: Path(folder) / "large"}
        make_run(runs[SMALL], devices=SMALL, rounds=24, seed=4)
        make_run(runs[LARGE], devices=LARGE, rounds=40, seed=1)
        with served(runs[SMALL]) as (_, small), served(runs[LARGE]) as (_, large), sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium_path(), args=sandbox)
            take(browser, {SMALL: small, LARGE: large}, out)
            browser.close()


if __name__ == "__main__":
    main()
