"""The conformance kit's agent as a page in a browser: the production page, from a server of its own, driven by hand.

What the driver does is what an owner does: open the link, add the data, switch taking part on and off. Only the memory
budget is written where the page keeps it, since the kit wants a figure and the page has a stepper.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from playwright.sync_api import Browser, expect
from playwright.sync_api import Error as PlaywrightError

from coordinator.conformance.connection import Connection
from coordinator.conformance.page_door import PageDoor
from tests.web.phone import Phone

# Before the page's own scripts: what the owner chose earlier.
_CHOOSE = """async settings => {
  const opened = indexedDB.open("apportion-records", 1);
  const database = await new Promise((resolve, reject) => {
    opened.onupgradeneeded = () => opened.result.createObjectStore("records");
    opened.onsuccess = () => resolve(opened.result);
    opened.onerror = () => reject(opened.error);
  });
  const change = database.transaction("records", "readwrite");
  change.objectStore("records").put(settings, "page/settings");
  await new Promise(resolve => { change.oncomplete = resolve; });
  database.close();
}"""


class PhoneDriver:
    """A :class:`coordinator.conformance.connection.AgentDriver`; each ``state`` of the kit is a browser profile."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._phones: dict[str, Phone] = {}
        self._keys: dict[str, bytes] = {}
        self._running: str | None = None
        self._door: PageDoor | None = None

    def close(self) -> None:
        """The browser profiles and the page's server go."""
        for phone in self._phones.values():
            phone.close()
        if self._door is not None:
            self._door.close()

    def start(self, connection: Connection) -> None:
        """Opens the page, in a browser profile that has joined and has its data, and has it take part."""
        phone, self._running = self._phones.get(connection.state), connection.state
        if phone is None:
            phone = self._phones[connection.state] = self._joined(connection)
        elif phone.page.is_closed():
            phone.page = phone.context.new_page()
            assert self._door is not None
            phone.open(self._door.address)
        phone.tab("training")
        part = phone.page.get_by_role("switch", name="Take part")
        if not part.is_checked():
            part.click()

    def stop(self) -> None:
        """Switches taking part off, waits for the goodbye, and closes the tab."""
        if (phone := self._phone()) is not None:
            phone.tab("training")
            phone.page.get_by_role("switch", name="Take part").click()
            phone.wait_for_words("Stopped by you", 15.0)
            expect(phone.page.locator("body")).to_have_attribute("data-phase", "joined")
            phone.page.close()
        self._running = None

    def kill(self) -> None:
        """The tab's process crashes."""
        if (phone := self._phone()) is not None:
            with contextlib.suppress(PlaywrightError):  # that it has crashed
                phone.page.goto("chrome://crash", timeout=5_000)
            phone.page.close()
        self._running = None

    def public_key(self) -> bytes:
        """Of the running page."""
        return self._keys[self._running] if self._running is not None else b""

    @property
    def phone(self) -> Phone:
        """The one whose page runs."""
        phone = self._phone()
        assert phone is not None
        return phone

    def _phone(self) -> Phone | None:
        return None if self._running is None else self._phones.get(self._running)

    def _joined(self, connection: Connection) -> Phone:
        if self._door is None:
            self._door = PageDoor(connection)
        self._door.connection = connection
        phone = Phone(self._browser)
        phone.open(self._door.address)
        # The agent starts when the data are there: the kit's first hello counts them.
        phone.evaluate(_CHOOSE, {"wantsTraining": False, "budgetBytes": connection.budget_mb * 2**20})
        phone.page.goto("about:blank")
        phone.join(self._door.link())
        self._keys[connection.state] = self._door.public_key
        add_files(phone, sorted(Path(connection.data).glob("*.npz")))
        return phone


def add_files(phone: Phone, paths: list[Path]) -> None:
    """Picks each and waits until it is listed, or a problem is told."""
    phone.tab("data")
    phone.page.get_by_role("button", name="Table or NumPy file").click()
    for path in paths:
        with phone.page.expect_file_chooser() as chosen:
            phone.page.get_by_text("Choose a file", exact=True).click()
        chosen.value.set_files(path)
        entry = phone.page.locator("#view-data").get_by_text(path.name, exact=True)
        expect(entry.or_(phone.page.locator(".problem:not([hidden]) h2")).first).to_be_visible(timeout=20_000)
