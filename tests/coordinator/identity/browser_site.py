"""A broker with a door for browsers, an identity beside it, and connections by paho."""

from __future__ import annotations

import queue
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from coordinator.brokers.broker_files import coordinator_files
from coordinator.brokers.mosquitto import WebSocketListener
from coordinator.brokers.opening import BrokerProcess
from coordinator.identity.authority import Authority
from coordinator.identity.browsers import KeyClaimed
from edge.contracts import topics
from tests.coordinator.identity.browser_device import BrowserDevice

WAIT_S = 5.0
QUIET_S = 0.3


class Client:
    """A connection by paho, over WebSockets unless ``tcp``; it does not connect again by itself."""

    def __init__(self, client_id: str, *, tcp: bool = False) -> None:
        transport = "tcp" if tcp else "websockets"
        self.mqtt = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            transport=transport,
            protocol=mqtt.MQTTv311,
            reconnect_on_failure=False,
        )
        self.news: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.mqtt.on_connect = lambda c, u, flags, code, p: self.news.put(("connect", str(code)))
        self.mqtt.on_disconnect = lambda c, u, flags, code, p: self.news.put(("end", str(code)))
        self.mqtt.on_message = lambda c, u, message: self.news.put(("message", message.topic))
        self.mqtt.on_subscribe = lambda c, u, mid, codes, p: self.news.put(("subscribed", str(codes[0])))

    def open(self, port: int, user: str = "", password: str = "") -> str:
        """Connect; what the broker says to it, ``Success`` or why not."""
        if user or password:
            self.mqtt.username_pw_set(user, password)
        self.mqtt.connect("127.0.0.1", port)
        self.mqtt.loop_start()
        kind, code = self.news.get(timeout=WAIT_S)
        return code if kind == "connect" else f"ended: {code}"

    def expect(self, kind: str) -> str:
        found, said = self.news.get(timeout=WAIT_S)
        assert found == kind, (found, said)
        return said

    def subscribe(self, topic: str) -> str:
        self.mqtt.subscribe(topic, 1)
        return self.expect("subscribed")

    def is_quiet(self) -> bool:
        try:
            self.news.get(timeout=QUIET_S)
        except queue.Empty:
            return True
        return False

    def close(self) -> None:
        self.mqtt.disconnect()
        self.mqtt.loop_stop()


class Site:
    """An identity, a broker of ``kind`` with a door for browsers, and who is connected."""

    def __init__(self, kind: str, folder: Path, listener: WebSocketListener | None = None) -> None:
        self.kind, self.folder = kind, folder / "broker"
        self.identity = folder / "identity"
        Authority.create(self.identity).close()
        self.broker = BrokerProcess(
            kind, self.folder, identity=self.identity, web_socket=listener or WebSocketListener()
        )
        self.broker.start()
        self.port = int(self.broker.address.web_socket.rsplit(":", 1)[1])
        self._clients: list[Client] = []

    def client(self, client_id: str = "x", *, tcp: bool = False) -> Client:
        self._clients.append(Client(client_id, tcp=tcp))
        return self._clients[-1]

    def enrol(self, device: str) -> KeyClaimed:
        """As a claim is answered: recorded, and the broker told before it goes on."""
        claimed = BrowserDevice(device).enrol(self.identity)
        self.broker.reload()
        return claimed

    def joined(self, device: str) -> Client:
        claimed, client = self.enrol(device), self.client(f"fed/{device}")
        assert client.open(self.port, claimed.user, claimed.password) == "Success"
        return client

    def coordinator(self) -> Client:
        """Subscribed to all that devices send."""
        client, address = self.client("co", tcp=True), self.broker.address
        if self.kind == "mosquitto":
            own = coordinator_files(self.identity, "fed", issue=True)
            self.broker.reload()
            client.mqtt.tls_set(str(own.ca), str(own.certificate), str(own.key))
        port = int(address.url.rsplit(":", 1)[1])
        assert client.open(port, address.user, address.password) == "Success"
        assert client.subscribe(topics.coordinator_filter("fed")) != "Failure"
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.broker.stop()
