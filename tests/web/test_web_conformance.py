"""The page in a browser holds the conformance kit, as any agent has to: docs/conformance.md.

What is played here by default is what a browser could do otherwise than an agent in Python: storage, restarts, crashes,
its own transport, trainer and signatures. ``APPORTION_TEST_CONFORMANCE=all`` plays all of it (75 scenarios, about three
minutes), or the scenarios that it names. Needs Chromium, the built page and a broker.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from coordinator.conformance.findings import Finding
from coordinator.conformance.page_door import RUNTIME, PageDriver
from coordinator.conformance.session import KitOptions, named_scenarios, run_conformance
from tests.web.phone import Phone
from tests.web.phone_driver import PhoneDriver, add_files

WHICH = "APPORTION_TEST_CONFORMANCE"

PART = (
    "hello-says-who-and-what",
    "hello-after-every-reconnect",
    "goodbye-when-it-is-stopped",
    "training-gives-the-reference",
    "epochs-keep-the-incomplete-batch",
    "augmentation-is-drawn-from-its-stream",
    "turns-run-their-programs-in-cycles",
    "batch-norm-moves-its-running-statistics",
    "micro-batches-add-up-to-a-step",
    "masked-weights-travel-as-kept-entries",
    "order-after-it-was-done-is-reported-again",
    "settled-order-is-refused-as-replayed",
    "newer-order-takes-the-place-of-the-old",
    "deadline-ends-the-work",
    "killed-in-training-it-starts-again-from-the-order",
    "lost-blocks-are-asked-for-again",
    "blocks-that-make-no-sense-are-not-used",
    "compressed-blob-is-decoded-or-refused-by-name",
    "bulk-address-is-preferred",
    "cut-connection-does-not-lose-the-update",
    "order-over-the-budget",
    "data-that-cannot-be-read",
    "forgery-under-the-assignment-in-hand",
    "messages-of-the-device-are-signed",
    "every-message-keeps-the-rules",
)


@pytest.fixture
def driver(chromium: Browser) -> Iterator[PhoneDriver]:
    """The page, not started yet."""
    driver = PhoneDriver(chromium)
    yield driver
    driver.close()


def said(finding: Finding) -> None:
    """A row of the table, with ``pytest -s``."""
    print(f"{finding.outcome:14} {finding.wall_s:6.1f} s  {finding.scenario}: {finding.seen}", flush=True)


@pytest.mark.broker
def test_page_holds_the_kit(driver: PhoneDriver, tmp_path: Path) -> None:
    named = os.environ.get(WHICH, "")
    scenarios = named_scenarios(() if named == "all" else tuple(named.split()) or PART)
    options = KitOptions(runtime=RUNTIME, plain_bulk=True, patience=2.0, artifacts=tmp_path)
    findings = run_conformance(driver, scenarios, options=options, tell=said)
    # Not applicable counts as well: all of it is, to this agent and this driver.
    assert {f.scenario: f"{f.outcome}: {f.seen}" for f in findings if f.outcome != "ok"} == {}
    assert [f.scenario for f in findings] == [s.name for s in scenarios]


class Owner(io.StringIO):
    """Reads what the kit prints, opens the link, joins and adds the data, as somebody does by hand."""

    def __init__(self, phone: Phone) -> None:
        super().__init__()
        self._phone = phone

    def flush(self) -> None:
        """A line is whole."""
        told = json.loads(self.getvalue())
        self._phone.join(told["link"])
        add_files(self._phone, [Path(path) for path in told["data"]])
        self._phone.tab("training")


@pytest.mark.broker
def test_page_is_attached_by_hand(chromium: Browser, tmp_path: Path) -> None:
    phone = Phone(chromium)
    names = ("hello-says-who-and-what", "training-gives-the-reference", "goodbye-when-it-is-stopped")
    scenarios = named_scenarios((*names, "messages-of-the-device-are-signed"))
    options = KitOptions(runtime=RUNTIME, patience=2.0, artifacts=tmp_path)
    with contextlib.closing(PageDriver(tell=Owner(phone))) as driver:
        findings = run_conformance(driver, scenarios, options=options, tell=said)
    phone.close()
    by_hand = {"goodbye-when-it-is-stopped": "not applicable"}
    assert {f.scenario: f.outcome for f in findings} == {s.name: by_hand.get(s.name, "ok") for s in scenarios}
