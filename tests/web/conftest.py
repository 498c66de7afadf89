"""A real browser and the built page. What this machine lacks is skipped with its reason."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

VARIABLE = "APPORTION_TEST_WEB"
CHROMIUM = "APPORTION_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def pytest_runtest_setup() -> None:
    """A browser takes its time: only where it was asked for."""
    if not os.environ.get(VARIABLE):
        pytest.skip(f"browsers have a target of their own, make test-web, which sets {VARIABLE}")


def chromium_path() -> Path | None:
    """The program that :data:`CHROMIUM` names, or the first of :data:`NAMES` on PATH."""
    named = os.environ.get(CHROMIUM)
    if named:
        found = shutil.which(named)
        assert found, f"{CHROMIUM}={named} is no program"
        return Path(found)
    return next((Path(found) for name in NAMES if (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A headless Chromium of this machine; each test makes its own context."""
    path = chromium_path()
    if path is None:
        pytest.skip(f"no Chromium is here (Debian: chromium); {CHROMIUM} names one elsewhere")
    # Chromium refuses to run as root with its sandbox, and containers often have no namespaces for it.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()
