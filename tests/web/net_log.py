"""What a whole browser sent, by Chromium's own log of its network: below pages, workers and their tools.

Start Chromium with :func:`arguments`; the log is complete when it has ended. A browser speaks to its vendor for itself
too: for updates, for accounts, and, of a page with text fields, for hints how to fill them in, by a hash of the fields'
names. No page can do anything about that; the log tells it apart by who began a request.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

CONTINUATION, TEXT, BINARY = 0, 1, 2
COMPRESSED = 0x40


def arguments(path: Path) -> list[str]:
    """Chromium's, to log to ``path``; no name of another machine resolves, whoever asks."""
    return [
        f"--log-net-log={path}",
        "--net-log-capture-mode=Everything",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ]


@dataclass(frozen=True)
class NetLog:
    """What the log says.

    Attributes:
        addresses: ``host:port`` of every TCP connection that was tried.
        asked: ``host:port`` of every request that a page or a worker began, not the browser for itself.
        streams: what was sent over each connection, in order.
    """

    addresses: frozenset[str]
    asked: frozenset[str]
    streams: tuple[bytes, ...]

    @property
    def frames(self) -> list[bytes]:
        """Payloads of all data frames of WebSockets."""
        return [frame for stream in self.streams if _is_socket(stream) for frame in _frames(stream)]

    @property
    def requests(self) -> list[bytes]:
        """The other streams."""
        return [stream for stream in self.streams if not _is_socket(stream)]


def read_net_log(path: Path, *, page: str) -> NetLog:
    """The log at ``path``; ``page`` is the pages' origin."""
    log = json.loads(path.read_text())
    names = {number: name for name, number in log["constants"]["logEventTypes"].items()}
    addresses: set[str] = set()
    asked: set[str] = set()
    streams: defaultdict[int, bytes] = defaultdict(bytes)
    for event in log["events"]:
        name, params = names[event["type"]], event.get("params", {})
        if name == "TCP_CONNECT_ATTEMPT" and "address" in params:
            addresses.add(params["address"])
        elif name == "URL_REQUEST_START_JOB" and params.get("initiator", "") == page:
            asked.add(urlsplit(params["url"]).netloc)
        elif name == "SOCKET_BYTES_SENT":
            streams[event["source"]["id"]] += base64.b64decode(params["bytes"])
    return NetLog(frozenset(addresses), frozenset(asked), tuple(streams.values()))


def _is_socket(stream: bytes) -> bool:
    return b"\r\nUpgrade: websocket\r\n" in stream.partition(b"\r\n\r\n")[0] + b"\r\n"


def _frames(stream: bytes) -> list[bytes]:
    data = stream.partition(b"\r\n\r\n")[2]
    found, at = [], 0
    while at < len(data):
        first, length = data[at], data[at + 1] & 0x7F
        assert data[at + 1] & 0x80, "a client's frames are masked"
        assert not first & COMPRESSED, "compressed frames cannot be searched; have the broker offer no compression"
        at += 2
        if length >= 126:
            size = 2 if length == 126 else 8
            length, at = int.from_bytes(data[at : at + size], "big"), at + size
        mask, payload = data[at : at + 4], data[at + 4 : at + 4 + length]
        at += 4 + length
        if first & 0x0F in (CONTINUATION, TEXT, BINARY):
            keys = (mask * (length // 4 + 1))[:length]
            found.append((int.from_bytes(payload, "big") ^ int.from_bytes(keys, "big")).to_bytes(length, "big"))
    return found
