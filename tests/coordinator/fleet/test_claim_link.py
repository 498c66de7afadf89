"""Claim links and their QR codes: what a phone reads off a screen is the link, whole."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import segno
from PIL import Image

from coordinator.fleet.claim_link import BORDER, claim_link, qr_lines, root_fingerprint, save_qr
from coordinator.identity.authority import Authority
from edge.contracts.claims import ClaimLink
from edge.contracts.errors import ConfigError

TOKEN = "0123456789abcdef." + "aB-_" * 10 + "xyz"
PIN = "c0ffee" * 10 + "0123"
LINK = claim_link("https://192.168.178.123:8443", TOKEN, PIN, "pi-07")


def modules(link: str) -> list[list[bool]]:
    """The code's own modules, dark is True, with its border."""
    rows = segno.make(link, error="m", micro=False, boost_error=False).matrix_iter(border=BORDER)
    return [[bool(module) for module in row] for row in rows]


def test_link_is_read_as_it_was_made() -> None:
    assert ClaimLink.from_text(LINK) == ClaimLink("https://192.168.178.123:8443", TOKEN, PIN, "pi-07")
    assert ClaimLink.from_text(f"  {LINK}\n").token == TOKEN
    assert ClaimLink.from_text(claim_link("https://[fd00::1]:8443/", TOKEN, PIN)).service == "https://[fd00::1]:8443"


@pytest.mark.parametrize("service", ["http://localhost:8080", "http://127.0.0.1:80", "http://[::1]:8080"])
def test_link_without_tls_is_for_this_machine_alone(service: str) -> None:
    link = ClaimLink.from_text(claim_link(service, TOKEN, PIN, "phone-1"))
    assert (link.service, link.device) == (service, "phone-1")
    assert ClaimLink.from_text(claim_link("http://localhost", TOKEN, PIN)).service == "http://localhost:80"
    for host in ("192.168.178.123", "localhost.evil.org", "127.0.0.2", "localhost@evil.org"):
        with pytest.raises(ConfigError, match="is not https://host:port/join"):
            ClaimLink.from_text(claim_link(f"http://{host}:8080", TOKEN, PIN))


def test_link_keeps_its_secrets_after_the_hash() -> None:
    sent, _, kept = LINK.partition("#")
    assert sent == "https://192.168.178.123:8443/join"
    assert TOKEN in kept
    assert "pi-07" in kept


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not https://host:port/join"),
        ("pi-07", "is not https://host:port/join"),
        (LINK.replace("https", "http"), "is not https://host:port/join"),
        (LINK.replace("/join", "/other"), "is not https://host:port/join"),
        (LINK.partition("&t=")[0], "has no token after '#t='; put the link between quotes"),
        (LINK.partition("&p=")[0], "has no pin after '&p='; put the link between quotes"),
        (LINK[:-1], "has no pin"),
        (LINK.replace("d=pi-07", "d=a/b"), "'a/b' is not usable"),
        (LINK.replace(":8443", ":99999"), "not a link"),
    ],
)
def test_link_that_is_none_says_what_is_missing_and_shows_no_token(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as error:
        ClaimLink.from_text(text)
    assert TOKEN not in str(error.value)
    assert "another made" in error.value.hint


def test_fingerprint_is_what_openssl_says(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    Authority.create(tmp_path / "identity").close()
    ca = tmp_path / "identity" / "ca.pem"
    command = [openssl, "x509", "-in", str(ca), "-noout", "-fingerprint", "-sha256"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().partition("=")[2]
    assert root_fingerprint(ca.read_bytes()) == told.replace(":", "").lower()
    link = claim_link("https://h:1", TOKEN, told)
    assert ClaimLink.from_text(link).pin == root_fingerprint(ca.read_bytes())


@pytest.mark.parametrize("colours", [True, False])
def test_terminal_shows_the_codes_modules(colours: bool) -> None:
    shown = qr_lines(LINK, colours=colours)
    light = {"█": (False, False), "▀": (False, True), "▄": (True, False), " ": (True, True)}
    rows: list[list[bool]] = []
    for line in shown.splitlines():
        assert line.startswith("\x1b[38;5;231;48;5;16m") == colours
        pairs = [light[character] for character in re.sub(r"\x1b\[[0-9;]*m", "", line)]
        rows += [[upper for upper, _ in pairs], [lower for _, lower in pairs]]
    expected = modules(LINK)
    assert rows[: len(expected)] == expected
    assert rows[len(expected) :] == [[False] * len(expected[0])] * (len(expected) % 2)


def test_terminal_shows_it_in_80_columns_and_30_lines() -> None:
    longest = claim_link("https://coordinator.example.org:8443", TOKEN, PIN, "living-room-pi-zero")
    lines = qr_lines(longest, colours=False).splitlines()
    assert {len(line) for line in lines} == {len(lines[0])}
    assert len(lines[0]) <= 65
    assert len(lines) <= 33
    assert len(qr_lines(LINK, colours=False).splitlines()) <= 31


def test_picture_has_the_codes_modules_and_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "pi-07.png"
    save_qr(LINK, path)
    assert path.stat().st_mode & 0o777 == 0o600
    with Image.open(path) as picture:
        side = picture.width // 8
        found = [[picture.getpixel((8 * x + 4, 8 * y + 4)) == 0 for x in range(side)] for y in range(side)]
    assert found == modules(LINK)
    save_qr(LINK, tmp_path / "pi-07.svg")
    assert (tmp_path / "pi-07.svg").read_text().startswith("<?xml")
    with pytest.raises(ConfigError, match=r"'pi-07.jpg' is not a picture .* known: .png, .svg"):
        save_qr(LINK, tmp_path / "pi-07.jpg")
