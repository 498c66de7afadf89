"""Everything that leaves two phones in a whole run: their examples are not among it, and nobody else is spoken to.

One phone holds an .npz file, the other one a folder of PNG and JPEG pictures. Every request (its address, headers and
body) and every WebSocket frame is recorded from the first load on, through joining, picking, training, a reload and
further rounds; twice, by the pages' requests and by what the browser's sockets sent. Needs Chromium, the built page
and Mosquitto.
"""

from __future__ import annotations

import base64
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Request

from edge.contracts.envelope import unseal
from edge.contracts.messages import BODIES
from tests.web.conftest import chromium_path
from tests.web.example_traces import Traces, traces_of_archive, traces_of_pictures
from tests.web.federation_site import Site, federation_site
from tests.web.mqtt_packets import Packet, packets
from tests.web.net_log import NetLog, arguments, read_net_log
from tests.web.phone import Left, Phone, wait_until

pytestmark = pytest.mark.broker

SCALE, MEAN, STD = 1 / 255, 0.45, 0.25
EXAMPLES = 40
BEFORE, ROUNDS = 2, 4
"""Rounds of a phone before the reload, and of the run."""

RUN = f"""
[federation]
name = "leaves"
seed = 2
rounds = {ROUNDS}

[model]
build = "tests.web.small_convnet:build"
input = [1, 8, 8]
classes = 10
options = {{ side = 8 }}

[method]
name = "fedavg"

[training]
epochs = 1
batch = 8
lr = 0.01
momentum = 0.9

[data]
source = "tests.federation.tiny_convnet:digit_images"
scale = {SCALE!r}
mean = [{MEAN}]
std = [{STD}]

[evaluation]
every = 0

[cohort]
size = 3
min-reports = 3
deadline-s = 120
join-timeout-s = 120

[runtime]
name = ["onnxruntime", "onnxruntime_web"]

[[cohort.local]]
count = 1
"""

WORDS = {
    "Hello: who this is": "hello",
    "Still here, and the step": "heartbeat",
    "What this device can do": "profile",
    "Work accepted": "accept",
    "Request for a piece of the model": "get",
    "Offer of the trained weights": "offer",
    "Piece of the trained weights": "put",
    "Result: counts and timing": "report",
    "An error": "error",
}
"""How the page's log says what it sent."""


@dataclass
class Recording:
    """A phone, what its examples look like, and what its page's own log said before the reload."""

    phone: Phone
    device: str
    traces: Traces
    headers: list[bytes]
    logged: dict[str, tuple[int, float]] | None = None

    def sent(self) -> list[bytes]:
        """All that left it, one entry per request or frame; frames once more as one stream."""
        left = self.phone.left
        bodies = [part for _, url, body in left.requests for part in (url.encode(), body)]
        return [*bodies, *self.headers, b"".join(left.frames)]


@dataclass(frozen=True)
class Session:
    """What both phones did in the run, which is over, as is the browser.

    Attributes:
        planted: what left a page that was made to send an example.
        log: of the whole browser, that page included.
    """

    site: Site
    archive: Recording
    pictures: Recording
    planted: Left
    log: NetLog


def written_archive(folder: Path) -> Path:
    """An .npz of random pictures, compressed, under a name of its own."""
    draws = np.random.default_rng(1)
    path = folder / "grandmothers-letters.npz"
    x = draws.integers(0, 256, (EXAMPLES, 1, 8, 8), np.uint8)
    np.savez_compressed(path, x=x, y=draws.integers(0, 10, EXAMPLES))
    return path


def written_pictures(folder: Path) -> list[Path]:
    """Random pictures of 20 x 20, PNG and JPEG, in a folder for each of four classes."""
    from PIL import Image

    draws = np.random.default_rng(2)
    files = []
    for number in range(EXAMPLES):
        path = folder / str(number % 4) / f"garden-party-{number:03d}.{'png' if number % 8 < 4 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (20, 20), np.uint8)).save(path)
        files.append(path)
    return files


def recorded(chromium: Browser, device: str, link: str, traces: Traces) -> Recording:
    """A phone that has joined by ``link``, recorded from its first request on."""
    phone = Phone(chromium)
    headers: list[bytes] = []

    def note(request: Request) -> None:
        headers.append("\n".join(f"{name}: {value}" for name, value in request.headers.items()).encode())

    phone.context.on("request", note)
    phone.join(link)
    return Recording(phone, device, traces, headers)


def published(phone: Phone, kind: str = "") -> list[Packet]:
    """Messages that the phone sent, of ``kind`` where it is given."""
    found = [p for p in packets(b"".join(phone.left.frames)) if p.kind == "publish" and not p.is_duplicate]
    return [p for p in found if p.topic.endswith(f"/{kind}")] if kind else found


