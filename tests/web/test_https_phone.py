"""A phone by TLS alone, as in a network of its own: page, service worker, claim, blobs and messages.

Real Chromium, a real run with Mosquitto, the built page, the certificate that the identity made for the page's host.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from playwright.sync_api import Browser, Response
from playwright.sync_api import Error as PlaywrightError

from tests.web.conftest import chromium_path
from tests.web.federation_site import federation_site
from tests.web.phone import Phone, wait_until

pytestmark = pytest.mark.broker

DEVICE = "device-00"
RUN = """
[federation]
name = "by-tls"
seed = 1
rounds = 1

[model]
build = "mlp"
input = [64]
classes = 10
options = { hidden = [64] }

[method]
name = "fedavg"

[training]
epochs = 1
batch = 16
last-batch = "keep"
lr = 0.05
momentum = 0.9

[data]
source = "digits"
scale = 0.0625

[cohort]
size = 1
min-reports = 1
deadline-s = 60
join-timeout-s = 60

[runtime]
name = "onnxruntime_web"
"""


def certificate_of(address: str) -> x509.Certificate:
    """What the server at ``address`` shows."""
    place = urlsplit(address)
    assert place.hostname
    assert place.port
    return x509.load_pem_x509_certificate(ssl.get_server_certificate((place.hostname, place.port)).encode())


@contextlib.contextmanager
def trusting(chromium: Browser, certificate: x509.Certificate) -> Iterator[Browser]:
    """A browser whose owner trusts this one key; to every other it says what any browser says."""
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    pin = base64.b64encode(hashlib.sha256(key).digest()).decode()
    words = [f"--ignore-certificate-errors-spki-list={pin}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    browser = chromium.browser_type.launch(executable_path=chromium_path(), args=words)
    try:
        yield browser
    finally:
        browser.close()


def test_round_by_tls_alone(chromium: Browser, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    examples = tmp_path / "examples.npz"
    np.savez(examples, x=rng.random((100, 64), dtype=np.float32), y=rng.integers(0, 10, 100))
    with federation_site(tmp_path / "site", RUN, phones=[DEVICE], origin="https://127.0.0.1") as (site, links):
        assert links[DEVICE].startswith(f"{site.address}/join#d={DEVICE}&t=")
        site.start()
        with pytest.raises(PlaywrightError, match="ERR_CERT_AUTHORITY_INVALID"):
            chromium.new_page().goto(site.address)
        with trusting(chromium, certificate_of(site.address)) as browser:
            phone = Phone(browser)
            answers: list[Response] = []
            phone.context.on("response", lambda answer: answers.append(answer))
            phone.join(links[DEVICE])
            phone.evaluate("navigator.serviceWorker.ready.then(() => true)")
            assert phone.evaluate("window.isSecureContext && window.crossOriginIsolated")
            phone.add_file(examples, examples=100)
            wait_until(site.is_over, 120, "the round", phone.page)
            assert site.summary()["rounds"] == 1
            origin = urlsplit(site.address)
            assert {urlsplit(url)[:2] for _, url, _ in phone.left.requests} == {(origin.scheme, origin.netloc)}
            assert {(urlsplit(url).scheme, urlsplit(url).hostname) for url in phone.left.sockets} == {
                ("wss", origin.hostname)
            }
            pieces = [a for a in answers if a.request.headers.get("range")]
            assert pieces
            assert {a.status for a in pieces} == {206}
            # After the run its broker is gone, nothing else is amiss.
            assert [line for line in phone.complaints if "ERR_CONNECTION_REFUSED" not in line] == []
            phone.close()
