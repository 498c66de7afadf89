"""Invitations that let nobody in, or to somebody else: each in words on the page, and nothing of it is kept.

The page, the claims and the identity are the coordinator's own; what a man in the middle would answer is put in place
of their answer. Needs Chromium and the built page.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from coordinator.cli.page_serving import page_server
from coordinator.fleet.claim_handler import ClaimHandler
from coordinator.identity.authority import Authority
from coordinator.identity.browsers import browser_devices
from coordinator.identity.claims import create_token
from edge.contracts.claims import KEY_CLAIM_PATH, ClaimLink
from tests.web.phone import Phone, wait_until

SOCKET = "ws://127.0.0.1:9"
DEVICE = "phone-1"


@dataclass(frozen=True)
class Door:
    """Where invitations are for."""

    identity: Path
    address: str

    def token(self, device: str = DEVICE, valid_s: int = 600) -> str:
        """A new one."""
        with Authority(self.identity) as authority:
            return create_token(authority, device, valid_s)

    def link(self, token: str, device: str = DEVICE) -> str:
        """The invitation."""
        return ClaimLink(self.address, token, "ab" * 32, device).to_text()

    def enrolled(self) -> list[str]:
        """Devices that were let in."""
        with Authority(self.identity) as authority:
            return [browser.device for browser in browser_devices(authority)]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    """A new identity, its claims and the page."""
    identity = tmp_path / "identity"
    Authority.create(identity).close()
    handler = ClaimHandler(identity, federation="fed", web_socket=SOCKET)
    with page_server("http://127.0.0.1:0", identity, handler, SOCKET) as server:
        yield Door(identity, server.address)


@pytest.fixture
def phone(chromium: Browser) -> Iterator[Phone]:
    """One that has joined nothing."""
    phone = Phone(chromium)
    yield phone
    phone.close()


def refused(phone: Phone, *words: str) -> None:
    """The problem card says ``words``, and this phone has not joined, now or after a reload."""
    for text in words:
        expect(phone.page.locator(".problem")).to_contain_text(text, ignore_case=True, timeout=15_000)
    assert phone.evaluate("document.body.dataset.phase") != "joined"
    phone.open(phone.evaluate("location.origin"))
    assert phone.evaluate("document.body.dataset.phase") == "uninvited"
    assert phone.left.sockets == []


def press_join(phone: Phone, link: str) -> None:
    phone.open(link)
    phone.page.get_by_role("button", name="Join", exact=True).click()


def test_used_token_lets_no_second_phone_in(chromium: Browser, door: Door, phone: Phone) -> None:
    link = door.link(door.token())
    first = Phone(chromium)
    first.join(link)
    first.close()
    press_join(phone, link)
    refused(phone, "This link was used already", "Ask for a new link; each admits one device, once.")
    assert door.enrolled() == [DEVICE]


def test_expired_token_lets_nobody_in(door: Door, phone: Phone) -> None:
    link, ends_at = door.link(door.token(valid_s=1)), time.time() + 1.0
    phone.open(link)
    wait_until(lambda: time.time() > ends_at, 5.0, "the token's end")
    phone.page.get_by_role("button", name="Join", exact=True).click()
    refused(phone, "This link has expired", "Ask for a new link.")
    assert door.enrolled() == []


def test_guessed_token_lets_nobody_in(door: Door, phone: Phone) -> None:
    token = door.token()
    guessed = token[:-8] + ("A" * 8 if not token.endswith("A" * 8) else "B" * 8)
    press_join(phone, door.link(guessed))
    refused(phone, "This link is not known")
    assert door.enrolled() == []


@pytest.mark.parametrize(
    "change",
    [
        lambda link: link.split("&p=")[0] + "&p=garbage",
        lambda link: link.split("&p=")[0],
        lambda link: link.replace("t=", "t=x"),
        lambda link: link.replace("http://127.0.0.1", "http://192.0.2.1"),
        lambda link: link.replace("/join#", "/elsewhere#"),
        lambda link: link.replace(f"d={DEVICE}", "d=../../root"),
    ],
    ids=["pin-of-garbage", "no-pin", "token-of-garbage", "other-host-in-clear", "other-path", "device-of-garbage"],
)
def test_link_that_is_none_is_told_and_asks_nobody(door: Door, phone: Phone, change: Callable[[str], str]) -> None:
    link = change(door.link(door.token()))
    phone.open(door.address)
    before = len(phone.left.requests)
    phone.page.get_by_label("Link that you were given").fill(link)
    phone.page.get_by_role("button", name="Continue").click()
    expect(phone.page.locator(".problem")).to_contain_text("This is not a join link")
    assert [url for _, url, _ in phone.left.requests[before:] if KEY_CLAIM_PATH in url or "192.0.2" in url] == []
    refused(phone)


def answered_by_another(phone: Phone, door: Door, **changes: str) -> None:
    """Claims of ``phone`` are answered as the coordinator does, but for ``changes``."""

    def answer(route: Route) -> None:
        genuine = json.loads(route.fetch().body())
        route.fulfill(status=200, content_type="application/json", body=json.dumps(genuine | changes))

    phone.context.route(f"**{KEY_CLAIM_PATH}", answer)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"broker": "ws://broker.example:8080"}, "broker 'ws://broker.example:8080' is not wss://"),
        ({"broker": "http://127.0.0.1:8080"}, "is not wss://"),
        ({"device": "phone-2", "user": "phone-2"}, "it is for device 'phone-2', the link is for 'phone-1'"),
        ({"user": "@fed"}, "it has user '@fed' for device 'phone-1'"),
        ({"signing_public": "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"}, "no Ed25519 key"),
        ({"federation": "fed/#"}, "federation"),
    ],
    ids=["broker-in-clear", "no-broker", "another-device", "another-user", "no-key", "federation-of-garbage"],
)
def test_answer_that_cannot_be_right_is_not_kept(door: Door, phone: Phone, changes: dict[str, str], why: str) -> None:
    answered_by_another(phone, door, **changes)
    press_join(phone, door.link(door.token()))
    refused(phone, "The coordinator's answer is unusable", why, "nothing was kept")


def test_broker_of_another_origin_is_not_reached(door: Door, phone: Phone) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        elsewhere = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        answered_by_another(phone, door, broker=elsewhere)
        phone.join(door.link(door.token()))
        stopped = "Content Security Policy"
        wait_until(lambda: any(stopped in line for line in phone.complaints), 15.0, stopped, phone.page)
        assert any(elsewhere in line for line in phone.complaints if stopped in line)
        phone.tab("training")
        phone.wait_for_words("Offline", 15.0)
        with pytest.raises(TimeoutError):
            listener.accept()