def log_of(phone: Phone) -> dict[str, tuple[int, float]]:
    """Kind -> (messages, bytes to three digits) that the page's log says it sent."""
    rows = phone.evaluate("""() => [...document.querySelectorAll("#view-leaving tbody tr")].map(
        row => [...row.children].map(cell => cell.textContent))""")
    units = {"bytes": 1, "byte": 1, "kB": 1e3, "MB": 1e6}
    found: dict[str, tuple[int, float]] = {}
    for _, words, size in rows:
        if "sent: " not in words:
            continue
        name, _, times = words.partition("sent: ")[2].replace("\xa0", " ").partition(" × ")
        number, unit = size.replace("\xa0", " ").split(" ")
        count, total = found.get(WORDS[name], (0, 0.0))
        found[WORDS[name]] = count + int(times or 1), total + float(number) * units[unit]
    return found


def agrees(log: dict[str, tuple[int, float]], messages: list[Packet]) -> bool:
    """Whether the log is that of ``messages``."""
    counts = Counter(p.topic.rpartition("/")[2] for p in messages)
    sizes: Counter[str] = Counter()
    for p in messages:
        sizes[p.topic.rpartition("/")[2]] += len(p.payload)
    return counts == {kind: count for kind, (count, _) in log.items()} and all(
        abs(size - sizes[kind]) <= 0.006 * sizes[kind] + 1 for kind, (_, size) in log.items()
    )


def planted(chromium: Browser, site: Site, socket: str, example: np.ndarray) -> Left:
    """What left a page that sent ``example`` as a body, in an address and in a frame."""
    phone = Phone(chromium)
    phone.open(site.address)
    text = base64.urlsafe_b64encode(example.tobytes()).decode()
    phone.evaluate(
        """async ([bytes, text, address]) => {
          await fetch("/healthz", { method: "POST", body: new Uint8Array(bytes) }).catch(() => {});
          await fetch("/healthz?" + text).catch(() => {});
          const socket = new WebSocket(address, "mqtt");
          await new Promise((opened) => { socket.onopen = opened; });
          socket.send(new Uint8Array(bytes));
        }""",
        [example.reshape(-1).tolist(), text, socket],
    )
    wait_until(lambda: bool(phone.left.frames), 10, "the planted frame", phone.page)
    phone.close()
    return phone.left


