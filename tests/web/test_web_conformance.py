"""The page in a browser holds the conformance kit, as any agent has to: docs/conformance.md.

Needs: Chromium, a broker, the built page. ``APPORTION_TEST_CONFORMANCE=all`` plays all scenarios instead of a part.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from coordinator.conformance import Finding, KitOptions, run_conformance
from coordinator.conformance.session import named_scenarios
from tests.web.phone_driver import RUNTIME, PhoneDriver

WHOLE = "APPORTION_TEST_CONFORMANCE"


@pytest.fixture
def driver(chromium: Browser) -> Iterator[PhoneDriver]:
    """The page, not started yet."""
    driver = PhoneDriver(chromium)
    yield driver
    driver.close()


def said(finding: Finding) -> None:
    print(f"{finding.outcome:14} {finding.wall_s:6.1f} s  {finding.scenario}: {finding.seen}", flush=True)


@pytest.mark.broker
def test_page_holds_the_kit(driver: PhoneDriver, tmp_path: Path) -> None:
    names = os.environ.get(WHOLE, "")
    options = KitOptions(runtime=RUNTIME, plain_bulk=True, patience=2.0, artifacts=tmp_path)
    part = () if names == "all" else tuple(names.split()) or ("hello-says-who-and-what", "training-gives-the-reference")
    findings = run_conformance(driver, named_scenarios(part), options=options, tell=said)
    assert {f.scenario: f.seen for f in findings if f.outcome == "failed"} == {}
