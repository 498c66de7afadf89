"""The page for everybody: axe finds nothing in any view, light or dark, on a phone and on a small one; a keyboard alone
reaches everything from the link to deleting the data; state changes are spoken; text may be twice as large.

The page is the built one and its run a real one; of the phone only its battery is written here, since a machine for
tests has none, and it is what makes the phone wait. Needs Chromium, the built page with axe-core beside it, a broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.web.federation_site import ROOT, Site, federation_site
from tests.web.phone import Phone, Tab

pytestmark = pytest.mark.broker

AXE = ROOT / "edge/web/node_modules/axe-core/axe.min.js"
SCREENS = ({"width": 390, "height": 844}, {"width": 320, "height": 640})
TARGET_PX = 44
PANELS = ("Folder of images", "Images of one class", "Table or NumPy file", "Camera", "Motion")
EXAMPLES = 120

RUN = """
[federation]
name = "everybody"
seed = 1
rounds = 2

[model]
build = "mlp"
input = [64]
classes = 10
options = { hidden = [32] }

[method]
name = "fedavg"

[training]
epochs = 100000
batch = 32
lr = 0.01

[evaluation]
every = 0

[data]
source = "digits"
devices = 1

[cohort]
size = 1
min-reports = 1
deadline-s = 600
join-timeout-s = 300

[runtime]
name = ["onnxruntime", "onnxruntime_web"]
"""
"""More epochs in a round than anybody waits for: the phone trains until it is told not to."""

BATTERY = """
const battery = Object.assign(new EventTarget(), { level: 0.8, charging: false });
navigator.getBattery = () => Promise.resolve(battery);
window.setBattery = level => {
  battery.level = level;
  for (const name of ["levelchange", "chargingchange"]) battery.dispatchEvent(new Event(name));
};
"""

SMALL_TARGETS = """least => [...document.querySelectorAll("button, a, input, select, summary")]
  .filter(each => each.checkVisibility({ visibilityProperty: true }))
  .map(each => {
    const label = each.closest("label") ?? (each.id && document.querySelector(`label[for="${each.id}"]`));
    const boxes = [each, ...(label ? [label] : [])].map(one => one.getBoundingClientRect());
    const size = side => Math.max(...boxes.map(box => box[side]));
    return [each.outerHTML.slice(0, 80), size("width"), size("height")];
  })
  .filter(([, width, height]) => width < least - 0.5 || height < least - 0.5)"""

TOO_WIDE = """() => {
  const width = document.documentElement.clientWidth;
  const wide = [...document.body.querySelectorAll("*")].filter(each =>
    each.checkVisibility() && !each.closest(".unseen, .log") && each.getBoundingClientRect().right > width + 0.5);
  return [document.documentElement.scrollWidth > width, wide.map(each => each.outerHTML.slice(0, 80))];
}"""

CUT_OFF = """() => [...document.querySelectorAll("main *, nav *, header *")]
  .filter(each => each.checkVisibility() && each.children.length === 0)
  .filter(each => !each.closest(".unseen, .log, .name, svg, input"))
  .filter(each => each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 0
    && getComputedStyle(each).overflowX !== "visible")
  .map(each => each.outerHTML.slice(0, 80))"""

FOCUS = """() => {
  const at = document.activeElement;
  if (at === null || at === document.body) return null;
  const box = at.getBoundingClientRect();
  const shown = at.matches("input[type=file]") ? at.parentElement : at;
  const style = getComputedStyle(shown);
  const middle = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  return {
    name: at.getAttribute("aria-label") ?? at.labels?.[0]?.textContent ?? at.textContent,
    outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    onTop: middle !== null && (at.contains(middle) || shown.contains(middle)),
  };
}"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, dict[str, str]]]:
    with federation_site(tmp_path_factory.mktemp("everybody"), RUN, phones=["device-00", "device-01"]) as found:
        found[0].start()
        yield found


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as an .npz: {EXAMPLES} examples of ten classes."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "digits.npz"
    np.savez(path, x=rng.random((EXAMPLES, 64), dtype=np.float32), y=np.arange(EXAMPLES) % 10)
    return path


