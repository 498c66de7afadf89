"""Whoever has the broker, or the server of blobs: what a phone does not do for them, and what its page says of it.

The attacker publishes with every right there is at the broker, as the conformance kit's script does, and lacks only the
coordinator's signing key. Each attack is refused in words, fetches and trains nothing, and leaves the phone able to
work. Needs Chromium, the built page and a broker (Mosquitto where it is installed).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import pytest
from playwright.sync_api import Browser, expect

from coordinator.conformance.artifacts import Artifacts
from coordinator.conformance.blob_server import open_blob_server
from coordinator.conformance.kit import Job, Kit
from coordinator.conformance.page_door import RUNTIME
from coordinator.conformance.site import open_site
from edge.contracts.envelope import MAX_MESSAGE_BYTES, seal, unseal
from tests.web.phone import Phone, wait_until
from tests.web.phone_driver import PhoneDriver

pytestmark = pytest.mark.broker

STORED = """async () => {
  const names = [];
  const walk = async (folder) => {
    for await (const [name, entry] of folder.entries()) {
      if (entry.kind === "directory") await walk(entry); else names.push(name);
    }
  };
  await walk(await navigator.storage.getDirectory());
  return names;
}"""
"""Names of all files that the page keeps; those of blobs and their parts hold the digest."""


@dataclass(frozen=True)
class Attacked:
    """A phone that has joined, and the broker in the attacker's hands."""

    kit: Kit
    driver: PhoneDriver

    def card(self, title: str, *words: str) -> None:
        """Waits until the problem card has that title and those words, then closes it."""
        card = self.driver.phone.page.locator(".problem")
        expect(card.locator("h2")).to_have_text(title, timeout=15_000)
        for text in words:
            expect(card).to_contain_text(text, ignore_case=True)
        card.get_by_role("button", name="Close").click()
        expect(card).to_be_hidden()

    def nothing_done(self, job: Job, mark: int) -> None:
        """The phone is idle, has asked for nothing of ``job``, reported nothing and keeps nothing of it."""
        hello = self.kit.asked()
        assert (hello.state, hello.assignment_id) == ("idle", "")
        since = self.kit.script.since(mark)
        assert [s.kind for s in since if s.kind in ("accept", "offer", "put", "report")] == []
        kept = self.driver.phone.evaluate(STORED)
        assert [name for name in kept if job.order.weights.digest in name] == []

    def can_still_train(self) -> None:
        """A genuine order is carried out, to the reference's numbers."""
        job = self.kit.job("masked", seed=1)
        self.kit.finish(job, since=self.kit.order(job))
        self.kit.wait("profile", since=0)


