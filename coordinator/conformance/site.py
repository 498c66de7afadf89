"""The kit's surroundings in a temporary folder: broker, relay before it, signing key, local data, and the script."""

from __future__ import annotations

import contextlib
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.brokers.certificates import ServerCertificate, server_certificate
from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.brokers.process import BrokerProcess
from coordinator.conformance.artifacts import write_data
from coordinator.conformance.connection import Connection
from coordinator.conformance.relay import Relay
from coordinator.conformance.script import Script
from coordinator.conformance.web_socket_relay import WebSocketRelay
from coordinator.identity.signing import SigningKey
from edge.transport.base import Qos
from edge.transport.broker_address import parse_broker
from edge.transport.mqtt import MqttTransport

FEDERATION, DEVICE = "conformance", "device-1"


class _Unchecked(MqttTransport):
    """Sends what is too large as well: that, too, must do no harm."""

    def publish(self, topic: str, payload: bytes, *, qos: Qos = 1) -> None:
        self._client.publish(topic, payload, qos=qos)


@dataclass
class Site:
    """Where the agent under test lives. ``key`` signs what it trusts, ``forger`` is nobody's.

    Attributes:
        certificate: for a server of blobs, and of the broker behind TLS.
    """

    folder: Path
    connection: Connection
    script: Script
    key: SigningKey
    forger: SigningKey
    broker: BrokerProcess
    certificate: ServerCertificate
    relays: tuple[Relay, WebSocketRelay]

    def cut(self) -> int:
        """Cut the agent's connections; how many there were."""
        return sum(relay.cut() for relay in self.relays)

    def close(self) -> None:
        """Turn new connections of the agent away until :meth:`open`."""
        for relay in self.relays:
            relay.hold(True)

    def open(self) -> None:
        """Let the agent connect again."""
        for relay in self.relays:
            relay.hold(False)

    def with_data(self, data: Path, state: str) -> Connection:
        """The connection of a device with other data that has forgotten all."""
        return msgspec.structs.replace(self.connection, data=str(data), state=str(self.folder / state))


@contextlib.contextmanager
def open_site(*, runtime: str, tls: bool, broker: str = "", budget_mb: int = 2000) -> Iterator[Site]:
    """Surroundings that last as long as the context.

    Args:
        broker: ``mosquitto`` or ``embedded``; empty: Mosquitto where it is installed.

    Raises:
        BrokerUnreachable: the broker cannot be started here.
    """
    kind = broker or ("mosquitto" if find_mosquitto() else "embedded")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="apportion-conformance-")))
        process = stack.enter_context(BrokerProcess(kind, folder / "broker", tls=tls, user=DEVICE))
        address = process.address
        port = urlsplit(address.url).port or 0
        context = None if address.ca_file is None else ssl.create_default_context(cafile=address.ca_file)
        relays = (Relay(port), WebSocketRelay(port, context))
        for relay in relays:
            stack.callback(relay.close)
        key, forger = SigningKey(Ed25519PrivateKey.generate()), SigningKey(Ed25519PrivateKey.generate())
        trust = folder / "signing.pub"
        trust.write_bytes(key.public_pem)
        data = folder / "data"
        write_data(data)
        connection = Connection(
            url=f"{'mqtts' if tls else 'mqtt'}://127.0.0.1:{relays[0].port}",
            web_socket_url=f"ws://127.0.0.1:{relays[1].port}",
            user=address.user,
            password=address.password,
            ca="" if address.ca_file is None else str(address.ca_file),
            trust=key.public_pem.decode(),
            trust_file=str(trust),
            federation=FEDERATION,
            device=DEVICE,
            data=str(data),
            state=str(folder / "state"),
            budget_mb=budget_mb,
            runtime=runtime,
        )
        own = msgspec.structs.replace(connection, url=address.url).placeholders()["broker"]
        transport = _Unchecked(
            parse_broker(own, ca=connection.ca or None),
            client_id="conformance-kit",
            subscriptions=["#"],
        )
        script = Script(transport, FEDERATION, DEVICE)
        script.start()
        stack.callback(script.stop)
        certificate = server_certificate(folder / "broker")
        yield Site(folder, connection, script, key, forger, process, certificate, relays)