@pytest.fixture(scope="module")
def session(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """The whole run, in a browser of its own."""
    folder = tmp_path_factory.mktemp("leaves")
    log = folder / "net.json"
    flags = arguments(log) + (["--no-sandbox"] if os.geteuid() == 0 else [])
    browser = chromium.browser_type.launch(executable_path=chromium_path(), args=flags)
    try:
        site, of_archive, of_pictures, left = played(browser, folder)
    finally:
        browser.close()
    return Session(site, of_archive, of_pictures, left, read_net_log(log, page=site.address))


def played(browser: Browser, folder: Path) -> tuple[Site, Recording, Recording, Left]:
    """The run from its start to its end."""
    archive, pictures = written_archive(folder), written_pictures(folder / "attic")
    numbers = {"scale": SCALE, "mean": MEAN, "std": STD}
    with federation_site(folder / "site", RUN, phones=["device-01", "device-02"]) as (site, links):
        site.start()
        of_archive = recorded(browser, "device-01", links["device-01"], traces_of_archive(archive, **numbers))
        of_archive.phone.add_file(archive, examples=EXAMPLES)
        traces = traces_of_pictures(pictures, shape=(8, 8), **numbers)
        of_pictures = recorded(browser, "device-02", links["device-02"], traces)
        of_pictures.phone.add_folder(folder / "attic", examples=EXAMPLES)
        for each, reports in ((of_archive, BEFORE), (of_pictures, 1)):
            each.phone.tab("leaving")

            def has_log(each: Recording = each, reports: int = reports) -> bool:
                each.logged = log_of(each.phone)
                return len(published(each.phone, "report")) >= reports and agrees(each.logged, published(each.phone))

            wait_until(has_log, 60, "a log that agrees with the frames", each.phone.page)
        with np.load(archive) as arrays:
            left = planted(browser, site, of_archive.phone.left.sockets[0], arrays["x"][7])
        of_archive.phone.reopen(site.address)
        wait_until(site.is_over, 60, "the end of the run", of_archive.phone.page)
        site.summary(timeout_s=5)
    return site, of_archive, of_pictures, left


@pytest.fixture(params=["archive", "pictures"])
def recording(request: pytest.FixtureRequest, session: Session) -> Recording:
    """One phone after the other."""
    found: Recording = getattr(session, request.param)
    return found


def test_no_example_is_among_what_left(recording: Recording) -> None:
    sent = recording.sent()
    assert len(recording.traces.windows) > 10_000
    assert sum(map(len, sent)) > 20_000
    assert len(published(recording.phone, "report")) == ROUNDS
    assert recording.traces.found_in(sent) == []


def test_nobody_but_page_and_broker_is_spoken_to(recording: Recording, session: Session) -> None:
    left = recording.phone.left
    addresses = {url for _, url, _ in left.requests if not url.startswith(("data:", "blob:"))}
    assert {f"{u.scheme}://{u.netloc}" for u in map(urlsplit, addresses)} == {session.site.address}
    assert all(not urlsplit(url).query for url in addresses)
    # The claim is all that is ever posted; everything else is a fetch of the page or of a blob.
    assert [(method, urlsplit(url).path) for method, url, _ in left.requests if method != "GET"] == [
        ("POST", "/v1/claim-key")
    ]
    # What workers fetch is among it: the runtime, and the model's blobs.
    assert any(url.endswith(".wasm") for url in addresses)
    assert any(re.fullmatch(r"/v1/[^/]+/[0-9a-f]{64}", urlsplit(url).path) for url in addresses)
    brokers = {urlsplit(url).netloc for url in left.sockets}
    assert len(brokers) == 1
    assert {urlsplit(url).hostname for url in left.sockets} == {"127.0.0.1"}


def test_sockets_sent_no_example_either_and_nothing_to_others(session: Session) -> None:
    log, phones = session.log, (session.archive.phone.left, session.pictures.phone.left, session.planted)
    brokers = {urlsplit(url).netloc for left in phones for url in left.sockets}
    assert log.addresses == log.asked == {urlsplit(session.site.address).netloc, *brokers}
    # The same frames, byte by byte, but for what a page sends while it is being left: its events may not come any more.
    recorded_frames = Counter(frame for left in phones for frame in left.frames)
    assert recorded_frames - Counter(log.frames) == Counter()
    unrecorded = list((Counter(log.frames) - recorded_frames).elements())
    assert len(unrecorded) <= 2
    for packet in packets(b"".join(unrecorded)):
        assert packet.topic.rpartition("/")[2] in ("heartbeat", "bye"), packet.topic
    for recording in (session.archive, session.pictures):
        assert recording.traces.found_in(frame for frame in log.frames if frame not in session.planted.frames) == []
        requests = [stream for stream in log.requests if b"/healthz" not in stream]
        assert recording.traces.found_in(requests) == []
    assert session.archive.traces.found_in(log.requests)


def test_every_frame_is_a_known_message_of_this_device(recording: Recording) -> None:
    messages = published(recording.phone)
    for packet in messages:
        prefix, _, kind = packet.topic.rpartition("/")
        assert prefix == f"apportion/v1/leaves/up/{recording.device}"
        envelope = unseal(packet.payload)
        assert envelope.kind == kind
        assert len(envelope.signature) == 64
        envelope.read(BODIES[kind])
    assert {"hello", "accept", "offer", "put", "report"} <= {p.topic.rpartition("/")[2] for p in messages}


def test_the_pages_log_says_what_the_frames_were(recording: Recording) -> None:
    assert recording.logged is not None
    assert recording.logged["report"][0] >= 1
    messages = published(recording.phone)[: sum(count for count, _ in recording.logged.values())]
    assert agrees(recording.logged, messages)


def test_an_example_that_left_would_be_found(session: Session) -> None:
    traces = session.archive.traces
    archive = session.site.folder.parent / "grandmothers-letters.npz"
    with np.load(archive) as arrays:
        row, y = arrays["x"][7].reshape(-1), arrays["y"]
    normalised = (row.astype(np.float32) * np.float32(SCALE) - np.float32(MEAN)) / np.float32(STD)
    for planted in (
        row[:31].tobytes(),
        row.astype(np.float32)[5:13].tobytes(),
        normalised[3:11].tobytes(),
        archive.read_bytes()[201:232],
        y.astype(np.uint8)[:31].tobytes(),
        y.astype(np.int64).tobytes(),
        b"name=grandmothers-letters",
    ):
        assert traces.found_in([b"before" + planted + b"after"]), planted


def test_what_a_page_sends_is_recorded_and_found(session: Session) -> None:
    left, traces = session.planted, session.archive.traces
    assert len(traces.found_in(body for _, _, body in left.requests)) == 1
    assert len(traces.found_in(url.encode() for _, url, _ in left.requests)) >= 1
    assert len(traces.found_in(left.frames)) == 1