@pytest.fixture(scope="module")
def _site(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    driver = PhoneDriver(chromium)
    with open_site(runtime=RUNTIME, tls=False) as site:
        artifacts = Artifacts(tmp_path_factory.mktemp("artifacts"), RUNTIME)
        kit = Kit(site, driver, artifacts, patience=2.0, plain_bulk=True)
        kit.agent()
        yield Attacked(kit, driver)
        driver.close()


@pytest.fixture
def attacked(_site: Attacked) -> Iterator[Attacked]:
    """The same phone for all; each test leaves it idle and without a problem on its page."""
    yield _site
    _site.kit.settle()


def test_phone_refuses_an_order_signed_by_another_key(attacked: Attacked) -> None:
    job = attacked.kit.job("masked", seed=50)
    mark = attacked.kit.order(job, key=attacked.kit.site.forger)
    assert "signature by none of the 1 trusted key" in attacked.kit.refusal(job, "bad-signature", since=mark)
    attacked.card("A signature was not right", "signature by none of the 1 trusted key", "The message was not used.")
    attacked.nothing_done(job, mark)
    assert attacked.kit.script.since(mark, "get") == []


def test_phone_refuses_an_order_that_is_not_signed(attacked: Attacked) -> None:
    job = attacked.kit.job("masked", seed=51)
    mark = attacked.kit.order_bytes(job, seal("order", job.order))
    assert "is not signed" in attacked.kit.refusal(job, "bad-signature", since=mark)
    attacked.card("A signature was not right", "is not signed and this device has 1 trusted key")
    attacked.nothing_done(job, mark)
    assert attacked.kit.script.since(mark, "get") == []


def test_phone_refuses_an_order_that_was_changed(attacked: Attacked) -> None:
    job = attacked.kit.job("masked", seed=52)
    genuine = unseal(seal("order", job.order, sign=attacked.kit.key.order)).signature
    changed = msgspec.structs.replace(job.order, upload=job.order.upload[:1])
    mark = attacked.kit.order_bytes(job, seal("order", changed, sign=lambda body: genuine))
    attacked.kit.refusal(job, "bad-signature", since=mark)
    attacked.card("A signature was not right", "or was changed on its way")
    attacked.nothing_done(job, mark)


def test_phone_refuses_a_manifest_that_another_key_signed(attacked: Attacked) -> None:
    kit = attacked.kit

    def other(artifact: object) -> bytes:
        return bytes(msgspec.structs.replace(kit.artifacts.get("masked").manifest, batch=7).to_bytes())

    job = kit.job("masked", seed=53, change=other)
    forged = kit.site.forger.manifest(kit.script.blobs[job.order.artifact.digest])
    job = Job(job.artifact, msgspec.structs.replace(job.order, artifact_signature=forged), job.weights, job.constants)
    mark = kit.order(job)
    kit.refusal(job, "bad-signature", since=mark)
    attacked.card("A signature was not right", "manifest of")
    assert [s.kind for s in kit.script.since(mark, "offer", "report")] == []


def test_phone_refuses_an_order_that_it_has_settled(attacked: Attacked) -> None:
    job = attacked.kit.job("masked", seed=1)
    genuine = seal("order", job.order, sign=attacked.kit.key.order)
    attacked.kit.finish(job, since=attacked.kit.order_bytes(job, genuine))
    attacked.kit.wait("profile", since=0)
    mark = attacked.kit.order_bytes(job, genuine)
    attacked.kit.refusal(job, "replayed-order", since=mark)
    attacked.card("An old order came again", "Nothing was done with it.")
    attacked.nothing_done(attacked.kit.job("masked", seed=54), mark)


def test_phone_does_not_take_an_order_for_another_device(attacked: Attacked) -> None:
    job = attacked.kit.job("masked", seed=55, device="device-2")
    mark = attacked.kit.order(job)
    said = attacked.kit.wait("error", since=mark).body
    assert (said.code, "order is for conformance/device-2" in said.message) == ("bad-message", True)
    attacked.card("A message could not be read", "this is conformance/device-1", "It was not used.")
    attacked.nothing_done(job, mark)


@pytest.mark.parametrize("way", ["https", "blocks"])
@pytest.mark.parametrize("what", ["manifest", "weights"])
def test_phone_refuses_changed_bytes_under_the_digest(attacked: Attacked, way: str, what: str) -> None:
    kit = attacked.kit
    # White space after its JSON makes a manifest of another digest, which the phone does not keep yet.
    space = b" " if way == "https" else b"\n"
    if what == "manifest":
        job = kit.job("masked", seed=56, change=lambda artifact: artifact.data + space)
        ref = job.order.artifact
    else:
        job = kit.job("masked", seed=57 if way == "https" else 58)
        ref = job.order.weights
    good = kit.script.blobs[ref.digest]
    try:
        kit.script.blobs[ref.digest] = bytes([good[0] ^ 1]) + good[1:]
        with open_blob_server(kit.script.blobs, None) as server:
            if way == "https":
                order = msgspec.structs.replace(job.order, bulk=server.url)
                job = Job(job.artifact, order, job.weights, job.constants)
            mark = kit.order(job)
            kit.refusal(job, "artifact-corrupt", since=mark)
            assert (ref.digest in [digest for digest, _, _ in server.asked]) == (way == "https")
    finally:
        kit.script.blobs[ref.digest] = good
    attacked.card("The model arrived damaged", f"blob {ref.digest[:12]}", "arrived with digest")
    kept = attacked.driver.phone.evaluate(STORED)
    assert [name for name in kept if ref.digest in name] == []
    assert [s.kind for s in kit.script.since(mark, "offer", "report")] == []
    assert kit.asked().state == "idle"


GARBAGE: dict[str, Callable[[], bytes]] = {
    "noise": lambda: os.urandom(2_000),
    "nothing": lambda: b"",
    "nesting": lambda: b"\x91" * 5_000,
    "oversized": lambda: b"\x00" * (MAX_MESSAGE_BYTES + 1),
    "another-version": lambda: seal("ack", {}).replace(b"\xa1v\x01", b"\xa1v\x63"),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_phone_survives_garbage(attacked: Attacked, kind: str) -> None:
    mark = attacked.kit.script.mark()
    for topic in ("order", "ack", "block"):
        attacked.kit.script.send_bytes(topic, GARBAGE[kind]())
    title = "Page and coordinator differ" if kind == "another-version" else "A message could not be read"
    code = "unsupported-version" if kind == "another-version" else "bad-message"
    assert attacked.kit.wait("error", since=mark, count=3).body.code == code
    attacked.card(title)
    attacked.nothing_done(attacked.kit.job("masked", seed=59), mark)


@contextlib.contextmanager
def quota(phone: Phone, spare_bytes: int) -> Iterator[None]:
    """The page's origin has room for no more than ``spare_bytes`` beside what it keeps now.

    ``navigator.storage.estimate()`` goes on to promise more, as browsers do that hide how full a disk is.
    """
    session, origin = phone.context.new_cdp_session(phone.page), phone.evaluate("location.origin")
    used = phone.evaluate("navigator.storage.estimate().then(found => found.usage)")
    session.send("Storage.overrideQuotaForOrigin", {"origin": origin, "quotaSize": used + spare_bytes})
    try:
        yield
    finally:
        session.send("Storage.overrideQuotaForOrigin", {"origin": origin})


def test_phone_without_room_throws_away_what_it_does_not_need(attacked: Attacked) -> None:
    job = attacked.kit.job("masked", seed=60)
    with quota(attacked.driver.phone, 4_000):
        attacked.kit.finish(job, since=attacked.kit.order(job))


def test_phone_without_any_room_refuses_in_words(attacked: Attacked) -> None:
    phone = attacked.driver.phone
    phone.tab("device")
    phone.page.get_by_role("button", name="Clear cache").click()
    phone.tab("training")
    wait_until(lambda: not any("blob-" in name for name in phone.evaluate(STORED)), 10.0, "an empty store", phone.page)
    mark = attacked.kit.script.mark()
    attacked.kit.wait("hello", since=mark)
    job = attacked.kit.job("masked", seed=61)
    with quota(phone, 3_000):
        assert "cannot be written" in attacked.kit.refusal(job, "store-full", since=attacked.kit.order(job))
        attacked.card("No room left", "cannot be written", "Clear the cache under Device, or free some storage.")
        attacked.nothing_done(job, attacked.kit.script.mark())
    attacked.can_still_train()


def test_page_says_that_the_coordinator_rejected_an_update(attacked: Attacked) -> None:
    kit = attacked.kit
    kit.script.acks = False
    job = kit.job("masked", seed=1)
    kit.answer(job, "report", since=kit.order(job), timeout_s=60)
    kit.script.acknowledge(job.id, False, "update-rejected")
    attacked.card("The result was not used", "The coordinator says why. The next round comes by itself.")
    assert kit.asked().state == "idle"


def test_phone_works_on_after_all_of_it(attacked: Attacked) -> None:
    before = len(attacked.driver.phone.complaints)
    attacked.can_still_train()
    assert attacked.driver.phone.complaints[before:] == []
