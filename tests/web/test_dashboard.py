"""The dashboard in a browser: each figure is the ledger's, for everybody, quick with thousands of devices."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from coordinator.cli.watch import served
from coordinator.history.live import LiveState
from tests.web.conftest import chromium_path
from tests.web.dashboard_site import ROUNDS, followed_run
from tests.web.made_run import make_run
from tests.web.net_log import arguments, read_net_log
from tests.web.shown_figures import (
    Rows,
    check_events,
    check_fleet,
    check_header,
    check_memory,
    check_model,
    check_results,
    check_round,
    facts,
    table,
)
from tests.web.test_accessibility import AXE, TOO_WIDE, violations

VIEWS = ("fleet", "rounds", "memory", "model", "results", "events", "device/pi-0002")
SCREENS = ({"width": 1280, "height": 900}, {"width": 390, "height": 844})
PAINT_S, UPDATE_MS = 5.0, 500.0
"""Of a machine that does other things as well; docs/dashboard.md has what was measured."""


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda told: problems.append(told.text) if told.type == "error" else None)
    yield page
    context.close()
    # The browser tells of answers that refuse, and of a server that has ended, as errors of the page's.
    assert [each for each in problems if not re.search(r"status of 4\d\d|net::ERR_", each)] == []


def show(page: Page, view: str) -> None:
    page.evaluate("view => { location.hash = view }", view)


def agrees(check: Callable[[], None], within_s: float = 10.0) -> None:
    """``check`` passes within that time: the page is a second behind the ledger, and a deadline may pass meanwhile."""
    give_up_at = time.monotonic() + within_s
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.2)


def test_every_figure_of_a_run_under_way_is_the_ledgers(page: Page, tmp_path: Path, exports: Path) -> None:
    with followed_run(tmp_path, exports) as run:
        rows = Rows(tmp_path)
        page.goto(run.link)
        expect(page.locator("#name")).to_have_text("small")
        assert "token" not in page.url
        run.start()
        devices = page.get_by_role("table", name="Devices", exact=True)
        expect(devices.get_by_role("row").filter(has_text="dies")).to_contain_text("Away", timeout=60_000)
        expect(devices.get_by_role("row").filter(has_text="dies")).to_contain_text("connection lost")
        expect(devices.get_by_role("row").filter(has_text="refuses")).to_contain_text("Refused")
        expect(devices.get_by_role("row").filter(has_text="refuses")).to_contain_text("peak 90.0 MB, 80.0 MB allowed")
        expect(devices.get_by_role("row").filter(has_text="works-2")).to_contain_text("Training 3/30")
        expect(page.locator("#state")).to_have_text("running")

        # An update of the open round is set aside from the page, with what the page was given of the token.
        show(page, "device/works-1")
        expect(page.get_by_role("table", name="Work of works-1")).to_contain_text("reported")
        page.get_by_label("Reason").fill("seen in the test")
        page.get_by_role("button", name="Quarantine").click()
        page.get_by_role("button", name="Yes, quarantine").click()
        expect(page.locator("#view")).to_contain_text("is set aside", timeout=10_000)
        ((code, evidence),) = rows.all("SELECT code, evidence FROM quarantine")
        assert (code, json.loads(evidence)["reason"]) == ("by-hand", "seen in the test")
        show(page, "rounds")
        expect(page.get_by_role("table", name="Devices of the round")).to_contain_text("set aside: by-hand")
        agrees(lambda: check_round(page, rows, 0, 0))

        run.wait()
        expect(page.locator("#facts")).to_contain_text(f"{ROUNDS} of {ROUNDS}", timeout=20_000)
        check_header(page, rows, ROUNDS)
        for name in page.get_by_label("Round", exact=True).evaluate("select => [...select.options].map(o => o.value)"):
            page.get_by_label("Round", exact=True).select_option(name)
            round_index, attempt = (int(part) for part in name.split("."))
            there = rows.one("SELECT COUNT(*) FROM assignments WHERE round = ? AND attempt = ?", round_index, attempt)
            expect(page.locator("#view dd").nth(1)).to_have_text(str(there))
            agrees(lambda here=(round_index, attempt): check_round(page, rows, *here))  # type: ignore[misc]
        _check_others(page, rows, ROUNDS)
        states = {line["Device"]: line["State"] for line in table(page, "Devices")}
        assert states["dies"] == "Away"


def _check_others(page: Page, rows: Rows, rounds: int) -> None:
    show(page, "memory")
    expect(page.get_by_role("table", name="Memory and step time by device")).to_be_visible()
    check_memory(page, rows)
    show(page, "model")
    expect(page.get_by_role("table", name="Layers")).to_be_visible()
    expect(page.locator("#view")).to_contain_text(f"{rounds} rounds")
    check_model(page, rows)
    show(page, "results")
    expect(page.get_by_role("table", name="Scores by capacity level")).to_be_visible()
    check_results(page, rows, rounds - 1)
    show(page, "events")
    expect(page.get_by_role("table", name="Ledger events")).to_be_visible()
    check_events(page, rows)
    show(page, "fleet")
    expect(page.get_by_role("table", name="Devices", exact=True)).to_be_visible()
    check_fleet(page, rows)


def test_wrong_token_says_what_to_do_and_the_right_one_pauses(page: Page, tmp_path: Path) -> None:
    make_run(tmp_path, devices=8, rounds=4)
    with served(tmp_path) as (address, link):
        page.goto(address)
        page.get_by_text("Pause, drain or stop the run").click()
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Use it").click()
        expect(page.locator("#requests")).to_contain_text("the token is not the one of this dashboard; copy it from")
        assert Rows(tmp_path).all("SELECT * FROM wishes") == []
        page.get_by_label("Token").fill(link.partition("#token=")[2])
        page.get_by_role("button", name="Use it").click()
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Yes, pause").click()
        expect(page.locator("#state")).to_have_text("paused", timeout=10_000)
        assert Rows(tmp_path).all("SELECT name, value FROM wishes") == [("control", "pause")]
        assert "apportion" in Rows(tmp_path).one("SELECT actor FROM audit_log WHERE action = 'run-asked'")


def test_finished_run_is_shown_from_its_ledger_alone(page: Page, tmp_path: Path) -> None:
    make_run(tmp_path, devices=8, rounds=6, finished=True)
    (tmp_path / "config.toml").unlink()
    with served(tmp_path) as (address, _):
        page.goto(address)
        expect(page.locator("#state")).to_have_text("finished")
        assert facts(page, "header")["rounds done"] == "6 of 6"
        show(page, "events")
        expect(page.get_by_role("table", name="Ledger events")).to_be_visible()
        check_events(page, Rows(tmp_path))
        expect(page.get_by_text("Pause, drain or stop the run")).to_be_hidden()


def test_every_view_is_for_everybody_in_both_schemes_and_widths(chromium: Browser, tmp_path: Path) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not here: make web installs it")
    make_run(tmp_path, devices=40, rounds=8)
    wrong: list[str] = []
    with served(tmp_path) as (_, link):
        context = chromium.new_context(bypass_csp=True)
        context.add_init_script(path=AXE)
        page = context.new_page()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            for screen in SCREENS:
                page.set_viewport_size(screen)
                page.goto(link)
                expect(page.locator("#name")).to_have_text("digits-40")
                if not page.locator("details.box[open]").count():
                    page.get_by_text("Pause, drain or stop the run").click()
                for view in VIEWS:
                    show(page, view)
                    page.wait_for_timeout(400)
                    where = f"{view}, {scheme}, {screen['width']} px"
                    wrong += [f"{where}: {each}" for each in violations(page)]
                    scrolls, _ = page.evaluate(TOO_WIDE)
                    wrong += [f"{where}: scrolls sideways"] * scrolls
        context.close()
    assert wrong == []


def test_keyboard_reaches_views_devices_and_requests(page: Page, tmp_path: Path) -> None:
    make_run(tmp_path, devices=8, rounds=3)
    with served(tmp_path) as (_, link):
        page.goto(link)
        expect(page.locator("#name")).to_have_text("digits-8")
        reached: list[str] = []
        for _ in range(60):
            page.keyboard.press("Tab")
            at = page.evaluate("() => document.activeElement.textContent.trim()")
            reached.append(at)
            if at == "pi-0000":
                break
        assert "Skip to the content" in reached
        assert {"Pause, drain or stop the run", "Rounds", "Events", "pi-0000"} <= set(reached)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="pi-0000")).to_be_visible()


def test_no_request_leaves_the_page(chromium: Browser, tmp_path: Path) -> None:
    make_run(tmp_path / "run", devices=8, rounds=3)
    log = tmp_path / "net.json"
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with served(tmp_path / "run") as (address, link):
        browser = chromium.browser_type.launch(executable_path=chromium_path(), args=[*sandbox, *arguments(log)])
        page = browser.new_page()
        page.goto(link)
        expect(page.locator("#name")).to_have_text("digits-8")
        for view in VIEWS:
            show(page, view)
            page.wait_for_timeout(300)
        browser.close()
        found = read_net_log(log, page=address)
    assert found.asked == {address.removeprefix("http://")}
    token = link.partition("#token=")[2].encode()
    assert not any(b"GET" in request and token in request for request in found.requests)


@pytest.mark.slow
def test_thousands_of_devices_and_hundreds_of_rounds_are_quick(chromium: Browser, tmp_path: Path) -> None:
    size = (
        {"devices": 2000, "rounds": 500} if os.environ.get("APPORTION_TEST_SCALE") else {"devices": 2000, "rounds": 50}
    )
    made = Path(os.environ["APPORTION_TEST_SCALE"]) if os.environ.get("APPORTION_TEST_SCALE") else tmp_path
    if not (made / "ledger.sqlite").is_file():
        make_run(made, **size)
    with served(made) as (_, link):
        page = chromium.new_context(viewport={"width": 1280, "height": 900}).new_page()
        began = time.monotonic()
        page.goto(link)
        expect(page.get_by_role("table", name="Devices", exact=True)).to_be_visible(timeout=20_000)
        shown_s = time.monotonic() - began
        assert facts(page, "header")["rounds done"] == f"{size['rounds'] - 1} of {size['rounds']}"
        paints = page.evaluate(
            "() => Object.fromEntries([...performance.getEntriesByType('paint'), "
            "performance.getEntriesByName('first-data')[0]].map(each => [each.name, each.startTime]))"
        )
        rows = page.locator('table[aria-label="Devices"] tbody tr').count()
        assert rows < 100  # of 2,000: the others are drawn when they are scrolled to
        updates = [
            _update_ms(page, made, view) for view in ("fleet", "memory", "rounds", "results", "events") for _ in "ab"
        ]
    told = f"paints {paints}, shown after {shown_s:.2f} s, updates {[round(each) for each in updates]} ms"
    print(f"{size}: {told}")
    assert paints["first-contentful-paint"] / 1000 <= PAINT_S, told
    assert shown_s <= PAINT_S, told
    assert max(updates) <= UPDATE_MS, told


def _update_ms(page: Page, folder: Path, view: str) -> float:
    """Milliseconds from a change's arrival to the next frame that shows it, a quarter of the fleet being changed."""
    show(page, view)
    page.wait_for_timeout(1500)
    before = page.evaluate("() => performance.getEntriesByName('change').length")
    file = folder / "live.json"
    live = msgspec.json.decode(file.read_bytes(), type=LiveState)
    devices = tuple(
        msgspec.structs.replace(device, step=device.step + 1, loss=(device.loss or 0) * 0.99)
        if place % 4 == 0
        else device
        for place, device in enumerate(live.devices)
    )
    new = file.with_name(".new")
    new.write_bytes(msgspec.json.encode(msgspec.structs.replace(live, written_at=live.written_at + 1, devices=devices)))
    new.replace(file)
    page.wait_for_function("count => performance.getEntriesByName('change').length > count", arg=before, timeout=20_000)
    durations: list[Any] = page.evaluate("() => performance.getEntriesByName('change').map(each => each.duration)")
    return float(max(durations[before:]))
