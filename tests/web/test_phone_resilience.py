"""A phone that dies, or loses its network, in every part of a round: it goes on, and nothing is done or counted twice.

Real Chromium, a real run with its broker, the built page. Where a moment has to be met exactly, a
request is left without an answer, or what the page sends is dropped from some block on; what breaks then is real.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from playwright.sync_api import Error as PlaywrightError

from tests.web.interrupted_run import PATIENCE_S, InterruptedRun, give_examples, interrupted_run
from tests.web.phone import Phone, wait_until

pytestmark = pytest.mark.broker


def crash(phone: Phone) -> None:
    """The renderer's process ends, as phones end the pages that take too much."""
    with contextlib.suppress(PlaywrightError):  # that it has crashed
        phone.page.goto("chrome://crash", timeout=5_000)


def weights_pieces(run: InterruptedRun, round_number: int) -> list[int]:
    """First bytes of the requests for the weights of that round."""
    digest = run.assignment(round_number).weights_digest
    return [
        int(range_.removeprefix("bytes=").partition("-")[0]) for asked, range_ in run.trace.asked if asked == digest
    ]


def test_phone_that_is_killed_goes_on_where_it_was(chromium: Browser, tmp_path: Path) -> None:
    with interrupted_run(tmp_path, chromium, rounds=4) as run:
        phone, address = run.phone, run.site.address

        with run.fetch_held(at_least=1) as held:
            give_examples(phone, tmp_path)
            wait_until(lambda: held, PATIENCE_S, "no second piece", phone.page)
            run.wait_for("Getting the model", 1)
            phone.page.close()
        phone.reopen(address)

        run.wait_for("Training", 2)
        crash(phone)
        phone.reopen(address)

        run.wait_for("Training", 3)
        phone.page.reload()

        run.wait_for("Training", 4)
        run.link_dies_after(3)
        run.wait_for("Sending the result", 4)
        # The words are there before the first block is: a few arrive, what follows them is lost.
        wait_until(lambda: len(run.puts(4)) > 3, PATIENCE_S, "no block after the link's end", phone.page)
        before = run.puts(4)
        phone.reopen(address)

        run.check()
        # What was trained when the tab was killed was not trained again, but offered from where the coordinator was.
        last = run.assignment(4).assignment_id
        assert len({each.body["update"]["digest"] for each in run.trace.said("offer", last)}) == 1
        assert run.trace.said("hello", last)[-1].body["state"] == "uploading"
        assert min(run.puts(4)[len(before) :]) > 0
        # What had come of the weights when the tab was killed was kept.
        assert len([start for start in weights_pieces(run, 1) if start == 0]) == 1
        # Server and broker have ended with the run; the page shows what it saw last.
        phone.context.set_offline(True)
        phone.reopen(address)
        expect(phone.page.locator("#view-training")).to_contain_text(re.compile("Last: round 4", re.IGNORECASE))


def test_phone_that_is_offline_goes_on_when_it_is_not(chromium: Browser, tmp_path: Path) -> None:
    with interrupted_run(tmp_path, chromium, rounds=3, broker="embedded") as run:
        phone = run.phone

        with run.fetch_held(at_least=1) as held:
            give_examples(phone, tmp_path)
            wait_until(lambda: held, PATIENCE_S, "no second piece", phone.page)
            phone.context.set_offline(True)
            for route in held:
                route.continue_()
            phone.page.wait_for_selector(".connection[data-connection=offline]")
        phone.context.set_offline(False)

        run.wait_for("Training", 2)
        phone.context.set_offline(True)
        phone.page.wait_for_selector(".connection[data-connection=offline]")
        assert "offline, the result is sent later" in phone.words()
        run.wait_for("Sending the result", 2)
        phone.context.set_offline(False)

        run.wait_for("Training", 3)
        run.link_dies_after(3)
        run.wait_for("Sending the result", 3)
        phone.context.set_offline(True)
        phone.page.wait_for_selector(".connection[data-connection=offline]")
        phone.page.reload()
        run.wait_for("Sending the result", 3)
        phone.context.set_offline(False)

        run.check()
        for number in (1, 2, 3):
            # It was never told to begin again: the same order each time, one update of it.
            said = run.trace.said("offer", run.assignment(number).assignment_id)
            assert len({each.body["update"]["digest"] for each in said}) == 1
        assert len([start for start in weights_pieces(run, 1) if start == 0]) == 1
