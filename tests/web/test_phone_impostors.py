"""Impostors in a run: orders that come again or are forged, messages with another browser's key, and a phone that was
revoked while it took part.

The run is a real one over Mosquitto, started and told by ``apportion`` commands. The impostor on the way down has a
certificate of the fleet, which may publish to every device; the one on the way up has the phone's own password, but not
its key, which cannot be taken from the browser. Needs Chromium, the built page and Mosquitto.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, WebSocket, expect
from sklearn.datasets import load_digits

from coordinator.brokers.broker_files import fleet_files
from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.ledger.ledger import Ledger
from edge.contracts import topics
from edge.contracts.envelope import unseal
from edge.contracts.messages import Refuse
from edge.contracts.plan import WorkOrder
from tests.coordinator.identity.browser_device import BrowserDevice
from tests.coordinator.identity.browser_site import Client
from tests.web.federation_site import Site, federation_site
from tests.web.mqtt_packets import packets
from tests.web.phone import Phone, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed")]

FEDERATION, DEVICE = "impostors", "device-01"
EXAMPLES = 96

RUN = f"""
[federation]
name = "{FEDERATION}"
seed = 1
rounds = 400

[model]
build = "mlp"
input = [64]
classes = 10
options = {{ hidden = [48] }}

[method]
name = "fedavg"

[training]
epochs = 1
batch = 32
lr = 0.05

[data]
source = "digits"
scale = 0.0625

[evaluation]
every = 0

[cohort]
size = 1
min-reports = 1
deadline-s = 60
join-timeout-s = 60