@pytest.fixture
def phone(chromium: Browser) -> Iterator[Phone]:
    """With axe in its pages, and a battery."""
    if not AXE.exists():
        pytest.skip(f"{AXE.relative_to(ROOT)} is not here: make web installs it")
    phone = Phone(chromium)
    phone.context.add_init_script(path=AXE)
    phone.context.add_init_script(BATTERY)
    yield phone
    phone.close()


def violations(page: Page, *rules: str) -> list[str]:
    """What axe finds, in words; by ``rules`` only where some are named."""
    options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    found: dict[str, Any] = page.evaluate("options => axe.run(document, options)", options)
    return [f"{each['id']}: {node['html'][:120]}" for each in found["violations"] for node in each["nodes"]]


def check(page: Page, name: str) -> None:
    """Axe in light and dark, sizes of what is touched, and nothing beside the screen; on both screens."""
    wrong: list[str] = []
    for screen in SCREENS:
        page.set_viewport_size(screen)
        where = f"{name}, {screen['width']} px"
        wrong += [f"{where}: small: {each}" for each in page.evaluate(SMALL_TARGETS, TARGET_PX)]
        scrolls, wide = page.evaluate(TOO_WIDE)
        wrong += [f"{where}: scrolls sideways"] * scrolls + [f"{where}: too wide: {each}" for each in wide]
        wrong += [f"{where}: {each}" for each in violations(page)]
        page.emulate_media(color_scheme="dark")  # other colours, and nothing else
        wrong += [f"{where}, dark: {each}" for each in violations(page, "color-contrast")]
        page.emulate_media(color_scheme="light")
    page.set_viewport_size(SCREENS[0])
    assert wrong == []


def check_large_text(page: Page, name: str) -> None:
    """Text at 200 %: nothing is cut off, and nothing lies beside the screen."""
    page.evaluate("() => { document.documentElement.style.fontSize = '200%' }")
    scrolls, wide = page.evaluate(TOO_WIDE)
    cut = page.evaluate(CUT_OFF)
    page.evaluate("() => { document.documentElement.style.fontSize = '' }")
    assert (name, scrolls, wide, cut) == (name, False, [], [])


def tab_to(page: Page, name: str, *, most: int = 40) -> None:
    """Tab until ``name`` has the focus; on the way the focus is seen at every stop and never lost."""
    passed: list[str] = []
    for _ in range(most):
        page.keyboard.press("Tab")
        at = page.evaluate(FOCUS)
        if at is None:  # past the last one: the browser's own controls, then from the start
            continue
        assert (at["outlined"], at["onTop"]) == (True, True), at
        passed.append(at["name"].strip())
        if passed[-1] == name:
            return
    raise AssertionError(f"{name!r} is not reached by Tab: {passed}")


def spoken(page: Page) -> Locator:
    """Where state changes are said."""
    return page.locator("p.unseen[role=status][aria-live=polite]")


