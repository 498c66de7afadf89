"""What happens around a phone in the middle of a round: it is hidden, opened twice, its broker or coordinator dies.

Real Chromium, a real run with Mosquitto, the built page.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, expect

from tests.web.interrupted_run import PATIENCE_S, InterruptedRun, give_examples, interrupted_run
from tests.web.phone import Phone, wait_until
from tests.web.windowed_browser import windowed_browser

pytestmark = pytest.mark.broker


def brokers_of(run: InterruptedRun) -> list[psutil.Process]:
    """The Mosquitto that the run has started, if it is there now."""
    assert run.site.process is not None
    return [p for p in psutil.Process(run.site.process.pid).children(recursive=True) if p.name() == "mosquitto"]


def test_phone_that_is_hidden_waits_and_says_so(chromium: Browser, tmp_path: Path) -> None:
    with (
        windowed_browser(chromium) as context,
        interrupted_run(tmp_path, Phone(context), rounds=2) as run,
    ):
        phone = run.phone
        give_examples(phone, tmp_path)
        run.wait_for("Training", 1)
        other = phone.context.new_page()
        wait_until(lambda: phone.evaluate("document.visibilityState") == "hidden", 10, "a hidden page", other)
        wait_until(
            lambda: any(each.body["waiting_for"] == "hidden" for each in run.trace.said("heartbeat")),
            PATIENCE_S,
            "that the coordinator is told",
            other,
        )
        told = run.trace.said("heartbeat", run.assignment(1).assignment_id)[-1].body
        assert (told["state"], told["reason"]) == ("waiting", "the page is not visible, training goes on when it is")
        assert told["step"] < told["total_steps"]
        assert run.committed() == 0
        assert run.phone.evaluate("document.visibilityState") == "hidden"

        phone.page.bring_to_front()
        wait_until(lambda: run.committed() == 1, PATIENCE_S, "round 1, shown again", phone.page)
        run.wait_for("Training", 2)
        phone.tab("device")
        phone.page.get_by_role("switch", name="Go on when hidden").click()
        other.bring_to_front()
        wait_until(lambda: phone.evaluate("document.visibilityState") == "hidden", 10, "a hidden page", other)
        run.check(other)


def test_second_tab_says_so_and_takes_over(chromium: Browser, tmp_path: Path) -> None:
    with interrupted_run(tmp_path, chromium, rounds=2) as run:
        first = run.phone.page
        second = run.phone.context.new_page()
        second.goto(run.site.address)
        expect(second.locator("#view-training .state")).to_have_text("Open in another tab", timeout=15_000)
        expect(second.locator("#view-training .lead")).to_contain_text("When it is closed, this one goes on.")
        first.bring_to_front()  # a page behind another is not drawn
        connections = len(run.trace.connections)
        give_examples(run.phone, tmp_path)
        run.wait_for("Training", 1)
        expect(second.locator("#view-training .state")).to_have_text("Open in another tab")
        assert len(run.trace.connections) == connections, "the second tab has connected, too"
        run.phone.tab("device")
        first.get_by_role("switch", name="Also on mobile data").click()
        expect(first.get_by_role("switch", name="Also on mobile data")).to_be_checked()
        run.phone.page = second
        first.close()
        run.check()
        # The owner's "as asked": as many threads as there are, of which a step takes two unless more were measured.
        cores = second.evaluate("navigator.hardwareConcurrency")
        assert run.trace.said("hello")[0].body["profile"]["max_threads"] == {"onnxruntime_web": min(8, cores)}
        assert [each.body["threads"] for each in run.trace.said("report")] == [min(2, cores)] * 2
        # It sees the examples that the first was given, and does what was chosen there.
        run.phone.tab("device")
        expect(second.get_by_role("switch", name="Also on mobile data")).to_be_checked()
        run.phone.tab("data")
        run.phone.wait_for_words("300 examples")


def test_round_survives_its_broker_and_its_coordinator(chromium: Browser, tmp_path: Path) -> None:
    with interrupted_run(tmp_path, chromium, rounds=2) as run:
        give_examples(run.phone, tmp_path)
        run.wait_for("Training", 1)
        (before,) = brokers_of(run)
        before.kill()
        wait_until(
            lambda: [b.pid for b in brokers_of(run)] not in ([], [before.pid]), 15, "another broker", run.phone.page
        )
        run.wait_for("Training", 2, timeout_s=60)
        run.site.kill()
        run.site.start(resume=True)
        run.check()