[runtime]
name = ["onnxruntime_web"]
"""

ENROLLED = """async () => {
  const opened = indexedDB.open("apportion-records", 1);
  const database = await new Promise((resolve) => { opened.onsuccess = () => resolve(opened.result); });
  const asked = database.transaction("records").objectStore("records").get("identity/enrolled");
  const found = await new Promise((resolve) => { asked.onsuccess = () => resolve(asked.result); });
  database.close();
  let key = "given out";
  await crypto.subtle.exportKey("pkcs8", found.pair.privateKey).catch((error) => { key = error.name; });
  return { broker: found.enrolment.broker, password: found.enrolment.password, key };
}"""
"""What somebody who has the phone in hand reads from its storage."""


@dataclass
class Impostor:
    """A run with a phone in it, and what was stolen.

    Attributes:
        fleet: publishes to devices.
        password: the phone's own, at the broker's listener ``port``.
        orders: what came to the phone, as it travelled.
    """

    site: Site
    phone: Phone
    fleet: Client
    password: str = ""
    port: int = 0
    orders: list[bytes] = field(default_factory=list)

    def watch(self, socket: WebSocket) -> None:
        """Keeps the orders that come through ``socket``."""
        socket.on("framereceived", self._received)

    def _received(self, frame: str | bytes) -> None:
        data = frame.encode() if isinstance(frame, str) else frame
        # The broker's other answers are none of a client's packets, and no order.
        with contextlib.suppress(AssertionError):
            self.orders += [p.payload for p in packets(data) if p.kind == "publish" and p.topic.endswith("/order")]

    def order(self, payload: bytes) -> None:
        """Publishes ``payload`` as an order to the phone."""
        self.fleet.mqtt.publish(topics.down(FEDERATION, DEVICE, "order"), payload, 1)

    def settled(self) -> set[str]:
        """Assignments whose update the run has."""
        with Ledger.open(self.site.run_dir / "ledger.sqlite") as ledger:
            committed = ledger.rounds.last_committed()
            last = 0 if committed is None else committed.round
            found = [a for number in range(1, last + 1) for a in ledger.assignments.of_attempt(number, 0, "reported")]
        return {a.assignment_id for a in found}

    def card(self, title: str, *words: str) -> None:
        """Waits until the problem card has that title and those words, then closes it."""
        card = self.phone.page.locator(".problem")
        expect(card.locator("h2")).to_have_text(title, timeout=15_000)
        for text in words:
            expect(card).to_contain_text(text, ignore_case=True)
        card.get_by_role("button", name="Close").click()


@pytest.fixture(scope="module")
def impostor(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Impostor]:
    folder: Path = tmp_path_factory.mktemp("impostors")
    x, y = load_digits(return_X_y=True)
    np.savez(folder / "digits.npz", x=x[:EXAMPLES].astype(np.float32), y=y[:EXAMPLES].astype(np.int64))
    with federation_site(folder, RUN, phones=[DEVICE]) as (site, links):
        site.start()
        fleet = Client("fleet", tcp=True)
        own = fleet_files(folder / "identity", FEDERATION)
        fleet.mqtt.tls_set(str(own.ca), str(own.certificate), str(own.key))
        ports = json.loads((site.run_dir / "broker" / "broker.json").read_text())
        assert fleet.open(ports["port"]) == "Success"
        phone = Phone(chromium)
        found = Impostor(site, phone, fleet, port=ports["web_port"])
        phone.page.on("websocket", found.watch)
        phone.join(links[DEVICE])
        stolen = phone.evaluate(ENROLLED)
        assert stolen["key"] == "InvalidAccessError", "the key was given out"
        found.password = stolen["password"]
        phone.add_file(folder / "digits.npz", examples=EXAMPLES)
        phone.tab("training")
        yield found
        fleet.close()
        phone.close()


def test_order_of_a_settled_assignment_is_refused_when_it_comes_again(impostor: Impostor) -> None:
    wait_until(lambda: len(impostor.settled()) > 0, 60.0, "an update", impostor.phone.page)
    settled = impostor.settled()
    (old, *_) = [o for o in impostor.orders if unseal(o).read(WorkOrder).assignment_id in settled]
    impostor.order(old)
    impostor.card("An old order came again", "Nothing was done with it.")
    wait_until(lambda: len(impostor.settled()) > len(settled), 30.0, "the run goes on", impostor.phone.page)


def test_forged_order_over_mosquitto_is_refused(impostor: Impostor) -> None:
    wait_until(lambda: bool(impostor.orders), 60.0, "an order", impostor.phone.page)
    genuine = unseal(impostor.orders[0])
    forged = impostor.orders[0].replace(bytes(genuine.signature), bytes(64))
    assert forged != impostor.orders[0]
    impostor.order(forged)
    impostor.card("A signature was not right", "none of the 1 trusted key")


def test_coordinator_refuses_a_message_with_another_browsers_key(impostor: Impostor) -> None:
    wait_until(lambda: bool(impostor.orders), 60.0, "an order", impostor.phone.page)
    work = unseal(impostor.orders[-1]).read(WorkOrder).assignment_id
    refusal = Refuse(assignment_id=work, code="device-refused", reason="tired")
    message = BrowserDevice(DEVICE).sealed("refuse", refusal, federation=FEDERATION)
    # Two connections of one user end each other: the phone is pushed off, and comes back.
    upward = Client("impostor")
    assert upward.open(impostor.port, DEVICE, impostor.password) == "Success"
    upward.mqtt.publish(topics.up(FEDERATION, DEVICE, "refuse"), message, 1)
    refused = f"'refuse' of '{DEVICE}' has a signature that is not of its key"
    wait_until(lambda: refused in impostor.site.log(), 15.0, "the coordinator's word", impostor.phone.page)
    upward.close()
    with Ledger.open(impostor.site.run_dir / "ledger.sqlite") as ledger:
        kept = ledger.assignments.find(work)
    assert kept is not None
    assert kept.state != "refused"
    settled = impostor.settled()
    wait_until(lambda: len(impostor.settled()) > len(settled), 30.0, "the run goes on", impostor.phone.page)


def test_revoked_phone_is_out_at_once_and_stays_out(impostor: Impostor) -> None:
    phone = impostor.phone
    impostor.site.revoke(DEVICE)
    phone.wait_for_words("No longer admitted", 30.0)
    impostor.card("No longer admitted", "Ask for a new link, then join again.")
    phone.reopen(impostor.site.address)
    phone.wait_for_words("No longer admitted", 30.0)
    settled = impostor.settled()
    # What was on its way when it was revoked may still count; nothing after it.
    impostor.site.kill()
    assert impostor.settled() >= settled