def test_every_view_is_accessible_in_both_schemes_and_widths(
    phone: Phone, running: tuple[Site, dict[str, str]], examples: Path
) -> None:
    site, links = running
    page = phone.page
    phone.open(site.address)
    check(page, "no link")
    check_large_text(page, "no link")
    page.get_by_label("Link that you were given").fill("https://somewhere.example/")
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".problem")).to_be_visible()
    check(page, "a problem")
    check_large_text(page, "a problem")
    page.goto("about:blank")
    phone.open(links["device-00"])
    check(page, "a link")
    page.get_by_role("button", name="Join", exact=True).click()
    page.wait_for_selector("body[data-phase=joined]")
    phone.wait_for_words("No examples yet")
    expect(spoken(page)).to_contain_text("No examples yet. Add some under Data")
    check(page, "nothing to train on")

    phone.tab("data")
    check(page, "no data")
    for panel in PANELS:
        page.get_by_role("button", name=panel).click()
        wrong = violations(page)
        assert (panel, wrong) == (panel, [])
    page.set_viewport_size(SCREENS[1])
    assert page.evaluate(TOO_WIDE) == [False, []]
    page.set_viewport_size(SCREENS[0])
    page.get_by_role("button", name=PANELS[-1]).click()
    phone.add_file(examples, examples=EXAMPLES)
    check(page, "data")
    check_large_text(page, "data")

    phone.tab("training")
    expect(page.locator(".state")).to_have_text("Training", timeout=30_000)
    expect(spoken(page)).to_have_text("Training")
    phone.wait_for_words("Round 1")
    check(page, "training")
    check_large_text(page, "training")
    phone.evaluate("setBattery(0.1)")
    expect(page.locator(".state")).to_have_text("Waiting: battery low", timeout=10_000)
    expect(spoken(page)).to_contain_text("Waiting: battery low.")
    expect(spoken(page)).to_contain_text("10")
    check(page, "waiting")
    others: tuple[Tab, ...] = ("device", "leaving")
    for tab in others:
        phone.tab(tab)
        check(page, tab)
        check_large_text(page, tab)
    phone.evaluate("setBattery(0.9)")
    phone.tab("training")
    expect(spoken(page)).to_have_text("Training", timeout=10_000)


def test_keyboard_alone_leads_from_the_link_to_deleting_the_data(
    phone: Phone, running: tuple[Site, dict[str, str]], examples: Path
) -> None:
    page = phone.page
    page.on("filechooser", lambda _: None)  # the browser hands choosers over from now on, not from just before the key
    phone.open(running[1]["device-01"])
    tab_to(page, "Join")
    page.keyboard.press("Enter")
    page.wait_for_selector("body[data-phase=joined]")
    tab_to(page, "Data")
    page.keyboard.press("Enter")
    tab_to(page, "Table or NumPy file")
    page.keyboard.press("Space")
    tab_to(page, "Choose a file")
    with page.expect_file_chooser() as chosen:
        page.keyboard.press("Enter")
    chosen.value.set_files(examples)
    expect(page.locator("#view-data")).to_contain_text(f"{EXAMPLES} examples", timeout=20_000)
    tab_to(page, "Train")
    page.keyboard.press("Enter")
    tab_to(page, "Take part")
    page.keyboard.press("Space")
    phone.wait_for_words("Stopped by you")
    expect(spoken(page)).to_have_text("Stopped by you")
    tab_to(page, "Data")
    page.keyboard.press("Enter")
    tab_to(page, "Delete all data")
    page.keyboard.press("Enter")
    assert page.evaluate(FOCUS)["name"] == "Keep"  # asked first, with the focus on what changes nothing
    page.keyboard.press("Space")
    assert page.evaluate(FOCUS)["name"] == "Delete all data"
    page.keyboard.press("Enter")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(FOCUS)["name"] == "Delete"
    page.keyboard.press("Enter")
    phone.wait_for_words("Nothing yet. What you add is kept on this phone only.")
    assert page.evaluate(FOCUS) is not None, "the focus is lost with the data"
    tab_to(page, "Device")


def test_nothing_moves_where_motion_is_not_wanted(phone: Phone, running: tuple[Site, dict[str, str]]) -> None:
    page = phone.page
    page.emulate_media(reduced_motion="reduce")
    phone.open(running[0].address)
    moving = """() => [...document.querySelectorAll("*")].map(each => getComputedStyle(each))
      .filter(style => parseFloat(style.transitionDuration) > 0.01 || style.animationName !== "none"
        || style.scrollBehavior === "smooth").length"""
    assert page.evaluate(moving) == 0
