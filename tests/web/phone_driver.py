"""The conformance kit's agent as a page in a browser: the production page, from a server of its own, driven by hand.

What the driver does is what an owner does: open the link, add the data, switch taking part on and off. Only the memory
budget is written where the page keeps it, since the kit wants a figure and the page has a stepper.
"""

from __future__ import annotations

import base64
import contextlib
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, expect
from playwright.sync_api import Error as PlaywrightError
from starlette.types import ASGIApp

from coordinator.conformance import Connection
from coordinator.fleet.claim_desk import Answer, ClaimDesk
from coordinator.web.app import web_application
from coordinator.web.headers import WithHeaders, security_headers
from coordinator.web.pages import Pages
from coordinator.web.server import WebServer
from edge.contracts.claims import ClaimLink, KeyClaimReply, KeyClaimRequest
from tests.web.phone import Phone

RUNTIME = "onnxruntime_web"
TOKEN = f"{'0' * 16}.{'k' * 43}"

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


class KitDesk(ClaimDesk):
    """Lets one browser in, to the kit's broker instead of one of the authority's.

    Attributes:
        connection: what is handed out.
        public_key: of the last claim; SubjectPublicKeyInfo, DER.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(Path(connection.state), federation=connection.federation, web_socket=connection.web_socket_url)
        self.connection = connection
        self.public_key = b""

    def admitted(self, body: bytes, address: str, *, is_key: bool) -> Answer:
        """Any token is good: the link was made by this file."""
        asked, given = KeyClaimRequest.from_bytes(body), self.connection
        self.public_key = base64.b64decode(asked.public_key)
        reply = KeyClaimReply(
            given.device, given.federation, given.web_socket_url, given.user, given.password, given.trust
        )
        return Answer(200, {"Content-Type": "application/json"}, reply.to_bytes())  # type: ignore[arg-type]


class PhoneDriver:
    """An :class:`coordinator.conformance.AgentDriver`; each ``state`` of the kit is a browser profile of its own."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._phones: dict[str, Phone] = {}
        self._keys: dict[str, bytes] = {}
        self._running: str | None = None
        self._desk: KitDesk | None = None
        self._server: WebServer | None = None
        self._open = contextlib.ExitStack()

    def close(self) -> None:
        """The browser profiles and the page's server go."""
        for phone in self._phones.values():
            phone.close()
        self._open.close()

    def start(self, connection: Connection) -> None:
        """Opens the page, in a browser profile that has joined and has its data, and has it take part."""
        phone, self._running = self._phones.get(connection.state), connection.state
        if phone is None:
            phone = self._phones[connection.state] = self._joined(connection)
        elif phone.page.is_closed():
            phone.page = phone.context.new_page()
            phone.open(self._address())
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

    def _address(self) -> str:
        assert self._server is not None
        return self._server.address

    def _serve(self, connection: Connection) -> KitDesk:
        if self._desk is None:
            self._desk = KitDesk(connection)
            socket = connection.web_socket_url
            app = web_application(Pages(), self._desk, web_socket=socket)
            self._server = self._open.enter_context(WebServer("http://127.0.0.1:0", _with_blobs_elsewhere(app, socket)))
        self._desk.connection = connection
        return self._desk

    def _joined(self, connection: Connection) -> Phone:
        desk = self._serve(connection)
        phone = Phone(self._browser)
        phone.open(self._address())
        budget = connection.budget_mb * 2**20
        # The agent starts when the data are there: the kit's first hello counts them.
        phone.evaluate(_CHOOSE, {"wantsTraining": False, "budgetBytes": budget})
        # Another address than the last one, or the page would not be loaded anew.
        phone.page.goto("about:blank")
        phone.join(ClaimLink(self._address(), TOKEN, "0" * 64, connection.device).to_text())
        self._keys[connection.state] = desk.public_key
        self._add(phone, sorted(Path(connection.data).glob("*.npz")))
        return phone

    def _add(self, phone: Phone, paths: list[Path]) -> None:
        phone.tab("data")
        phone.page.get_by_role("button", name="Table or NumPy file").click()
        for path in paths:
            with phone.page.expect_file_chooser() as chosen:
                phone.page.get_by_text("Choose a file", exact=True).click()
            chosen.value.set_files(path)
            entry = phone.page.locator("#view-data").get_by_text(path.name, exact=True)
            expect(entry.or_(phone.page.locator(".problem:not([hidden]) h2")).first).to_be_visible(timeout=20_000)


def _with_blobs_elsewhere(app: ASGIApp, web_socket: str) -> ASGIApp:
    """The production page's headers, but blobs may come from another port of this machine: the kit's server of them."""
    headers = security_headers(web_socket)
    policy = headers["Content-Security-Policy"]
    port = urlsplit(web_socket).netloc
    assert f" ws://{port}" in policy
    allowed = policy.replace(f" ws://{port}", f" ws://{port} http://127.0.0.1:*")
    return WithHeaders(app, {"Content-Security-Policy": allowed})
