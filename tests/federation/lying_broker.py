"""A broker that puts other words in place of what passes through it, once for each kind and device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from coordinator.identity.authority import Authority
from edge.contracts.codec import encode_msgpack
from edge.contracts.envelope import unseal
from edge.contracts.messages import BODIES
from edge.identity.credentials import CertificateFiles
from edge.identity.device_identity import make_request
from edge.identity.trust import Trust
from edge.transport.base import Qos
from edge.transport.in_memory import InMemoryBroker
from tests.federation.in_process import InProcessFederation

Change = Callable[[Any], Any]
"""The body of a message -> what the broker makes of it; None: it keeps it back."""


class LyingBroker:
    """Changes what ``broker`` carries.

    Args:
        changes: (device, kind) -> what becomes of the first such message, to the device or from it; its signature, if
            it has one, is left as it was.
        always: whether every such message is changed, not the first alone.

    Attributes:
        changed: what was changed so far.
    """

    def __init__(self, broker: InMemoryBroker, changes: dict[tuple[str, str], Change], *, always: bool = False) -> None:
        self._broker, self._changes, self._always = broker, changes, always
        self.changed: set[tuple[str, str]] = set()
        self._is_own = False
        broker.drop = self._drop

    def _drop(self, topic: str, payload: bytes, qos: Qos) -> bool:
        device, kind = topic.split("/")[-3], topic.split("/")[-1]
        what = next(((d, k) for d, k in self._changes if k == kind and d in topic.split("/")), (device, kind))
        if self._is_own or what not in self._changes or (what in self.changed and not self._always):
            return False
        self.changed.add(what)
        envelope = unseal(payload)
        body = self._changes[what](envelope.read(BODIES[kind]))
        if body is None:
            return True
        changed = msgspec.structs.replace(envelope, body=msgspec.Raw(encode_msgpack(body)))
        self._is_own = True
        try:
            self._broker.route(topic, encode_msgpack(changed), qos)
        finally:
            self._is_own = False
        return True


def enrolled_agents(running: InProcessFederation, identity: Path, count: int) -> None:
    """Agents ``d0``, ``d1`` ... with certificates of ``identity``, which follow signed words alone."""
    for index in range(count):
        name = f"d{index}"
        running.write_data(name, index % len(running.shares))
        folder = running.folder / "devices" / name
        request = make_request(folder, name)
        with Authority(identity) as authority:
            made = authority.sign_device(request.request.read_bytes(), name)
        (folder / "device.pem").write_bytes(made.certificate.pem)
        files = CertificateFiles(identity / "ca.pem", folder / "device.pem", request.key, lambda: None)
        running.agent(name, certificate=files, trust=Trust.load(identity / "signing.pub"))
